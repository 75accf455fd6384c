"""How values are drawn: (generator, length, dtype) -> values. Each distribution is there for a fault it shows."""

from types import MappingProxyType
from typing import Mapping

import numpy as np
from ml_dtypes import finfo

from reference.contract import scalar

BLOCK = 1_000_003  # past 2^24 elements a block of this odd length is repeated, since drawing takes seconds


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
    top = float(limits(dtype).max)
    return (rng.uniform(0.25, 0.75, n) * np.where(rng.random(n) < 0.5, -top, top)).astype(scalar(dtype))


def _subnormal(rng, n, dtype):
    tiny = float(limits(dtype).tiny)
    return (rng.uniform(-1, 1, n) * tiny).astype(scalar(dtype))


def _ties(rng, n, dtype):
    # Whole and half units in the last place of 1.5: a sum of one of each kind lies half way between two numbers.
    unit = float(limits(dtype).eps)
    return np.where(rng.random(n) < 0.5, 1.5 + unit * rng.integers(-8, 8, n), unit / 2 * rng.integers(-8, 8, n)).astype(
        scalar(dtype)
    )


def _bits(rng, n, dtype):
    # Every bit pattern, with one NaN for all so that no input looks like a poisoned output.
    values = rng.integers(0, 256, n * scalar(dtype).itemsize, np.uint8).view(scalar(dtype))
    values[np.isnan(values.astype(np.float32))] = np.nan
    return values


def _one_sided(rng, n, dtype):
    # Partial sums grow with every term, and so do the errors of an accumulator that is too small.
    return np.abs(rng.standard_normal(n, np.float32)).astype(scalar(dtype))


def _tiny(rng, n, dtype):
    # Squares near the usual eps of 1e-6.
    return (rng.standard_normal(n, np.float32) / 1024).astype(scalar(dtype))


def _large(rng, n, dtype):
    # Exponentials overflow by far, squares and products of two do not.
    unit = 2.0**13 if dtype == "float16" else 2.0**50
    return (unit * rng.uniform(-1, 1, n)).astype(scalar(dtype))


def special_values(dtype: str) -> np.ndarray:
    """The numbers a format treats apart, of both signs, and NaN."""
    some = [
        0.0,
        1.0,
        float(limits(dtype).smallest_subnormal),
        float(limits(dtype).tiny),
        float(limits(dtype).max),
        np.inf,
    ]
    return np.array([*some, *(-v for v in some), np.nan]).astype(scalar(dtype))


def limits(dtype: str):
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
    "one_sided": _one_sided,
    "tiny": _tiny,
    "large": _large,
}


def draw_values(distribution: str, rng: np.random.Generator, n: int, dtype: str) -> np.ndarray:
    """n values of a distribution, one axis; past 2^24 a drawn block repeats."""
    draw = DISTRIBUTIONS[distribution]
    return draw(rng, n, dtype) if n <= 1 << 24 else np.resize(draw(rng, BLOCK, dtype), n)


_NONE: Mapping[str, str] = MappingProxyType({})


def draw(
    case, arrays: Mapping[str, tuple[tuple[int, ...], str]], distributions: Mapping[str, str] = _NONE
) -> dict[str, np.ndarray]:
    """Arrays of these shapes and dtypes, each from a generator of its own; distributions where not the case's."""
    return {
        name: draw_values(
            distributions.get(name, case.distribution),
            np.random.default_rng([case.seed, i]),
            int(np.prod(shape, dtype=np.int64)),
            dtype,
        ).reshape(shape)
        for i, (name, (shape, dtype)) in enumerate(arrays.items())
    }
