"""One output against what is expected of it, element by element."""

from typing import NamedTuple

import numpy as np

from reference.contract import Expected, round_once, scalar

# Mantissa bits without the hidden one, and the exponent of the smallest normal number.
_FORMATS = {"float32": (23, -126), "float16": (10, -14), "bfloat16": (7, -126)}


class Judgement(NamedTuple):
    """How an output compares.

    error_over_bound: the worst element's ``max(0, |out - ref| - half ulp) / bound``, up to 1 passes; infinite
    for a NaN, an infinity or a bit that the contract does not ask for. max_ulp: the largest distance to the
    reference rounded once, in steps of the dtype, None where a NaN stands against a number. bitwise_equal:
    every bit is that of the rounded reference, NaN payloads aside. worst: flat index of the worst element,
    None where nothing was compared.
    """

    error_over_bound: float
    max_ulp: int | None
    bitwise_equal: bool
    worst: int | None

    @property
    def ok(self) -> bool:
        return self.error_over_bound <= 1


def half_ulp(value: np.ndarray, dtype: str) -> np.ndarray:
    """Half the spacing of ``dtype`` at float64 ``value``, subnormals included."""
    mantissa, lowest = _FORMATS[dtype]
    _, exponent = np.frexp(value)
    return np.ldexp(0.5, np.maximum(np.where(value == 0, lowest, exponent - 1), lowest) - mantissa)


def _steps(values: np.ndarray) -> np.ndarray:
    """Every number of a floating-point dtype as an int64 that counts its place in order, both zeros as 0."""
    bits = values.view(f"i{values.itemsize}").astype(np.int64)
    return np.where(bits < 0, np.iinfo(f"i{values.itemsize}").min - bits, bits)


def judge(out: np.ndarray, expected: Expected) -> Judgement:
    """Compare ``out`` with what is expected of it.

    Raises ValueError if shape or dtype are not the expected ones.
    """
    if out.shape != expected.value.shape or out.dtype != scalar(expected.dtype):
        raise ValueError(
            f"the output has shape {out.shape} and dtype {out.dtype.name}; "
            f"expected: {expected.value.shape}, {expected.dtype}"
        )
    if out.size == 0:
        return Judgement(0.0, 0, True, None)
    out, bound, reference = out.ravel(), expected.bound.ravel(), expected.value.ravel()
    rounded = round_once(reference, expected.dtype)
    with np.errstate(all="ignore"):
        got, want = out.astype(np.float64), rounded.astype(np.float64)
        both_nan = np.isnan(got) & np.isnan(want)
        same_bits = (out.view(f"u{out.itemsize}") == rounded.view(f"u{out.itemsize}")) | both_nan
        # The spacing on the reference's side of the output: below a power of two it is half of that above.
        excess = np.abs(got - reference) - half_ulp(np.nextafter(got, reference), expected.dtype)
        error = np.where(excess > 0, excess / bound, 0.0)  # x / 0 is infinite
        # Nothing to spend beyond the rounding: the value must be the rounded one.
        error = np.where((bound == 0) & (got != want), np.inf, error)
        # NaN and infinity are where the contract asks for them, and nowhere else.
        error = np.where(~np.isfinite(want) | ~np.isfinite(got), np.where(got == want, 0.0, np.inf), error)
        error = np.where(both_nan, 0.0, error)
    if expected.bitwise:
        error = np.where(same_bits, error, np.inf)
    worst = int(np.argmax(error))
    numbers = ~both_nan
    if np.any(np.isnan(got) != np.isnan(want)):
        ulp = None
    else:
        ulp = int(np.abs(_steps(out) - _steps(rounded))[numbers].max(initial=0))
    return Judgement(float(error[worst]), ulp, bool(same_bits.all()), worst)
