"""A fourth implementation, as a stranger would bring it."""

import numpy as np

ARRAYS = "numpy"


def vector_add(x, y):
    with np.errstate(all="ignore"):
        return (x.astype(np.float32) + y.astype(np.float32)).astype(x.dtype)
