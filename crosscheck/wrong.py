"""Wrong implementations in NumPy: each is a right one with one fault, of the kind that kernels have.

WRONG holds them by operator and name; UNSEEN says which fault cannot be seen in which dtype, and why.
"""

from functools import partial
from typing import Callable, Mapping

import numpy as np
from ml_dtypes import finfo

from crosscheck import right
from crosscheck.right import F32, LOG2_E, by_head, fold, lanes, store
from reference.contract import scalar

# Steps gone wrong, to put in the place of right ones


def cut_store(value, dtype):
    """Truncated to 16 bits instead of rounded."""
    rounded = store(value, dtype)
    if rounded.itemsize == 4:
        return rounded
    with np.errstate(invalid="ignore"):
        too_far = np.abs(rounded.astype(F32)) > np.abs(value)
    return np.where(too_far, (rounded.view(np.uint16) - 1).view(rounded.dtype), rounded)


def narrow(dtype):
    """The 16-bit type that a kernel for dtype would be careless with."""
    return scalar(dtype if dtype != "float32" else "bfloat16")


def narrow_total(x, dtype="bfloat16"):
    """32 lanes that add in 16 bits."""
    parts = fold(x, 32)  # (..., n / 32, 32)
    total = np.zeros((*x.shape[:-1], 32), F32)
    for i in range(parts.shape[-2]):
        total = (total + parts[..., i, :]).astype(narrow(dtype)).astype(F32)
    return lanes(total)


def narrow_product(a, b, dtype="bfloat16", step=16):
    """An accumulator of 16 bits, rounded once a step."""
    total = np.zeros((a.shape[0], b.shape[1]), F32)
    for k in range(0, a.shape[1], step):
        total = (total + a[:, k : k + step] @ b[k : k + step]).astype(narrow(dtype)).astype(F32)
    return total


def without_last(total):
    return lambda x: total(x[..., :-1])


def with_neighbour(total):
    """One element past the end of each row: the first of the next."""
    return lambda x: total(np.concatenate([x, np.roll(x, -1, axis=0)[..., :1]], axis=-1))


def padded(cols):
    return 1 << int(cols - 1).bit_length()


# Faults that any operator may have, made from a right implementation


def outputs(change: Callable) -> Callable:
    """``change`` applied to every output of an implementation."""

    def wrap(implementation: Callable) -> Callable:
        def changed(**call):
            found = implementation(**call)
            return tuple(map(change, found)) if isinstance(found, tuple) else change(found)

        return changed

    return wrap


def inputs(**changes: Callable) -> Callable:
    """``changes`` applied to inputs by name, where the call has them."""

    def wrap(implementation: Callable) -> Callable:
        def changed(**call):
            return implementation(
                **{**call, **{name: change(call[name]) for name, change in changes.items() if name in call}}
            )

        return changed

    return wrap


def stale(out):
    """The last of every 8 elements never written."""
    out = out.copy()
    out.reshape(-1)[7::8] = 1
    return out


def last_nan(out):
    out = out.copy()
    out.reshape(-1)[-1:] = np.nan
    return out


def next_to(out):
    """Each element, along the last axis, where its neighbour belongs."""
    return np.roll(out, 1, axis=-1)


def rows_exchanged(out):
    return np.roll(out, 1, axis=0)


def transposed(out):
    return np.ascontiguousarray(np.swapaxes(out, -1, -2)).reshape(out.shape) if out.ndim > 1 else out[::-1]


def clean(out):
    """NaN where there should be one taken for 0."""
    return np.where(np.isnan(out.astype(F32)), np.zeros_like(out), out)


EVERYWHERE: Mapping[str, Callable] = {
    "zeros": outputs(np.zeros_like),
    "NaN": outputs(lambda out: np.full_like(out, np.nan)),
    "NaN in the last element": outputs(last_nan),
    "stale memory, every 8th element": outputs(stale),
    "NaN taken for 0": outputs(clean),
}


def everywhere(implementation: Callable) -> dict[str, Callable]:
    return {name: wrap(implementation) for name, wrap in EVERYWHERE.items()}


# Vector add


def toward_zero(x, y):
    exact = x.astype(np.float64) + y.astype(np.float64)
    rounded = right.vector_add(x, y)
    too_far = np.abs(rounded.astype(np.float64)) > np.abs(exact)
    unit = np.array(1, f"u{x.itemsize}")
    return np.where(too_far, (rounded.view(unit.dtype) - unit).view(x.dtype), rounded)


def flush(out):
    return np.where(np.abs(out) < finfo(out.dtype).tiny, np.zeros_like(out), out)


def saturate(out):
    return np.where(np.isinf(out), np.copysign(finfo(out.dtype).max, out), out).astype(out.dtype)


VECTOR_ADD = {
    **everywhere(right.vector_add),
    "x returned": lambda x, y: x.copy(),
    "elements off by one": outputs(next_to)(right.vector_add),
    "neighbour of y read": inputs(y=lambda y: np.roll(y, -1))(right.vector_add),
    "difference": lambda x, y: store(x.astype(F32) - y.astype(F32), x.dtype.name),
    "y twice": lambda x, y: store(x.astype(F32) + 2 * y.astype(F32), x.dtype.name),
    "truncated": toward_zero,
    "8 bits of mantissa": lambda x, y: (x.astype(F32) + y.astype(F32)).astype(scalar("bfloat16")).astype(x.dtype),
    "inputs in 8 bits of mantissa": inputs(
        **dict.fromkeys("xy", lambda v: v.astype(scalar("bfloat16")).astype(v.dtype))
    )(right.vector_add),
    "subnormals flushed": outputs(flush)(right.vector_add),
    "overflow saturates": outputs(saturate)(right.vector_add),
    "sign of zero lost": outputs(lambda out: out + np.zeros_like(out))(right.vector_add),
    "tail of 4 not written": lambda x, y: np.r_[right.vector_add(x, y)[: len(x) // 4 * 4], x[len(x) // 4 * 4 :]],
}


# Softmax


def padded_with_zero(x):
    """Columns up to the next power of two hold 0, not -inf: each adds exp(0 - m)."""
    row = x.astype(F32)
    pad = np.zeros((len(x), padded(x.shape[1]) - x.shape[1]), F32)
    return right.softmax(np.concatenate([row, pad], axis=1))[:, : x.shape[1]].astype(x.dtype)


SOFTMAX = {
    **everywhere(right.softmax),
    "x returned": lambda x: x.copy(),
    "last element of the sum dropped": partial(right.softmax, total=without_last(lanes)),
    "neighbour read past the tail": partial(right.softmax, total=with_neighbour(lanes)),
    "width padded with 0": padded_with_zero,
    "16-bit accumulation": lambda x: right.softmax(x, total=partial(narrow_total, dtype=x.dtype.name)),
    "16-bit exponentials": lambda x: right.softmax(x, exp=lambda d: np.exp(d).astype(narrow(x.dtype.name)).astype(F32)),
    "truncated": partial(right.softmax, store=cut_store),
    "maximum not subtracted": partial(right.softmax, maximum=lambda row: F32(0)),
    "first element taken for the maximum": partial(right.softmax, maximum=lambda row: row[:, :1]),
    "maximum of the whole array": partial(right.softmax, maximum=lambda row: row.max(initial=-np.inf)),
    "online rescale forgotten": partial(right.softmax_online, tile=32, rescale=lambda l, factor: l),
    "online rescale twice": partial(right.softmax_online, tile=32, rescale=lambda l, factor: l * factor * factor),
    "tiles after the first not summed": partial(right.softmax, total=lambda e: lanes(e[:, :128])),
    "base 2": partial(right.softmax, exp=np.exp2),
    "scale applied twice": partial(right.softmax, exp=lambda d: np.exp2(d * LOG2_E * LOG2_E)),
    "over the rows": lambda x: np.ascontiguousarray(right.softmax(x.T).T),
    "rows exchanged": outputs(rows_exchanged)(right.softmax),
    "not divided": partial(right.softmax, total=lambda e: np.ones(len(e), F32)),
}

# RMSNorm


def y_is_x(**call):
    found = right.rmsnorm(**call)
    return (call["x"].copy(), *found[1:]) if isinstance(found, tuple) else call["x"].copy()


def rms(**steps):
    return partial(right.rmsnorm, **steps)


def y_rounded_twice(x, weight, eps, residual=None, return_rstd=False):
    """x rstd rounded to 16 bits before the weight."""
    ones = np.ones_like(weight)
    found = right.rmsnorm(x, ones, eps, residual, return_rstd)
    first = found[0] if isinstance(found, tuple) else found
    y = store(first.astype(narrow(x.dtype.name)).astype(F32) * weight.astype(F32), x.dtype.name)
    return (y, *found[1:]) if isinstance(found, tuple) else y


RMSNORM = {
    **everywhere(right.rmsnorm),
    "x returned": y_is_x,
    "eps left out": rms(root=lambda mean, eps: 1 / np.sqrt(mean)),
    "eps outside the root": rms(root=lambda mean, eps: 1 / (np.sqrt(mean) + F32(eps))),
    "not the reciprocal": rms(root=lambda mean, eps: np.sqrt(mean + F32(eps))),
    "root forgotten": rms(root=lambda mean, eps: 1 / (mean + F32(eps))),
    "mean over the padded width": rms(mean=lambda total, cols: total / F32(padded(cols))),
    "mean over cols - 1": rms(mean=lambda total, cols: total / F32(cols - 1)),
    "last element of the sum dropped": rms(total=without_last(lanes)),
    "neighbour read past the tail": rms(total=with_neighbour(lanes)),
    "16-bit accumulation": lambda x, *a, **k: right.rmsnorm(
        x, *a, total=partial(narrow_total, dtype=x.dtype.name), **k
    ),
    "truncated": rms(store=cut_store),
    "mean subtracted": inputs(x=lambda x: x - x.astype(F32).mean(axis=1, keepdims=True).astype(x.dtype))(right.rmsnorm),
    "weight left out": inputs(weight=np.ones_like)(right.rmsnorm),
    "weight off by one": inputs(weight=next_to)(right.rmsnorm),
    "weight plus one": inputs(weight=lambda w: w + np.ones_like(w))(right.rmsnorm),
    "weight in 16 bits": inputs(weight=lambda w: w.astype(scalar("bfloat16")).astype(w.dtype))(right.rmsnorm),
    "rounded before the weight": y_rounded_twice,
    "rows exchanged": outputs(rows_exchanged)(right.rmsnorm),
    "residual ignored": inputs(residual=np.zeros_like)(right.rmsnorm),
    "norm of the sum before rounding": rms(add=lambda x, residual: x.astype(F32) + residual.astype(F32)),
}


def bwd(**steps):
    return partial(right.rmsnorm_backward, **steps)


RMSNORM_BACKWARD = {
    **everywhere(right.rmsnorm_backward),
    "dy returned": lambda dy, x, weight, rstd: (dy.copy(), right.rmsnorm_backward(dy, x, weight, rstd)[1]),
    "rank-one part left out": bwd(combine=lambda g, hat, c: g),
    "rank-one part added": bwd(combine=lambda g, hat, c: g + hat * c),
    "mean is the sum": bwd(mean=lambda total, cols: total),
    "mean over the padded width": bwd(mean=lambda total, cols: total / F32(padded(cols))),
    "last element of the row's sum dropped": bwd(total=without_last(lanes)),
    "neighbour read past the tail": bwd(total=with_neighbour(lanes)),
    "16-bit row sum": lambda dy, x, **k: right.rmsnorm_backward(
        dy, x, total=partial(narrow_total, dtype=x.dtype.name), **k
    ),
    "last row of dweight dropped": bwd(down=without_last(right.chunks)),
    "last block of dweight dropped": bwd(down=lambda t: right.chunks(t[:, : t.shape[1] // 4 * 4])),
    "16-bit dweight accumulation": lambda dy, x, **k: right.rmsnorm_backward(
        dy, x, down=partial(narrow_total, dtype=x.dtype.name), **k
    ),
    "truncated": bwd(store=cut_store),
    "weight left out of dx": lambda dy, x, weight, rstd: right.rmsnorm_backward(dy, x, np.ones_like(weight), rstd),
    "weight off by one": inputs(weight=next_to)(right.rmsnorm_backward),
    "weight in dweight": lambda dy, x, weight, rstd: (
        right.rmsnorm_backward(dy, x, weight, rstd)[0],
        right.rmsnorm_backward((dy.astype(F32) * weight.astype(F32)).astype(dy.dtype), x, weight, rstd)[1],
    ),
    "dy and x exchanged": lambda dy, x, weight, rstd: right.rmsnorm_backward(x, dy, weight, rstd),
    "rstd in 16 bits": inputs(rstd=lambda r: r.astype(scalar("bfloat16")).astype(F32))(right.rmsnorm_backward),
    "rstd of another row": inputs(rstd=rows_exchanged)(right.rmsnorm_backward),
    "rstd twice": inputs(rstd=lambda r: r * r)(right.rmsnorm_backward),
    "rows exchanged": outputs(rows_exchanged)(right.rmsnorm_backward),
}

# Matmul


def mm(product=None, **steps):
    """A right matmul with a product, for all dtypes, or another step gone wrong."""
    products = {} if product is None else {"product": product, "single": product}
    return partial(right.matmul, **products, **steps)


def next_k(a, b):
    """K rounded up to 8 with what lies behind: the next rows' first elements."""
    more = -a.shape[1] % 8
    return a @ b + np.roll(a, -1, axis=0)[:, :more] @ np.roll(b, -1, axis=1)[:more]


def only_last_chunk(a, b):
    """The accumulator cleared for every 64 of K."""
    start = max(0, a.shape[1] - 1) // 64 * 64
    return a[:, start:] @ b[start:]


def activations(gelu=right.gelu, gelu_tanh=right.gelu_tanh):
    return {None: lambda z: z, "gelu": gelu, "gelu_tanh": gelu_tanh}


def rounded_early(**call):
    """Rounded to 16 bits before bias and activation."""
    kind = narrow(call["a"].dtype.name)
    return mm(lambda a, b: (a @ b).astype(kind).astype(F32))(**call)


def activation_first(bias=None, activation=None, out_dtype=None, **call):
    z = right.matmul(**call, activation=activation, out_dtype="float32")
    return store(z if bias is None else z + bias.astype(F32), out_dtype or call["a"].dtype.name)


def narrow_out(**call):
    out = right.matmul(**call)
    return out.astype(narrow(call["a"].dtype.name)).astype(out.dtype)


MATMUL = {
    **everywhere(right.matmul),
    "a returned": lambda **call: np.resize(call["a"], (o := right.matmul(**call)).shape).astype(o.dtype),
    "last of K dropped": mm(lambda a, b: a[:, :-1] @ b[:-1]),
    "neighbour read past K": mm(next_k),
    "K tail of 16 skipped": mm(lambda a, b: a[:, : a.shape[1] // 16 * 16] @ b[: a.shape[1] // 16 * 16]),
    "accumulator not cleared": mm(lambda a, b: a @ b + 1),
    "accumulator cleared for every 64 of K": mm(only_last_chunk),
    "16-bit accumulation": lambda **call: mm(partial(narrow_product, dtype=call["a"].dtype.name))(**call),
    "truncated": mm(store=cut_store),
    "rounded to 16 bits before the epilogue": rounded_early,
    "rounded to 16 bits at the end": narrow_out,
    "TF32 for IEEE": mm(single=lambda a, b: right.tf32(np.ascontiguousarray(a)) @ right.tf32(np.ascontiguousarray(b))),
    "inputs in 8 bits of mantissa": mm(
        lambda a, b: a.astype(scalar("bfloat16")).astype(F32) @ b.astype(scalar("bfloat16")).astype(F32)
    ),
    "transposed": outputs(transposed)(right.matmul),
    "rows exchanged": outputs(rows_exchanged)(right.matmul),
    "columns off by one": outputs(next_to)(right.matmul),
    "bias left out": mm(add=lambda z, bias: z),
    "bias twice": mm(add=lambda z, bias: z + bias + bias),
    "bias off by one": inputs(bias=next_to)(right.matmul),
    "tanh GELU for erf": mm(activations=activations(gelu=right.gelu_tanh)),
    "erf GELU for tanh": mm(activations=activations(gelu_tanh=right.gelu)),
    "activation left out": mm(activations=activations(lambda z: z, lambda z: z)),
    "activation before the bias": activation_first,
}

# Attention


def heads(**steps):
    return partial(right.attention, **steps)


def hide_by(offset):
    """The mask moved by some keys."""

    def hide(s, start, causal):
        seen = np.arange(s.shape[0])[:, None] + offset >= start + np.arange(s.shape[1])
        return np.where(seen, s, F32(-np.inf)) if causal else s

    return hide


def hide_last_of_tail(s, start, causal):
    """A tile of fewer than 64 keys takes its last for one past the end."""
    last = s.shape[1] - (s.shape[1] < 64)
    return np.where(np.arange(s.shape[1]) < last, right.hide(s, start, causal), F32(-np.inf))


def hide_with_sentinel(s, start, causal):
    """A finite number for minus infinity."""
    seen = np.arange(s.shape[0])[:, None] >= start + np.arange(s.shape[1])
    return np.where(seen, s, F32(-1e4)) if causal else s


def narrow_keep(of):
    """The running o or l (which has width 1) in 16 bits."""

    def attention(**call):
        narrowed = lambda x: x.astype(call["q"].dtype).astype(F32)
        return right.attention(**call, keep=lambda x: narrowed(x) if (x.shape[1] == 1) == (of == "l") else x)

    return attention


@by_head
def rounded_before_the_sum(q, k, v, causal, scale):
    """l from the P that the second product gets."""
    s = right.hide(q.astype(F32) @ k.astype(F32).T * scale, 0, causal)
    m = s.max(axis=1, keepdims=True)
    p = right.round_p(np.exp(s - m), q.dtype)
    l = right.chunks(p)[:, None]
    return p @ v.astype(F32) / l, (m + np.log(l))[:, 0]


@by_head
def without_maximum(q, k, v, causal, scale):
    p = np.exp(right.hide(q.astype(F32) @ k.astype(F32).T * scale, 0, causal))
    l = right.chunks(p)[:, None]
    return right.round_p(p, q.dtype) @ v.astype(F32) / l, np.log(l)[:, 0]


@by_head
def tail_keys_counted(q, k, v, causal, scale):
    """Keys up to a multiple of 64 are 0, and count with a score of 0 where there is no causal mask."""
    more = [(0, -len(k) % 64), (0, 0)]
    out, lse = right.attention(
        *(np.pad(x, more)[None, None] for x in (q, k, v)), causal=causal, scale=scale, return_lse=True
    )
    return out[0, 0, : len(q)].astype(F32), lse[0, 0, : len(q)]


def layout_ignored(**call):
    return right.attention(**{**call, "layout": "bhsd"})


def only_out(change):
    """``change`` applied to out, not to lse."""

    def changed(**call):
        found = right.attention(**call)
        return (change(found[0]), *found[1:]) if isinstance(found, tuple) else change(found)

    return changed


ATTENTION = {
    **everywhere(right.attention),
    "v returned": lambda **call: (call["v"].copy(), right.attention(**call)[1]),
    "causal mask ignored": heads(hide=lambda s, start, causal: s),
    "causal mask off by one, a key too many": heads(hide=hide_by(1)),
    "causal mask off by one, a key too few": heads(hide=hide_by(-1)),
    "masked with -1e4": heads(hide=hide_with_sentinel),
    "tail keys counted": tail_keys_counted,
    "last key of the tail dropped": heads(hide=hide_last_of_tail),
    "online rescale forgotten": heads(rescale=lambda x, factor: x),
    "online rescale of o forgotten": heads(rescale=lambda x, factor: x * factor if x.shape[1] == 1 else x),
    "maximum not subtracted": without_maximum,
    "scale left out": heads(scores=lambda s, scale: s),
    "scale applied twice": heads(scores=lambda s, scale: s * scale * scale),
    "scores rounded to 16 bits": lambda **call: right.attention(
        **call, scores=lambda s, scale: (s * scale).astype(call["q"].dtype).astype(F32)
    ),
    "P rounded before the sum": rounded_before_the_sum,
    "P truncated": heads(round_p=lambda p, dtype: cut_store(p, dtype.name).astype(F32)),
    "P in 8 bits": heads(round_p=lambda p, dtype: right.cut(p.astype(np.float64), 4).astype(F32)),
    "o in 16 bits": narrow_keep("o"),
    "l in 16 bits": narrow_keep("l"),
    "truncated": heads(store=cut_store),
    "log-sum-exp in base 2": heads(log=lambda m, l: m * LOG2_E + np.log2(l)),
    "log-sum-exp without the maximum": heads(log=lambda m, l: np.log(l)),
    "layout ignored": layout_ignored,
    "values off by one": inputs(v=lambda v: np.roll(v, 1, axis=-1))(right.attention),
    "queries exchanged": only_out(lambda out: np.flip(out, axis=(1, 2))),
}

WRONG: Mapping[str, Mapping[str, Callable]] = {
    "vector_add": VECTOR_ADD,
    "softmax": SOFTMAX,
    "rmsnorm": RMSNORM,
    "rmsnorm_backward": RMSNORM_BACKWARD,
    "matmul": MATMUL,
    "attention": ATTENTION,
}

_NOTHING_LEFT = "float32 arithmetic ends in float32: no rounding is left to be done wrong"
_ALL_OF_IT = "bfloat16 has 8 bits of mantissa: nothing is lost"

UNSEEN: Mapping[str, Mapping[tuple[str, str], str]] = {
    "vector_add": {
        ("8 bits of mantissa", "bfloat16"): _ALL_OF_IT,
        ("inputs in 8 bits of mantissa", "bfloat16"): _ALL_OF_IT,
    },
    "softmax": {("truncated", "float32"): _NOTHING_LEFT},
    "rmsnorm": {
        ("truncated", "float32"): _NOTHING_LEFT,
        ("norm of the sum before rounding", "float32"): "the sum of two float32 is rounded as it is computed",
    },
    "rmsnorm_backward": {("truncated", "float32"): _NOTHING_LEFT},
    "matmul": {
        ("truncated", "float32"): _NOTHING_LEFT,
        ("inputs in 8 bits of mantissa", "bfloat16"): _ALL_OF_IT,
        ("TF32 for IEEE", "float16"): "TF32 holds every float16",
        ("TF32 for IEEE", "bfloat16"): "TF32 holds every bfloat16",
    },
}
