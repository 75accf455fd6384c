"""Cases of softmax."""

from typing import Iterator

import numpy as np

from crosscheck.case import Case, Operator, at_flat, flat, pairwise, some, whole
from crosscheck.distributions import draw
from reference.softmax import DTYPES, expect

# The plain ones and, by row: ascending, exponents all over the range, some entries -inf and one row nothing else,
# one row with +inf, one with NaN.
DISTRIBUTIONS = (
    "normal",
    "one_sided",
    "constant",
    "outliers",
    "large",
    "sorted",
    "wide",
    "minus_inf",
    "plus_inf",
    "nan",
    "zeros",
)

WIDTHS = (1, 2, 3, 31, 32, 33, 127, 128, 129, 255, 256, 257, 768, 1000, 1023, 1024, 1025, 4096, 5120, 8191, 11008,
          16384, 32768, 50257, 131072, 262144)  # fmt: skip
ROWS = (0, 1, 2, 3, 131, 132, 133, 4097)
BENCH = ((32768, 1024), (16384, 4096), (8192, 8192), (4096, 32768), (2048, 131072), (128, 4096))


def _case(dtype, rows, cols, distribution="normal", sets=("gpu",), seed=0):
    name = f"softmax-{dtype}-{rows}x{cols}" + ("" if distribution == "normal" else f"-{distribution}")
    return Case(name, "softmax", {"rows": rows, "cols": cols}, dtype, {}, distribution, seed, frozenset(sets))


def cases() -> Iterator[Case]:
    small = (
        (3, 1025),
        (5, 129),
        (2, 1),
        (3, 257),
        (4, 128),
        (3, 2049),
        (2, 33),
        (3, 1000),
        (3, 127),
        (1, 4099),
        (3, 2),
    )
    for offset, dtype in enumerate(DTYPES):
        for i, distribution in enumerate(DISTRIBUTIONS[: 11 if dtype == "float32" else 7]):
            yield _case(dtype, *small[(i + 4 * offset) % len(small)], distribution, ("cpu", "gpu"))
        for distribution in DISTRIBUTIONS:
            yield _case(dtype, 5, 1025, distribution)
            yield _case(dtype, 3, 16387, distribution)
            yield _case(dtype, 3, 24608, distribution)  # rows at 16-byte addresses, and no power of 2
    for pick in pairwise(cols=WIDTHS, rows=ROWS, dtype=DTYPES):
        if pick["rows"] * pick["cols"] <= 1 << 28:  # 4097 rows up to 50257 cols
            yield _case(**pick)
    for dtype in ("bfloat16", "float32"):
        for rows, cols in BENCH:
            yield _case(dtype, rows, cols, sets=("performance",))


def _arrays(case: Case):
    return {"x": ((case.shape["rows"], case.shape["cols"]), case.dtype)}


def _draw(case: Case) -> dict[str, np.ndarray]:
    shape = case.shape["rows"], case.shape["cols"]
    by_row = case.distribution if case.distribution in ("sorted", "wide", "minus_inf", "plus_inf", "nan") else None
    x = draw(case, _arrays(case), {"x": "normal"} if by_row else {})["x"]
    middle = shape[0] // 2
    if by_row == "sorted":
        x = np.sort(x, axis=1)
    elif by_row == "wide":
        x *= 30
    elif by_row == "minus_inf":
        x[np.random.default_rng([case.seed, 1]).random(shape) < 0.3] = -np.inf
        x[middle] = -np.inf
    elif by_row:
        x[middle, shape[1] // 3] = np.inf if by_row == "plus_inf" else np.nan
    return {"x": x}


def _sample(case: Case) -> dict[str, np.ndarray] | None:
    rows, cols = case.shape["rows"], case.shape["cols"]
    return None if whole(rows * cols) else {"out": flat(some(rows, case.seed, cols), cols)}


def _expect(case: Case, inputs, at):
    x = inputs["x"]
    if at is None:
        return expect(x)
    return {"out": at_flat(at["out"], x.shape[1], lambda rows: expect(x[rows])["out"])}


def _random(rng: np.random.Generator, dtype: str) -> Case:
    rows, cols = int(rng.integers(1, 5)), int(2 ** rng.uniform(0, 12.5))
    return _case(dtype, rows, cols, str(rng.choice(DISTRIBUTIONS)), seed=int(rng.integers(1 << 30)))


OPERATORS = (
    Operator(
        "softmax",
        "softmax",
        DTYPES,
        ("x",),
        _arrays,
        lambda case: {"out": ((case.shape["rows"], case.shape["cols"]), case.dtype)},
        _draw,
        _sample,
        _expect,
        _random,
    ),
)
