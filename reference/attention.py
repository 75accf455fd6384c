"""Attention, restricted forward: ``out = P V / l``, ``P = exp(S - m)``, ``S = scale Q K^T``.

m is the maximum of a row of S, l the sum of a row of P.

Contract
    q, k, v (batch, heads, sequence, head_dim) with layout "bhsd", (batch, sequence, heads, head_dim) with "bshd",
    contiguous, of one shape and dtype, float16 or bfloat16; head_dim 64 or 128; any batch, heads and sequence, 0 too
    (nothing is launched). scale is a finite number above 0, by default 1 / sqrt(head_dim). causal: a query sees the
    keys up to its own position. Returns out, of q's shape and dtype, and with return_lse also lse = m + log l,
    the natural logarithm of the sum of exp S, (batch, heads, sequence) in float32 whatever the layout.
    S accumulates in float32; m, P and l are float32; l sums P *before* it is rounded to the inputs' dtype for the
    second product, which accumulates in float32. P is not divided by l before it is rounded. One rounding at the end.
    A hidden key is no small number but absent: its score may be anything, NaN too. Values are finite, since a
    tile multiplies hidden ones by 0. NaN in a query, or in a key it sees, makes its row of out and lse NaN. Scores
    stay finite in float32.

The blockwise form
    :func:`blockwise` takes keys tile by tile and keeps, per query, the state (m, l) of ``reference.softmax`` and
    the sum o of P V so far: where m grows, o is scaled down as l is. It never holds more of S than a tile, and leaves
    out tiles that the mask hides whole (Dao, Fu, Ermon, Rudra and Re, "FlashAttention", 2022, algorithm 1; Rabe and
    Staats, "Self-attention does not need O(n^2) memory", 2021).

Error bound, per element, u = 2^-24, p_j the softmax of a row, B the accumulation error of ``reference.matmul``
    score: ``d_j = scale B(q, k_j) + u (2 |s_j| + 2 |m| + 8)``. Scaling (with log2 e folded in) and subtracting m round
    relative to s and m, by u/2 on average or less; exp2 is good for 2 units in the last place and its argument's
    constant for half of one.
    out: ``sqrt(sum p d^2) sqrt(sum p (v - out)^2) + rounding of P + B(p, v) + u (8 + 2 sqrt(h) + h/4) |out|``.
    An error of p_j moves out by p_j d_j (v_j - out); the sum over j is at most the product of the two roots (Cauchy and
    Schwarz), of which the second is the spread of the values. Rounding P to q bits (8 or 11) moves it by 2^-q p_j v_j
    at most each, of random sign: ``4 * 2^-q ||p v||_2``, and in float16 a P below its normal range by up to 2^-25, or
    by all of P: ``sum min(P_j, 2^-25) |v_j| / l``. Then the second product, the division, and l, a sum of one sign in
    chains of any length: h, the number of keys seen, takes the place of K in the matmul's c.
    lse: ``sum p d + u (2 sqrt(h) + h/4 + 8 + 2 |lse| + 2 |m|)``.
"""

import math
from typing import Sequence

import numpy as np

from reference.contract import (
    ArrayInfo,
    Expected,
    U,
    Unsupported,
    among,
    check_contiguous,
    check_devices,
    check_dtypes,
    check_outputs,
    check_positive,
    words,
)
from reference.matmul import accumulation
from reference.softmax import State, empty, finite, merge, state

DTYPES = ("float16", "bfloat16")
HEAD_DIMS = (64, 128)
LAYOUTS = ("bhsd", "bshd")

PRECISION = {"float16": 11, "bfloat16": 8}  # bits of mantissa, the hidden one counted


def outputs(q: ArrayInfo, layout: str = "bhsd", return_lse: bool = False) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes and dtypes of what :func:`expect` and every implementation return, in order."""
    found = {"out": (q.shape, q.dtype)}
    if return_lse:
        sizes = dict(zip(layout, q.shape))
        found["lse"] = (tuple(sizes[axis] for axis in "bhs"), "float32")
    return found


def check(
    q: ArrayInfo,
    k: ArrayInfo,
    v: ArrayInfo,
    *,
    causal: bool,
    scale: float | None = None,
    layout: str = "bhsd",
    return_lse: bool = False,
    out: Sequence[ArrayInfo] | None = None,
    platform: str = "cuda",
) -> None:
    """Refuse what the contract does not allow; ``out`` in the order of :func:`outputs`.

    Raises TypeError for dtypes, ValueError for ranks, lengths, strides, names, scale, devices and overlaps,
    Unsupported for head dims, grouped heads and lengths that other attentions take; each names the argument, its
    value and what is accepted. platform: where the implementation's arrays live.
    """
    inputs = {"q": q, "k": k, "v": v}
    check_dtypes(inputs, DTYPES)
    if not isinstance(causal, (bool, np.bool_)):
        raise TypeError(f"causal is {causal!r}; accepted: True or False")
    among("layout", layout, LAYOUTS)
    if scale is not None:
        check_positive("scale", scale)
    named = dict(zip("bhsd", ("batch", "heads", "sequence", "head_dim")))
    axes = ", ".join(named[axis] for axis in layout)
    for name, info in inputs.items():
        if len(info.shape) != 4:
            raise ValueError(f"{name} has shape {info.shape}; accepted: four axes, ({axes})")
        sizes, of_q = dict(zip(layout, info.shape)), dict(zip(layout, q.shape))
        for axis, wanted, equal in (("h", "heads", "grouped heads"), ("s", "sequence", "lengths of their own")):
            if sizes[axis] != of_q[axis]:
                raise Unsupported(
                    f"{name} has {wanted} {sizes[axis]} and q has {of_q[axis]}; built here: equal ones, no {equal}"
                )
        if info.shape != q.shape:
            raise ValueError(f"{name} has shape {info.shape} and q has {q.shape}; accepted: equal shapes")
    if q.shape[3] not in HEAD_DIMS:
        raise Unsupported(f"q has head_dim {q.shape[3]}; built here: {words(HEAD_DIMS)}")
    check_contiguous(inputs)
    written = {} if out is None else check_outputs(out, outputs(q, layout, return_lse), inputs)
    check_devices({**inputs, **written}, platform)


def expect(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    causal: bool,
    scale: float | None = None,
    layout: str = "bhsd",
    return_lse: bool = False,
) -> dict[str, Expected]:
    """``{"out"[, "lse"]: Expected}`` for q, k, v of one of LAYOUTS, in float64."""
    batch, heads, sequence, head_dim = (dict(zip(layout, q.shape))[axis] for axis in "bhsd")
    everywhere = tuple(axis.ravel() for axis in np.indices((batch, heads, sequence)))
    found = expect_at(q, k, v, everywhere, causal=causal, scale=scale, layout=layout)
    shapes = {"out": (batch, heads, sequence, head_dim), "lse": (batch, heads, sequence)}
    turn = lambda a: a.swapaxes(1, 2) if layout == "bshd" and a.ndim == 4 else a
    return {
        name: e._replace(value=turn(e.value.reshape(shapes[name])), bound=turn(e.bound.reshape(shapes[name])))
        for name, e in found.items()
        if name == "out" or return_lse
    }


def expect_at(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    index: tuple[np.ndarray, np.ndarray, np.ndarray],
    *,
    causal: bool,
    scale: float | None = None,
    layout: str = "bhsd",
) -> dict[str, Expected]:
    """``{"out": (n, head_dim), "lse": (n,)}`` for n queries, index their batch, head and position, each (n,)."""
    if layout == "bshd":
        q, k, v = (a.swapaxes(1, 2) for a in (q, k, v))
    n, head_dim = len(index[0]), q.shape[3]
    out, out_bound = np.empty((2, n, head_dim))
    lse, lse_bound = np.empty((2, n))
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    head_of = index[0] * q.shape[1] + index[1]
    for head in np.unique(head_of):
        batch, h = divmod(int(head), q.shape[1])
        keys, values = k[batch, h].astype(np.float64), v[batch, h].astype(np.float64)  # (sequence, head_dim)
        here = np.flatnonzero(head_of == head)
        for part in np.split(here, range(512, len(here), 512)):
            positions = index[2][part]
            queries = q[batch, h, positions].astype(np.float64)
            found = _queries(queries, keys, values, positions if causal else None, scale, PRECISION[q.dtype.name])
            out[part], out_bound[part], lse[part], lse_bound[part] = found
    return {"out": Expected(out, out_bound, q.dtype.name), "lse": Expected(lse, lse_bound, "float32")}


def _queries(q, k, v, positions, scale, precision):
    """out, its bound (n, head_dim), lse and its bound (n,) of q (n, head_dim) against k and v (sequence, head_dim).

    positions: (n,) where causal, None where not. precision: bits that P is rounded to.
    """
    sequence = k.shape[0]
    terms = np.full((len(q), 1), sequence) if positions is None else positions[:, None] + 1
    seen = np.arange(sequence) < terms  # (n, sequence)
    with np.errstate(invalid="ignore"):
        # --- scores
        s = np.where(seen, scale * (q @ k.T), -np.inf)
        # --- maximum of the row, exponentials and their sum
        m = s.max(axis=1, keepdims=True)
        p = np.exp(s - m)
        l = p.sum(axis=1, keepdims=True)
        lse = (m + np.log(l))[:, 0]
        # --- times the values
        out = p @ v / l

        # --- what they may be off by
        absolute = np.abs(np.where(seen, s, 0))
        d = np.where(seen, scale * accumulation(q, k.T) + U * (2 * absolute + 2 * np.abs(m) + 8), 0)
        tiny = np.minimum(p, 2.0**-25) @ np.abs(v) / l if precision == 11 else 0
        p /= l
        variance = np.maximum(p @ (v * v) - out * out, 0)
        sum_error = 2 * np.sqrt(terms) + terms / 4
        moved = np.sqrt((p * d * d).sum(axis=1, keepdims=True)) * np.sqrt(variance)
        rounded = 4 * 2.0**-precision * np.sqrt((p * p) @ (v * v)) + tiny
        out_bound = moved + rounded + accumulation(p, v, terms=terms) + U * (8 + sum_error) * np.abs(out)
        lse_bound = (p * d).sum(axis=1) + U * (sum_error[:, 0] + 8 + 2 * np.abs(lse) + 2 * np.abs(m[:, 0]))
    return out, out_bound, lse, lse_bound


def blockwise(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, causal: bool, scale: float, tile_q: int, tile_k: int
) -> tuple[np.ndarray, np.ndarray]:
    """out (sequence, head_dim) and lse (sequence,) of one head, q, k, v (sequence, head_dim), in their float type."""
    sequence = q.shape[0]
    out, lse = np.empty_like(q), np.empty_like(q[:, 0])
    for first in range(0, sequence, tile_q):
        # --- load the queries
        queries = q[first : first + tile_q]  # (tile_q, head_dim)
        positions = np.arange(first, first + len(queries))
        seen = State(*(part.astype(q.dtype) for part in empty(len(queries))))
        o = np.zeros_like(queries)
        # --- tiles of keys
        # Those that the mask hides whole are left out.
        for start in range(0, positions[-1] + 1 if causal else sequence, tile_k):
            keys, values = k[start : start + tile_k], v[start : start + tile_k]  # (tile_k, head_dim)
            # --- scores
            s = scale * (queries @ keys.T)  # (tile_q, tile_k)
            # --- mask
            # In tiles on the diagonal alone.
            if causal and start + len(keys) - 1 > first:
                s = np.where(positions[:, None] >= start + np.arange(len(keys)), s, -np.inf)
            # --- merge the states
            # What was summed under a smaller maximum is scaled down.
            before, seen = seen, merge(seen, state(s))
            p = np.exp(s - finite(seen.m)[:, None])
            o = o * np.exp(before.m - finite(seen.m))[:, None]
            # --- times the values
            o += p @ values
        # --- divide and store
        out[first : first + tile_q] = o / seen.l[:, None]
        lse[first : first + tile_q] = seen.m + np.log(seen.l)
    return out, lse
