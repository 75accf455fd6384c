"""Cases of matmul."""

from typing import Iterator

import numpy as np

from crosscheck.case import Case, Operator, at_flat, flat, pairwise, some, whole
from crosscheck.distributions import draw
from reference.matmul import DTYPES, expect

# The plain ones, and one with a NaN in the middle of a.
DISTRIBUTIONS = ("normal", "one_sided", "outliers", "zeros", "constant", "large", "nan")

LENGTHS = (1, 2, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000, 1023, 4096, 8192)
SKINNY = ((1, 4096, 4096), (16, 8192, 8192), (64, 4096, 14336))
BENCH = (
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (4096, 8192, 4096),
    (8192, 4096, 16384),
    (1024,) * 3,
    (2048,) * 3,
    *SKINNY,
)

# Inputs' dtype, out_dtype, precision.
KINDS = (
    ("float16", None, "ieee"),
    ("float16", "float32", "ieee"),
    ("bfloat16", None, "ieee"),
    ("bfloat16", "float32", "ieee"),
    ("float32", None, "ieee"),
    ("float32", None, "tf32"),
)
# bias, activation.
EPILOGUES = ((False, None), (True, None), (False, "gelu"), (True, "gelu"), (True, "gelu_tanh"))


def _case(kind, m, n, k, distribution="normal", ta=False, tb=False, epilogue=(False, None), sets=("gpu",), seed=0):
    dtype, out_dtype, precision = kind
    bias, activation = epilogue
    # The contract has partial sums finite in float32 and says nothing of float16 beyond its range.
    if distribution == "large" and dtype == "float16":
        out_dtype = "float32"
    given = {"transpose_a": ta, "transpose_b": tb, "bias": bias, "activation": activation, "out_dtype": out_dtype}
    arguments = {name: value for name, value in given.items() if value}
    if precision != "ieee":
        arguments["precision"] = precision
    words = {"transpose_a": "ta", "transpose_b": "tb", "bias": "bias", "out_dtype": "out32"}
    parts = [f"matmul-{dtype}-{m}x{n}x{k}", *(words.get(name, value) for name, value in arguments.items())]
    if distribution != "normal":
        parts.append(distribution)
    return Case(
        "-".join(parts), "matmul", {"m": m, "n": n, "k": k}, dtype, arguments, distribution, seed, frozenset(sets)
    )


def cases() -> Iterator[Case]:
    flags = (False, True)
    both = ("cpu", "gpu")
    half, half32, brain, brain32, single, tf32 = KINDS
    # A CPU's share, by hand: tile edges in every dimension, K below and above a chunk of each tensor-core instruction.
    gelu, tanh, bias = (True, "gelu"), (True, "gelu_tanh"), (True, None)
    yield _case(half, 127, 129, 65, "normal", True, False, gelu, both)
    yield _case(half, 64, 64, 128, "one_sided", False, True, sets=both)
    yield _case(half, 65, 63, 127, "outliers", True, True, tanh, both)
    yield _case(half, 1, 128, 129, "constant", sets=both)
    yield _case(half, 16, 33, 0, "normal", False, False, gelu, both)
    yield _case(half32, 128, 128, 129, "one_sided", sets=both)
    yield _case(half32, 33, 65, 64, "large", False, True, sets=both)
    yield _case(half32, 17, 16, 65, "nan", False, False, bias, both)
    yield _case(brain, 129, 127, 64, "normal", False, True, gelu, both)
    yield _case(brain, 64, 128, 127, "one_sided", True, False, sets=both)
    yield _case(brain, 63, 65, 129, "outliers", False, False, tanh, both)
    yield _case(brain, 128, 1, 65, "zeros", False, False, bias, both)
    yield _case(brain, 1, 1, 1, "normal", sets=both)
    yield _case(brain32, 128, 129, 128, "one_sided", True, True, sets=both)
    yield _case(brain32, 65, 33, 63, "large", sets=both)
    yield _case(brain32, 16, 17, 33, "normal", False, False, (False, "gelu_tanh"), both)
    yield _case(single, 65, 127, 129, "normal", False, False, gelu, both)
    yield _case(single, 127, 64, 63, "one_sided", True, False, sets=both)
    yield _case(single, 64, 65, 128, "outliers", False, True, tanh, both)
    yield _case(single, 33, 31, 65, "large", True, True, sets=both)
    yield _case(single, 2, 3, 2, "constant", sets=both)
    yield _case(single, 17, 33, 16, "nan", sets=both)
    yield _case(tf32, 64, 128, 65, "normal", False, True, bias, both)
    yield _case(tf32, 65, 63, 128, "one_sided", True, False, sets=both)
    for kind in KINDS:
        for distribution in DISTRIBUTIONS:
            for epilogue in EPILOGUES[:2] if distribution != "normal" else EPILOGUES:
                yield _case(kind, 65, 129, 257, distribution, epilogue=epilogue)
        yield _case(kind, 129, 65, 1023, "one_sided")
        yield _case(kind, 129, 65, 1023)
        for shape in SKINNY:
            yield _case(kind, *shape)
    cover = pairwise(
        m=LENGTHS, n=LENGTHS, k=LENGTHS, kind=KINDS, ta=flags, tb=flags, epilogue=EPILOGUES, distribution=DISTRIBUTIONS
    )
    for pick in cover:
        # The tanh form cubes its argument, which would leave float32.
        if pick["distribution"] == "large" and pick["epilogue"][1]:
            pick["distribution"] = "normal"
        yield _case(**pick)
    for shape in BENCH:
        yield _case(brain, *shape, sets=("performance",))
    for shape in BENCH[:2]:
        yield _case(half, *shape, sets=("performance",))
        yield _case(brain, *shape, epilogue=gelu, sets=("performance",))
        yield _case(brain, *shape, ta=True, sets=("performance",))
        yield _case(brain, *shape, tb=True, sets=("performance",))
        yield _case(single, *shape, sets=("performance",))
        yield _case(tf32, *shape, tb=True, sets=("performance",))


def _arrays(case: Case):
    m, n, k = (case.shape[axis] for axis in "mnk")
    a = (k, m) if case.arguments.get("transpose_a") else (m, k)
    b = (n, k) if case.arguments.get("transpose_b") else (k, n)
    shapes = {"a": a, "b": b} | ({"bias": (n,)} if case.arguments.get("bias") else {})
    return {name: (shape, case.dtype) for name, shape in shapes.items()}


def _draw(case: Case) -> dict[str, np.ndarray]:
    arrays = _arrays(case)
    planted = case.distribution == "nan"
    inputs = draw(case, arrays, {"bias": "normal"} | ({"a": "normal", "b": "normal"} if planted else {}))
    if planted:
        (rows, cols), _ = arrays["a"]
        inputs["a"][rows // 2, cols // 2] = np.nan
    return inputs


def _outputs(case: Case):
    return {"out": ((case.shape["m"], case.shape["n"]), str(case.arguments.get("out_dtype", case.dtype)))}


def _sample(case: Case) -> dict[str, np.ndarray] | None:
    m, n, k = (case.shape[axis] for axis in "mnk")
    return None if whole(m * n) and 2 * m * n * k <= 10**11 else {"out": flat(some(m, case.seed, n), n)}


def _expect(case: Case, inputs, at):
    def of_rows(rows):
        a = inputs["a"][:, rows] if case.arguments.get("transpose_a") else inputs["a"][rows]
        return expect(**{**case.arguments, **inputs, "a": a})

    return (
        of_rows(slice(None))
        if at is None
        else {"out": at_flat(at["out"], case.shape["n"], lambda rows: of_rows(rows)["out"])}
    )


def _random(rng: np.random.Generator, dtype: str) -> Case:
    m, n, k = int(rng.integers(1, 40)), int(rng.integers(1, 40)), int(2 ** rng.uniform(0, 10.5))
    kinds = [kind for kind in KINDS if kind[0] == dtype]
    distribution = str(rng.choice(DISTRIBUTIONS))
    epilogue = (bool(rng.integers(2)), None) if distribution == "large" else EPILOGUES[rng.integers(len(EPILOGUES))]
    ta, tb = (bool(flag) for flag in rng.integers(0, 2, 2))
    kind = kinds[rng.integers(len(kinds))]
    return _case(kind, m, n, k, distribution, ta, tb, epilogue, seed=int(rng.integers(1 << 30)))


OPERATORS = (Operator("matmul", "matmul", DTYPES, ("a", "b"), _arrays, _outputs, _draw, _sample, _expect, _random),)
