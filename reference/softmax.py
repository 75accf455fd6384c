"""Softmax: ``out[r, c] = exp(x[r, c] - m[r]) / l[r]``, m the row's maximum, l the row's sum of those exponentials.

Contract
    x (rows, cols), contiguous, rows >= 0, cols >= 1, float32, float16 or bfloat16. out (rows, cols), of that
    dtype. Everything is computed in float32 and rounded once to the dtype, to nearest, ties to even. m is
    subtracted before anything is scaled, so finite entries of any size stay finite. No float32 chain of
    additions is longer than CHAIN = 256 terms; partial sums are summed in turn. Results below float32's normal
    range may be flushed to zero.
    An entry of -inf gives 0. A row of nothing but -inf, or with +inf, or with NaN is NaN all along (inf - inf
    is), and no other row is touched. ``out=`` overlaps x nowhere. rows = 0 launches nothing.

The online form
    A wide row is read once for m and l: state (m, l) of a part, states merged with :func:`merge`, which is
    associative and commutative and has :func:`empty` as its neutral element, so parts may be taken in any order
    and split anywhere (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).

Error bound, per element, u = 2^-24, d = m - x, E[d] the mean of d under the row's own softmax
    ``out u (8 + 4 (d + E[d]) + h)``, h = additions(cols), and 2^-124 where the dtype reaches that far down.
    exp(-d) = 2^(-d log2 e): d is rounded, the constant is, their product is, each relative to d, which makes 3 d u
    of relative error in the exponential, and exp2 itself is good for 2 units in the last place, 4 u. l is a mean of
    such errors, weighted with the exponentials: E[d] in the place of d. The division costs 3 u more. Every term of l
    goes through at most h additions, all of one sign, so l is good to h u (Higham, "Accuracy and stability of numerical
    algorithms", 2002, section 4.2). No less: behind a large term, many small ones of about one size are all rounded the
    same way, and sqrt(h), right for errors of random sign, is not enough. Rescaling a partial sum from one maximum to
    the next costs a product and an exponential instead of additions; their exponents telescope.
"""

from typing import NamedTuple

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
)

DTYPES = ("float32", "float16", "bfloat16")


def check(x: ArrayInfo, out: ArrayInfo | None = None, *, platform: str = "cuda") -> None:
    """Refuse what the contract does not allow.

    Raises TypeError for dtypes, ValueError for ranks, lengths, strides, devices and overlaps; each names the
    argument, its value and what is accepted. platform: where the implementation's arrays live.
    """
    check_dtypes({"x": x}, DTYPES)
    if len(x.shape) != 2:
        raise ValueError(f"x has shape {x.shape}; accepted: two axes, (rows, cols)")
    if x.shape[1] == 0:
        raise ValueError(f"x has shape {x.shape}; accepted: cols of 1 or more")
    check_contiguous({"x": x})
    outputs = {} if out is None else check_outputs([out], {"out": (x.shape, x.dtype)}, {"x": x})
    check_devices({"x": x, **outputs}, platform)


def expect(x: np.ndarray) -> dict[str, Expected]:
    """``{"out": Expected}`` for x (rows, cols) of one of DTYPES, in float64."""
    # --- load the row
    values = x.astype(np.float64)  # (rows, cols)
    with np.errstate(invalid="ignore"):
        # --- maximum of the row
        d = values.max(axis=1, keepdims=True) - values
        # --- exponentials and their sum
        e = np.exp(-d)
        l = e.sum(axis=1, keepdims=True)
        # --- divide and store
        out = e / l
        d = np.where(e > 0, d, 0)  # 0 times an infinite distance is 0 here
        mean_d = (out * d).sum(axis=1, keepdims=True)
        bound = out * U * (8 + 4 * (d + mean_d) + additions(x.shape[1]))
    if x.dtype.name != "float16":
        bound += 2.0**-124
    return {"out": Expected(out, bound, x.dtype.name)}


class State(NamedTuple):
    """What is known of a part of every row: m its maximum, l the sum of exp(x - m), both (rows,)."""

    m: np.ndarray
    l: np.ndarray


def empty(rows: int) -> State:
    """The state of no elements."""
    return State(np.full(rows, -np.inf), np.zeros(rows))


def state(part: np.ndarray) -> State:
    """The state of part (rows, cols), cols >= 0, all of it possibly -inf (masked)."""
    m = part.max(axis=1, initial=-np.inf)
    return State(m, (np.exp(part - finite(m)[:, None])).sum(axis=1))


def merge(a: State, b: State) -> State:
    """The state of two parts together."""
    m = np.maximum(a.m, b.m)
    return State(m, a.l * np.exp(a.m - finite(m)) + b.l * np.exp(b.m - finite(m)))


def finite(m: np.ndarray) -> np.ndarray:
    """m with 0 for -inf, to subtract: an all-masked part has exponentials of 0, where -inf - -inf would be NaN."""
    return np.where(m == -np.inf, 0.0, m)
