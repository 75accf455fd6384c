"""Right, and warns of deprecated API: at length 1023 as a framework would, at 1025 as if our own code had called it."""

import warnings

from tests.doubles import right

ARRAYS = "numpy"


def vector_add(x, y):
    module = {1023: "jax.numpy", 1025: "pallas_impl.vector_add"}[len(x)]
    warnings.warn_explicit("do not", DeprecationWarning, f"{module}.py", 1, module)
    return right.vector_add(x, y)
