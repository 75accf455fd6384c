"""RMSNorm and its gradients: ``y = x rstd w``, ``rstd[r] = 1 / sqrt(mean over c of x[r, c]^2 + eps)``.

Contract, forward
    x (rows, cols), weight (cols,), residual (rows, cols) or None, all contiguous, rows >= 0, cols >= 1. x and
    residual are float32, float16 or bfloat16, both of one dtype; weight is of that dtype or float32. eps is a finite
    number above 0, used as the nearest float32. Returns y[, sum][, rstd]: y (rows, cols) of x's dtype; with a
    residual also sum = x + residual (rows, cols), rounded once to the dtype; with return_rstd also rstd (rows,),
    float32. The norm is that of the *rounded* sum: the array that is returned, that the next layer adds to and that
    the backward pass reads.
    All else is computed in float32 and rounded once, to nearest, ties to even. No chain of additions is longer than
    CHAIN = 256. The sum of squares has to stay finite in float32. A NaN makes its own row NaN; an infinity
    makes rstd 0, so that its row is 0 where finite and NaN where not.

Contract, backward
    dy, x (rows, cols), weight (cols,) as above, rstd (rows,) float32, taken as given. Returns dx (rows, cols) of x's
    dtype and dweight (cols,) of weight's. With g = dy w:
    ``dx = rstd (g - x rstd^2 mean(g x))``, mean over the row, ``dweight = sum over rows of dy x rstd``,
    accumulated in float32 in a fixed order (two runs give the same bits), chains of CHAIN at most. x rstd is of
    moderate size whatever x is, and so has to be what is formed: rstd^3 alone may underflow. A NaN stays in its own row
    of dx and column of dweight. Derivation: dy/dx of ``x_c rstd w_c`` has a diagonal part, rstd w, and through
    ``d rstd / d x_c = -rstd^3 x_c / cols`` a part of rank one (Zhang and Sennrich, "Root mean square layer
    normalization", 2019, section 4).

    In both: no rows launch nothing (dweight is then 0), ``out=`` overlaps nothing.

Error bounds, per element, u = 2^-24, h = additions(length of the sum)
    rstd: ``rstd u (10 + h/2)``. The squares are of one sign; each is rounded and goes through at most h additions, so
    their sum is good to (h + 1) u (Higham, "Accuracy and stability of numerical algorithms", 2002, section 4.2); mean,
    eps and their sum add 3 u; the root halves all that, and a reciprocal root good for 2 units in the last place adds
    4 u, to which as much is held in reserve.
    y: ``|y| u (12 + h/2)``, rstd's and two products, and 2^-148 for what underflows in float32.
    sum: 0, and bit for bit, as in vector add.
    dx: ``u rstd (4 |g| + |x| rstd^2 (6 |c| + S / cols)) + 2^-148``, c = mean(g x), S = 4 sqrt(h) spread(g x): the
    sum is of any sign, so its error is in proportion to the partial sums it passes through, :func:`spread`, each wrong
    by a random u at most: sqrt(h) u, times a confidence of 4 (Higham and Mary, "A new approach to probabilistic
    rounding error analysis", 2019, theorem 2.4).
    dweight: ``4 u (sqrt(h) spread(t) + ||t||_2) + 2^-148``, t = dy x rstd down the rows.
"""

from typing import Sequence

import numpy as np

from reference.contract import (
    ArrayInfo,
    Expected,
    U,
    additions,
    check_contiguous,
    check_devices,
    check_dtypes,
    check_outputs,
    check_positive,
    round_once,
)

DTYPES = ("float32", "float16", "bfloat16")

UNDERFLOW = 2.0**-148


def outputs(x: ArrayInfo, residual: object = None, return_rstd: bool = False) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes and dtypes of what :func:`expect` and every implementation return, in order."""
    same = (x.shape, x.dtype)
    found = {"y": same}
    if residual is not None:
        found["sum"] = same
    if return_rstd:
        found["rstd"] = (x.shape[:1], "float32")
    return found


def check(
    x: ArrayInfo,
    weight: ArrayInfo,
    eps: float,
    residual: ArrayInfo | None = None,
    return_rstd: bool = False,
    out: Sequence[ArrayInfo] | None = None,
    *,
    platform: str = "cuda",
) -> None:
    """Refuse what the contract does not allow; ``out`` in the order of :func:`outputs`.

    Raises TypeError for dtypes, ValueError for ranks, lengths, strides, eps, devices and overlaps; each names the
    argument, its value and what is accepted. platform: where the implementation's arrays live.
    """
    rows = {"x": x} if residual is None else {"x": x, "residual": residual}
    inputs = _check_inputs(rows, weight)
    check_positive("eps", eps)
    written = {} if out is None else check_outputs(out, outputs(x, residual, return_rstd), inputs)
    check_devices({**inputs, **written}, platform)


def check_backward(
    dy: ArrayInfo,
    x: ArrayInfo,
    weight: ArrayInfo,
    rstd: ArrayInfo,
    out: Sequence[ArrayInfo] | None = None,
    *,
    platform: str = "cuda",
) -> None:
    """Refuse what the backward contract does not allow; ``out`` is (dx, dweight). Raises as :func:`check`."""
    inputs = {**_check_inputs({"x": x, "dy": dy}, weight), "rstd": rstd}
    check_dtypes({"rstd": rstd}, ("float32",))
    if rstd.shape != x.shape[:1]:
        raise ValueError(f"rstd has shape {rstd.shape}; accepted: {x.shape[:1]}, the rows of x")
    check_contiguous({"rstd": rstd})
    wanted = {"dx": (x.shape, x.dtype), "dweight": (weight.shape, weight.dtype)}
    written = {} if out is None else check_outputs(out, wanted, inputs)
    check_devices({**inputs, **written}, platform)


def _check_inputs(rows: dict[str, ArrayInfo], weight: ArrayInfo) -> dict[str, ArrayInfo]:
    check_dtypes(rows, DTYPES)
    x = rows["x"]
    check_dtypes({"weight": weight}, tuple(dict.fromkeys((x.dtype, "float32"))))
    if len(x.shape) != 2:
        raise ValueError(f"x has shape {x.shape}; accepted: two axes, (rows, cols)")
    if x.shape[1] == 0:
        raise ValueError(f"x has shape {x.shape}; accepted: cols of 1 or more")
    for name, info in rows.items():
        if info.shape != x.shape:
            raise ValueError(f"{name} has shape {info.shape} and x has {x.shape}; accepted: equal shapes")
    if weight.shape != x.shape[1:]:
        raise ValueError(f"weight has shape {weight.shape}; accepted: {x.shape[1:]}, the cols of x")
    inputs = {**rows, "weight": weight}
    check_contiguous(inputs)
    return inputs


def expect(
    x: np.ndarray, weight: np.ndarray, eps: float, residual: np.ndarray | None = None, return_rstd: bool = False
) -> dict[str, Expected]:
    """``{"y"[, "sum"][, "rstd"]: Expected}`` for x, residual (rows, cols) and weight (cols,), in float64."""
    dtype = x.dtype.name
    found = {}
    with np.errstate(invalid="ignore"):
        # --- load the row
        row = x.astype(np.float64)  # (rows, cols)
        if residual is not None:
            # --- add the residual, round once
            total = row + residual.astype(np.float64)
            found["sum"] = Expected(total, np.zeros_like(total), dtype, bitwise=True)
            row = round_once(total, dtype).astype(np.float64)
        # --- mean of the squares
        rstd = 1 / np.sqrt(np.mean(row * row, axis=1) + np.float32(eps))  # (rows,)
        # --- scale and store
        y = row * rstd[:, None] * weight.astype(np.float64)
        half = additions(x.shape[1]) / 2
        found["y"] = Expected(y, np.abs(y) * (U * (12 + half)) + UNDERFLOW, dtype)
    if return_rstd:
        found["rstd"] = Expected(rstd, rstd * (U * (10 + half)), "float32")
    return {name: found[name] for name in ("y", "sum", "rstd") if name in found}


def expect_backward(dy: np.ndarray, x: np.ndarray, weight: np.ndarray, rstd: np.ndarray) -> dict[str, Expected]:
    """``{"dx", "dweight": Expected}`` for dy, x (rows, cols), weight (cols,) and rstd (rows,), in float64."""
    rows, cols = x.shape
    with np.errstate(invalid="ignore"):
        # --- load the row
        row, up = x.astype(np.float64), dy.astype(np.float64)  # (rows, cols)
        scale = rstd.astype(np.float64)[:, None]  # (rows, 1)
        # --- mean of g x
        g = up * weight.astype(np.float64)
        products = g * row
        c = products.mean(axis=1, keepdims=True)
        # --- dx
        dx = scale * (g - row * scale**2 * c)
        dot_error = 4 * np.sqrt(additions(cols)) * spread(products, axis=1) / cols
        dx_bound = U * scale * (4 * np.abs(g) + np.abs(row) * scale**2 * (6 * np.abs(c) + dot_error)) + UNDERFLOW
        # --- dweight
        terms = up * row * scale
        dweight = terms.sum(axis=0)
        norm = np.sqrt((terms * terms).sum(axis=0))
        dweight_bound = 4 * U * (np.sqrt(additions(rows)) * spread(terms, axis=0)[0] + norm) + UNDERFLOW
    return {"dx": Expected(dx, dx_bound, x.dtype.name), "dweight": Expected(dweight, dweight_bound, weight.dtype.name)}


def spread(terms: np.ndarray, axis: int) -> np.ndarray:
    """How large the partial sums of terms get, with the axis kept at length 1.

    The larger of the range of the prefix sums, which holds every sum of consecutive terms, and the 2-norm, which
    is what a sum of terms in any other order comes to if they are of random sign.
    """
    prefix = np.cumsum(terms, axis=axis)
    high = prefix.max(axis=axis, keepdims=True, initial=0)
    low = prefix.min(axis=axis, keepdims=True, initial=0)
    return np.maximum(high - low, np.sqrt((terms * terms).sum(axis=axis, keepdims=True)))
