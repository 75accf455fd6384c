"""Vector add: ``out[i] = x[i] + y[i]``.

Contract
    x, y (n,), contiguous, any n >= 0, of one dtype: float32, float16 or bfloat16. out (n,), of that dtype.
    Each pair is added in float32 and rounded once to the dtype, to nearest, ties to even. Subnormals are
    kept, a sum past the largest finite number is infinite, inf - inf and any NaN give NaN (of any payload),
    -0 + -0 is -0 and every other zero sum is +0.
    ``out=`` may be x or y itself and overlap them in no other way. n = 0 launches nothing.

Error bound: 0
    So every backend gives the same bits. For float32 the one addition is the one rounding. A sum of two
    16-bit numbers is rounded twice, to float32's p = 24 bits and to q = 8 (bfloat16) or 11 (float16) bits,
    and for p >= 2q + 2 two roundings of a sum give what one would (Figueroa, "When is double rounding
    innocuous?", 1995): 24 >= 18 and 24 >= 24. The float64 sum below, p = 53 over q = 24, is harmless alike.
"""

from typing import Mapping

import numpy as np

from reference.contract import ArrayInfo, Expected, check_devices, check_dtypes

DTYPES = ("float32", "float16", "bfloat16")


def check(x: ArrayInfo, y: ArrayInfo, out: ArrayInfo | None = None, *, platform: str = "cuda") -> None:
    """Refuse what the contract does not allow.

    Raises TypeError for dtypes, ValueError for ranks, lengths, strides, devices and overlaps; each names the
    argument, its value and what is accepted. platform: where the implementation's arrays live.
    """
    arrays: Mapping[str, ArrayInfo] = {"x": x, "y": y} if out is None else {"x": x, "y": y, "out": out}
    check_dtypes(arrays, DTYPES)
    for name, info in arrays.items():
        if len(info.shape) != 1:
            raise ValueError(f"{name} has shape {info.shape}; accepted: one axis, (n,)")
        if info.shape != x.shape:
            raise ValueError(f"{name} has length {info.shape[0]} and x has {x.shape[0]}; accepted: equal lengths")
        if info.strides is not None and info.shape[0] > 1 and info.strides[0] != 1:
            raise ValueError(f"{name} has stride {info.strides[0]}; accepted: contiguous arrays, stride 1")
    check_devices(arrays, platform)
    if out is not None and out.address is not None:
        first, last = out.span
        for name, info in (("x", x), ("y", y)):
            start, stop = info.span
            if start != first and start < last and first < stop:
                raise ValueError(
                    f"out overlaps {name}, {start - first:+d} bytes apart; accepted: x or y itself, or no overlap"
                )


def expect(x: np.ndarray, y: np.ndarray) -> dict[str, Expected]:
    """``{"out": Expected}`` for inputs (n,) of one of DTYPES: the float64 sum, exact to the bit once rounded."""
    # --- load x and y
    a, b = x.astype(np.float64), y.astype(np.float64)
    # --- add in float32, round once
    with np.errstate(invalid="ignore"):
        total = a + b
    # --- store
    return {"out": Expected(total, np.zeros_like(total), x.dtype.name, bitwise=True)}
