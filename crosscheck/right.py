"""Right implementations in NumPy, as kernels go about it: float32 throughout, in several orders, tiles and splits.

They show that the bounds leave a right kernel room. Each operator is one function here whose steps (how a row is
summed, how a product accumulates, how a result is stored) are arguments, so that ``crosscheck.wrong`` can put a
wrong step in the place of one of them.
"""

from functools import partial
from typing import Callable, Mapping

import numpy as np

from reference.contract import CHAIN, scalar
from reference.matmul import erfc

F32 = np.float32
LOG2_E = F32(1 / np.log(2))


# Sums of float32 along the last axis, no chain longer than CHAIN.


def sequential(x: np.ndarray) -> np.ndarray:
    """One chain."""
    return np.add.accumulate(x, axis=-1, dtype=F32)[..., -1] if x.shape[-1] else np.zeros(x.shape[:-1], F32)


def fold(x: np.ndarray, width: int) -> np.ndarray:
    """(..., n) as (..., n / width, width), padded with zeros."""
    pad = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % width)]
    return np.pad(x, pad).reshape(*x.shape[:-1], -(-x.shape[-1] // width), width)


def chunks(x: np.ndarray) -> np.ndarray:
    """Chains of CHAIN neighbours, their sums in chains in turn: one thread that keeps to the contract."""
    while x.shape[-1] > CHAIN:
        x = sequential(fold(x, CHAIN))
    return sequential(x)


def lanes(x: np.ndarray, count: int = 128) -> np.ndarray:
    """Every count-th element to one thread, threads by a tree: a block."""
    return tree(chunks(fold(x, count).swapaxes(-1, -2)))


def tree(x: np.ndarray) -> np.ndarray:
    """Halves added to halves."""
    while x.shape[-1] > 1:
        x = sequential(fold(x, 2)) if x.shape[-1] % 2 else x[..., ::2] + x[..., 1::2]
    return x[..., 0] if x.shape[-1] else np.zeros(x.shape[:-1], F32)


def exp_by_2(x: np.ndarray) -> np.ndarray:
    """exp through exp2, as the hardware has it: off by 2 units in the last place, either way, but exact at 0."""
    e = np.exp2(x * LOG2_E)
    off = np.where(e.view(np.uint32) & 1, F32(1 + 2.0**-22), F32(1 - 2.0**-22))
    return np.where(x == 0, F32(1), e * off)


def store(value: np.ndarray, dtype: str) -> np.ndarray:
    """Round once."""
    return value.astype(scalar(dtype))


# Vector add


def vector_add(x, y, *, store=store):
    return store(x.astype(F32) + y.astype(F32), x.dtype.name)


def add_in_double(x, y):
    return (x.astype(np.float64) + y.astype(np.float64)).astype(F32).astype(x.dtype)


# Softmax


def softmax(x, *, total=lanes, exp=np.exp, maximum=lambda row: row.max(axis=1, keepdims=True), store=store):
    row = x.astype(F32)  # (rows, cols)
    e = exp(row - maximum(row))
    return store(e / total(e)[:, None], x.dtype.name)


def softmax_online(x, *, tile=128, exp=np.exp, rescale=lambda l, factor: l * factor):
    """Two passes over a row in tiles; the first keeps a maximum and a sum under it."""
    row = x.astype(F32)
    m, l = np.full((len(x), 1), -np.inf, F32), np.zeros((len(x), 1), F32)
    for start in range(0, x.shape[1], tile):
        part = row[:, start : start + tile]
        before, m = m, np.maximum(m, part.max(axis=1, keepdims=True))
        held = np.where(m == -np.inf, F32(0), m)
        l = rescale(l, exp(before - held)) + lanes(exp(part - held))[:, None]
    return store(exp(row - m) / l, x.dtype.name)


# RMSNorm


def rmsnorm(
    x, weight, eps, residual=None, return_rstd=False, *,
    total=lanes, mean=lambda total, cols: total / F32(cols), root=lambda mean, eps: 1 / np.sqrt(mean + F32(eps)),
    add=lambda x, residual: store(x.astype(F32) + residual.astype(F32), x.dtype.name).astype(F32), store=store,
):  # fmt: skip
    row = x.astype(F32) if residual is None else add(x, residual)
    rstd = root(mean(total(row * row), x.shape[1]), eps)
    y = row * rstd[:, None] * weight.astype(F32)
    sums = () if residual is None else (store(row, x.dtype.name),)
    found = (store(y, x.dtype.name), *sums, *((rstd,) if return_rstd else ()))
    return found if len(found) > 1 else found[0]


def rmsnorm_backward(
    dy, x, weight, rstd, *,
    total=lanes, mean=lambda total, cols: total / F32(cols), down=chunks, combine=lambda g, hat, c: g - hat * c,
    store=store,
):  # fmt: skip
    hat, up, scale = x.astype(F32) * rstd[:, None], dy.astype(F32), rstd[:, None]
    g = up * weight.astype(F32)
    c = mean(total(g * hat), x.shape[1])[:, None]
    return store(scale * combine(g, hat, c), x.dtype.name), store(down((up * hat).T), weight.dtype.name)


def normalised_last(dy, x, weight, rstd):
    """The same gradients with rstd taken out of the sum over a row, rows in blocks of 32 by a tree."""
    row, up, scale = x.astype(F32), dy.astype(F32), rstd[:, None]
    g = up * weight.astype(F32)
    c = tree(g * row)[:, None] / F32(x.shape[1])
    dx = scale * g - (row * scale) * (c * scale) * scale
    dweight = chunks(tree(fold((up * row * scale).T, 32)))
    return store(dx, x.dtype.name), store(dweight, weight.dtype.name)


# Matmul: products (a (M, K), b (K, N)) -> (M, N), float32 in and out


def one_chain(a, b):
    out = np.zeros((a.shape[0], b.shape[1]), F32)
    for k in range(a.shape[1]):
        out += a[:, k, None] * b[k]
    return out


def splits(a, b, count=4):
    """K dealt out to several chains, added at the end."""
    return sum((one_chain(a[:, i::count], b[i::count]) for i in range(count)), np.zeros((1, 1), F32))


def library(a, b):
    return a @ b


def tensor_core(a, b, step=16):
    """Products and accumulator aligned to the largest, each cut to 2 bits more than float32's, then their sum cut."""
    out = np.zeros((a.shape[0], b.shape[1]))
    a, b = a.astype(np.float64), b.astype(np.float64)
    for k in range(0, a.shape[1], step):
        terms = a[:, k : k + step].T[:, :, None] * b[k : k + step, None, :]  # (step, M, N)
        terms = np.concatenate([terms, out[None]])
        _, exponent = np.frexp(np.abs(terms).max(axis=0))
        out = cut(np.trunc(np.ldexp(terms, 26 - exponent)).sum(axis=0), 24)
        out = np.ldexp(out, exponent - 26)
    return out.astype(F32)


def cut(x, bits):
    """Float64 cut to so many bits of mantissa, towards zero."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.trunc(np.ldexp(mantissa, bits)), exponent - bits)


def tf32(x):
    """float32 cut to 10 bits of mantissa beside the hidden one."""
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(F32)


def gelu(z):
    erf = (1 - erfc((z * F32(np.sqrt(0.5))).astype(np.float64))).astype(F32)
    return F32(0.5) * z * (1 + erf)


def gelu_tanh(z):
    return F32(0.5) * z * (1 + np.tanh(F32(np.sqrt(2 / np.pi)) * (z + F32(0.044715) * z * z * z)))


def gelu_by_exp2(z):
    """The tanh form as z over 1 + exp(-2t)."""
    t = F32(np.sqrt(2 / np.pi)) * (z + F32(0.044715) * z * z * z)
    return z / (1 + exp_by_2(-2 * t))


ACTIVATIONS = {None: lambda z: z, "gelu": gelu, "gelu_tanh": gelu_tanh}


def matmul(
    a, b, transpose_a=False, transpose_b=False, bias=None, activation=None, out_dtype=None, precision="ieee", *,
    product=one_chain, single=one_chain, add=lambda z, bias: z + bias, activations=ACTIVATIONS, store=store,
):  # fmt: skip
    """product: for 16 bits and TF32, single: for IEEE float32."""
    left, right = a.astype(F32), b.astype(F32)
    left, right = left.T if transpose_a else left, right.T if transpose_b else right
    if precision == "tf32":
        z = product(tf32(np.ascontiguousarray(left)), tf32(np.ascontiguousarray(right)))
    else:
        z = (single if a.dtype == F32 else product)(left, right)
    if bias is not None:
        z = add(z, bias.astype(F32))
    return store(activations[activation](z), out_dtype or a.dtype.name)


# Attention


def by_head(one_head: Callable) -> Callable:
    """An attention from a function of one head's q, k, v (sequence, head_dim) -> out, lse, in float32."""

    def attention(q, k, v, *, causal, scale=None, layout="bhsd", return_lse=False, store=store, **steps):
        if layout == "bshd":
            q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        scale = F32(q.shape[3] ** -0.5 if scale is None else scale)
        out, lse = np.zeros(q.shape, F32), np.zeros(q.shape[:3], F32)
        for head in np.ndindex(q.shape[:2]):
            out[head], lse[head] = one_head(*(x[head] for x in (q, k, v)), causal, scale, **steps)
        out = store(out, q.dtype.name)
        out = out.swapaxes(1, 2) if layout == "bshd" else out
        return (out, lse) if return_lse else out

    return attention


def hide(s, start, causal):
    """Scores (queries, keys), the keys from start on, with those that causal queries do not see at -inf."""
    seen = np.arange(s.shape[0])[:, None] >= start + np.arange(s.shape[1])
    return np.where(seen, s, F32(-np.inf)) if causal else s


def round_p(p, dtype):
    return p.astype(dtype).astype(F32)


@by_head
def attention(
    q, k, v, causal, scale, *, tile=64, exp=np.exp, product=library, scores=lambda s, scale: s * scale, hide=hide,
    total=lanes, round_p=round_p, rescale=lambda x, factor: x * factor, keep=lambda x: x,
    log=lambda m, l: m + np.log(l),
):  # fmt: skip
    """Keys tile by tile under a running maximum. keep: how o and l are held between tiles."""
    dtype = q.dtype
    q, k, v = (x.astype(F32) for x in (q, k, v))
    m, l, o = np.full((len(q), 1), -np.inf, F32), np.zeros((len(q), 1), F32), np.zeros_like(q)
    for start in range(0, len(k), tile):
        s = hide(scores(product(q, k[start : start + tile].T), scale), start, causal)  # (sequence, tile)
        before, m = m, np.maximum(m, s.max(axis=1, keepdims=True))
        p = exp(s - m)
        factor = exp(before - m)
        l = keep(rescale(l, factor) + total(p)[:, None])
        o = keep(rescale(o, factor) + product(round_p(p, dtype), v[start : start + tile]))
    return o / l, log(m, l)[:, 0]


@by_head
def attention_in_base_2(q, k, v, causal, scale, *, tile=128, product=tensor_core):
    """log2 e folded into the scale, keys from the last tile to the first, rescaled only where the maximum grew by 8."""
    dtype = q.dtype
    q, k, v = (x.astype(F32) for x in (q, k, v))
    factor = scale * LOG2_E
    m, l, o = np.full((len(q), 1), -np.inf, F32), np.zeros((len(q), 1), F32), np.zeros_like(q)
    for start in reversed(range(0, len(k), tile)):
        s = hide(product(q, k[start : start + tile].T) * factor, start, causal)
        high = s.max(axis=1, keepdims=True)
        before, m = m, np.where(~(high <= m + 8), high, m)
        held = np.where(m == -np.inf, F32(0), m)
        p = np.exp2(s - held)
        l = l * np.exp2(before - held) + chunks(p)[:, None]
        o = o * np.exp2(before - held) + product(round_p(p, dtype), v[start : start + tile])
    return o / l, ((m + np.log2(l)) * F32(np.log(2)))[:, 0]


@by_head
def attention_materialised(q, k, v, causal, scale):
    """Whole rows of scores, one chain for each product."""
    s = hide(one_chain(q.astype(F32), k.astype(F32).T) * scale, 0, causal)
    m = s.max(axis=1, keepdims=True)
    p = np.exp(s - m)
    l = chunks(p)[:, None]
    return one_chain(round_p(p, q.dtype), v.astype(F32)) / l, (m + np.log(l))[:, 0]


RIGHT: Mapping[str, Mapping[str, Callable]] = {
    "vector_add": {"float32": vector_add, "float64, then float32": add_in_double},
    "softmax": {
        "128 lanes": softmax,
        "chains of 256": partial(softmax, total=chunks),
        "tree, approximate exp2": partial(softmax, total=tree, exp=exp_by_2),
        "online, tiles of 128": softmax_online,
        "online, tiles of 32, approximate exp2": partial(softmax_online, tile=32, exp=exp_by_2),
    },
    "rmsnorm": {
        "128 lanes": rmsnorm,
        "chains of 256": partial(rmsnorm, total=chunks),
        "tree, approximate rsqrt": partial(
            rmsnorm, total=tree, root=lambda mean, eps: F32(1 + 2.0**-22) / np.sqrt(mean + F32(eps))
        ),
        "32 lanes": partial(rmsnorm, total=partial(lanes, count=32)),
    },
    "rmsnorm_backward": {
        "128 lanes, chains down": rmsnorm_backward,
        "chains of 256, 32 lanes down": partial(rmsnorm_backward, total=chunks, down=partial(lanes, count=32)),
        "normalised last, trees": normalised_last,
    },
    "matmul": {
        "one chain": matmul,
        "4 splits of K": partial(matmul, product=splits, single=splits),
        "library, tanh by exp2": partial(
            matmul, product=library, single=library, activations=ACTIVATIONS | {"gelu_tanh": gelu_by_exp2}
        ),
        "tensor core, steps of 16": partial(matmul, product=tensor_core, single=partial(splits, count=2)),
        "tensor core, steps of 8": partial(
            matmul, product=partial(tensor_core, step=8), single=partial(splits, count=8)
        ),
    },
    "attention": {
        "tiles of 64": attention,
        "tiles of 32, approximate exp2": partial(attention, tile=32, exp=exp_by_2),
        "tiles of 128, tensor core": partial(attention, tile=128, product=tensor_core),
        "base 2, lazy rescale, tensor core": attention_in_base_2,
        "materialised": attention_materialised,
    },
}
