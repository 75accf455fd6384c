"""Cases of vector add."""

from typing import Iterator

import numpy as np

from crosscheck.case import Case, Operator, whole
from crosscheck.distributions import draw, special_values
from reference.vector_add import DTYPES, expect

DISTRIBUTIONS = ("normal", "zeros", "constant", "outliers", "huge", "subnormal", "ties", "bits")


def _case(dtype, n, distribution="normal", sets=("cpu", "gpu"), seed=0):
    suffix = "" if distribution == "normal" else f"-{distribution}"
    return Case(
        f"vector_add-{dtype}-{n}{suffix}", "vector_add", {"n": n}, dtype, {}, distribution, seed, frozenset(sets)
    )


def cases() -> Iterator[Case]:
    # Both sides of: a vector (4, 8), a warpgroup (128), a block of scalars (256), tiles (1024, 2048).
    edges = (0, 1, 3, 5, 7, 8, 9, 127, 128, 129, 255, 256, 257, 511, 513, 1023, 1024, 1025, 2047, 2048, 2049, 4099)
    thin = {0, 1, 7, 129, 1023, 1025, 2048, 4099}  # a CPU's share for all but float32
    for dtype in DTYPES:
        for n in edges:
            yield _case(dtype, n, sets=("cpu", "gpu") if dtype == "float32" or n in thin else ("gpu",))
        for distribution in DISTRIBUTIONS[1:]:
            yield _case(dtype, 1031, distribution)
        yield _case(dtype, special_values(dtype).size ** 2, "special")
        for n in (65_537, 1_000_003, (1 << 24) + 1):
            yield _case(dtype, n, sets=("gpu",))
    for n in ((1 << 31) + 5, (1 << 31) + 2051):  # the second puts the start of a tile past 2^31
        yield _case("float16", n, sets=("gpu",))
    for dtype in ("float32", "bfloat16"):
        for exponent in range(16, 29, 2):
            yield _case(dtype, 1 << exponent, sets=("performance",))


def _arrays(case: Case):
    return dict.fromkeys(("x", "y"), ((case.shape["n"],), case.dtype))


def _draw(case: Case) -> dict[str, np.ndarray]:
    if case.distribution == "special":  # every pair of them
        values = special_values(case.dtype)
        return {"x": np.repeat(values, values.size), "y": np.tile(values, values.size)}
    return draw(case, _arrays(case))


def _sample(case: Case) -> dict[str, np.ndarray] | None:
    n = case.shape["n"]
    if whole(n):
        return None
    edges = np.arange(0, n, 1 << 24)[:, None] + np.arange(-8, 8)
    drawn = np.random.default_rng(case.seed).integers(0, n, 1 << 16)
    ends = np.r_[0:4096, n - 4096 : n, (1 << 31) - 4096 : (1 << 31) + 4096]
    index = np.unique(np.concatenate([edges.ravel(), drawn, ends]))
    return {"out": index[(index >= 0) & (index < n)]}


def _expect(case: Case, inputs, at):
    where = slice(None) if at is None else at["out"]
    return expect(inputs["x"][where], inputs["y"][where])


def _random(rng: np.random.Generator, dtype: str) -> Case:
    return _case(dtype, int(2 ** rng.uniform(0, 12)), str(rng.choice(DISTRIBUTIONS)), seed=int(rng.integers(1 << 30)))


OPERATORS = (
    Operator(
        "vector_add",
        "vector_add",
        DTYPES,
        ("x", "y"),
        _arrays,
        lambda case: {"out": ((case.shape["n"],), case.dtype)},
        _draw,
        _sample,
        _expect,
        _random,
    ),
)
