"""The cases every backend is checked on: one frozen table, read by the check, the tests and the bench.

A case says which operator, on what shapes, dtype and arguments, and how its inputs are drawn; the same case
gives the same bytes on every machine.
"""

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Callable, Iterator, Mapping

import numpy as np

from reference import vector_add
from reference.contract import Expected, scalar


@dataclass(frozen=True, eq=False)
class Case:
    """One call to check.

    id: unique, ``vector_add-bfloat16-1025``. shape: axis names to lengths. arguments: the call's keyword
    arguments. distribution, seed: how the inputs are drawn. sets: among ``cpu`` and ``gpu`` (checked for
    correctness on such machines) and ``performance`` (timed).
    """

    id: str
    operator: str
    shape: Mapping[str, int]
    dtype: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    distribution: str = "normal"
    seed: int = 0
    sets: frozenset[str] = frozenset({"cpu", "gpu"})


@dataclass(frozen=True)
class Operator:
    """What the check needs to know of an operator beside its reference.

    module: its basename in every tree. inputs: names in the order of the call. outputs: a case's results in
    their order, name to shape and dtype. draw: a case's inputs by name. sample: which elements of a big case's outputs are held to the reference, as
    flat indices by output, or None for all. expect: the reference's word on a case and its inputs, at such
    indices alone where they are given.
    """

    name: str
    module: str
    inputs: tuple[str, ...]
    outputs: Callable[[Case], dict[str, tuple[tuple[int, ...], str]]]
    draw: Callable[[Case], dict[str, np.ndarray]]
    sample: Callable[[Case], dict[str, np.ndarray] | None]
    expect: Callable[[Case, dict[str, np.ndarray], dict[str, np.ndarray] | None], dict[str, Expected]]


# Distributions: (generator, length, dtype) -> values. Each is there for a fault it shows.

BLOCK = 1_000_003  # past 2^26 elements a block of this odd length is repeated, since drawing takes seconds


def _normal(rng: np.random.Generator, n: int, dtype: str) -> np.ndarray:
    return rng.standard_normal(n, np.float32).astype(scalar(dtype))


def _zeros(rng, n, dtype):
    return np.zeros(n, scalar(dtype))


def _constant(rng, n, dtype):
    # Dyadic, so that sums of it are exact and a result that is off is off by an element.
    return np.full(n, 0.5, scalar(dtype))


def _outliers(rng, n, dtype):
    values = rng.standard_normal(n, np.float32)
    values[rng.random(n) < 0.01] *= 10
    return values.astype(scalar(dtype))


def _huge(rng, n, dtype):
    # Half of the sums of two overflow.
    top = float(_limits(dtype).max)
    return (rng.uniform(0.25, 0.75, n) * np.where(rng.random(n) < 0.5, -top, top)).astype(scalar(dtype))


def _subnormal(rng, n, dtype):
    tiny = float(_limits(dtype).tiny)
    return (rng.uniform(-1, 1, n) * tiny).astype(scalar(dtype))


def _ties(rng, n, dtype):
    # Whole and half units in the last place of 1.5: a sum of one of each kind lies half way between two numbers.
    unit = float(_limits(dtype).eps)
    return np.where(rng.random(n) < 0.5, 1.5 + unit * rng.integers(-8, 8, n), unit / 2 * rng.integers(-8, 8, n)).astype(scalar(dtype))


def _bits(rng, n, dtype):
    # Every bit pattern, with one NaN for all so that no input looks like a poisoned output.
    values = rng.integers(0, 256, n * scalar(dtype).itemsize, np.uint8).view(scalar(dtype))
    values[np.isnan(values.astype(np.float32))] = np.nan
    return values


def special_values(dtype: str) -> np.ndarray:
    """The numbers a format treats apart, of both signs, and NaN."""
    limits = _limits(dtype)
    some = [0.0, 1.0, float(limits.smallest_subnormal), float(limits.tiny), float(limits.max), np.inf]
    return np.array([*some, *(-v for v in some), np.nan]).astype(scalar(dtype))


def _limits(dtype: str):
    from ml_dtypes import finfo

    return finfo(scalar(dtype))


DISTRIBUTIONS = {
    "normal": _normal,
    "zeros": _zeros,
    "constant": _constant,
    "outliers": _outliers,
    "huge": _huge,
    "subnormal": _subnormal,
    "ties": _ties,
    "bits": _bits,
}


def draw_values(distribution: str, rng: np.random.Generator, n: int, dtype: str) -> np.ndarray:
    """n values of a distribution, one axis; past 2^26 a drawn block repeats."""
    draw = DISTRIBUTIONS[distribution]
    return draw(rng, n, dtype) if n <= 1 << 26 else np.resize(draw(rng, BLOCK, dtype), n)


# Vector add

def _draw_vector_add(case: Case) -> dict[str, np.ndarray]:
    if case.distribution == "special":  # every pair of them
        values = special_values(case.dtype)
        return {"x": np.repeat(values, values.size), "y": np.tile(values, values.size)}
    return {
        name: draw_values(case.distribution, np.random.default_rng([case.seed, i]), case.shape["n"], case.dtype)
        for i, name in enumerate(("x", "y"))
    }


def _sample_vector_add(case: Case) -> dict[str, np.ndarray] | None:
    n = case.shape["n"]
    if n <= 1 << 26:
        return None
    edges = np.arange(0, n, 1 << 24)[:, None] + np.arange(-8, 8)
    drawn = np.random.default_rng(case.seed).integers(0, n, 1 << 16)
    ends = np.r_[0:4096, n - 4096 : n, (1 << 31) - 4096 : (1 << 31) + 4096]
    index = np.unique(np.concatenate([edges.ravel(), drawn, ends]))
    return {"out": index[(index >= 0) & (index < n)]}


def _expect_vector_add(case: Case, inputs, at) -> dict[str, Expected]:
    where = slice(None) if at is None else at["out"]
    return vector_add.expect(inputs["x"][where], inputs["y"][where])


def _vector_add_cases() -> Iterator[Case]:
    def case(dtype, n, distribution="normal", sets=("cpu", "gpu")):
        suffix = "" if distribution == "normal" else f"-{distribution}"
        return Case(f"vector_add-{dtype}-{n}{suffix}", "vector_add", {"n": n}, dtype, {}, distribution, 0, frozenset(sets))

    # Both sides of: a vector (4, 8), a warpgroup (128), a block of scalars (256), tiles (1024, 2048).
    edges = (0, 1, 3, 5, 7, 8, 9, 127, 128, 129, 255, 256, 257, 511, 513, 1023, 1024, 1025, 2047, 2048, 2049, 4099)
    thin = {0, 1, 7, 129, 1023, 1025, 2048, 4099}  # a CPU's share for all but float32
    for dtype in ("float32", "float16", "bfloat16"):
        for n in edges:
            yield case(dtype, n, sets=("cpu", "gpu") if dtype == "float32" or n in thin else ("gpu",))
        for distribution in ("zeros", "constant", "outliers", "huge", "subnormal", "ties", "bits"):
            yield case(dtype, 1031, distribution)
        yield case(dtype, special_values(dtype).size ** 2, "special")
        for n in (65_537, 1_000_003, (1 << 24) + 1):
            yield case(dtype, n, sets=("gpu",))
    for n in ((1 << 31) + 5, (1 << 31) + 2051):  # the second puts the start of a tile past 2^31
        yield case("float16", n, sets=("gpu",))
    for dtype in ("float32", "bfloat16"):
        for exponent in range(16, 29, 2):
            yield case(dtype, 1 << exponent, sets=("performance",))


OPERATORS = {
    op.name: op
    for op in (
        Operator(
            "vector_add",
            "vector_add",
            ("x", "y"),
            lambda case: {"out": ((case.shape["n"],), case.dtype)},
            _draw_vector_add,
            _sample_vector_add,
            _expect_vector_add,
        ),
    )
}

CASES: Mapping[str, Case] = MappingProxyType({c.id: c for c in _vector_add_cases()})
