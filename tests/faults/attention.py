"""Faults put into the real kernels of attention; each has to come out of the check as a ``fail``."""

from crosscheck.faults import Fault, part

MMA, ROWS, STATE = "cuda/attention/4_mma.cu", "cuda/include/attention_rows.cuh", "cuda/include/attention.cuh"

CAUSAL = ("attention-float16-1x1x257x64-causal-lse",)
FULL = ("attention-bfloat16-2x1x128x128-full-lse-one_sided",)
TAIL = ("attention-float16-1x1x100x64-full-scale0.5-lse-constant",)
GROWING = ("attention-float16-1x3x65x128-causal-bshd-lse-sorted",)
HIDDEN_NAN = ("attention-float16-1x1x129x64-causal-lse-nan_keys",)


def cuda(name, file, text, replacement, cases, by=("bound",), tiers=("cpu", "gpu"), variant="4_mma"):
    return Fault("cuda", name, file, text, replacement, by, cases, tiers, variant)


TRITON = "triton_impl/attention.py"
F16_FULL = ("attention-float16-2x1x128x64-full-lse-one_sided",)
F16_TAIL = ("attention-float16-1x1x100x64-full-scale0.5-lse-constant",)
TWO_HEADS = ("attention-float16-1x2x129x64-full-bshd-lse-outliers",)
SHIFTED = ("attention-float16-1x1x127x64-causal-lse-logits",)


def triton(name, text, replacement, cases, by=("bound",)):
    return Fault("triton", name, TRITON, text, replacement, by, cases)


TRITON_FAULTS = (
    triton("sums not scaled down under a new maximum", "        sums = sums * factor[:, None]\n", "", CAUSAL),
    triton(
        "sum of the exponentials not scaled down", "l * factor + tl.sum(p, axis=1)", "l + tl.sum(p, axis=1)", CAUSAL
    ),
    triton("mask off by one", "key[None, :] <= query[:, None]", "key[None, :] < query[:, None]", CAUSAL),
    triton("keys past the end seen", "(key < head[2])[None, :]", "(key >= 0)[None, :]", F16_TAIL),
    triton(
        "tile on the diagonal skipped",
        "head, whole, stop, scale",
        "head, stop, stop, scale",
        CAUSAL,
    ),
    triton("no mask on the diagonal", "CAUSAL, True, BY_TMA", "CAUSAL, False, BY_TMA", CAUSAL),
    triton("scale twice", "tl.exp2((m - top) * scale)", "tl.exp2((m - top) * scale * scale)", CAUSAL),
    triton("log-sum-exp in base 2", " * 0.6931471805599453", "", F16_FULL),
    triton("P rounded before its sum", "tl.sum(p, axis=1)", "tl.sum(p.to(q.dtype).to(tl.float32), axis=1)", F16_FULL),
    triton("scores in 16 bits", "s = tl.dot(q, keys.T)", "s = tl.dot(q, keys.T).to(q.dtype).to(tl.float32)", SHIFTED),
    triton(
        "hidden keys kept as small numbers",
        'tl.where(seen, s, float("-inf"))',
        "s + tl.where(seen, 0.0, -1e30)",
        HIDDEN_NAN,
    ),
    triton(
        "heads of a group counted with its tail",
        "first + within % height",
        "first + within % GROUP",
        TWO_HEADS,
        ("bound", "unwritten elements", "crash", "guard bands"),
    ),
)


PALLAS = "pallas_impl/attention.py"


def pallas(name, text, replacement, cases, by=("bound",), tiers=("cpu", "gpu"), variant=None):
    return Fault("pallas", name, PALLAS, text, replacement, by, cases, tiers, variant)


PALLAS_FAULTS = (
    pallas("sums not scaled down under a new maximum", "        sums *= along(factor, sums.shape)\n", "", CAUSAL),
    pallas("mask off by one", "seen &= key <= self.first", "seen &= key < self.first", CAUSAL),
    pallas("keys past the end seen", "seen = key < problem.sequence", "seen = key >= 0", TAIL),
    pallas(
        "no mask on the diagonal",
        "functools.partial(take, masked=True)",
        "functools.partial(take, masked=False)",
        CAUSAL,
    ),
    pallas(
        "the first query's mask for all", "self.first + me * QUERIES + place(0)", "self.first + me * QUERIES", CAUSAL
    ),
    pallas(
        "scale twice",
        "along(top * problem.scale, s.shape)",
        "along(top * problem.scale * problem.scale, s.shape)",
        CAUSAL,
    ),
    pallas("log-sum-exp in base 2", "self.problem.scale * math.log(2)", "self.problem.scale", FULL),
    pallas(
        "P rounded before its sum",
        "jnp.sum(p, axis=1)",
        "jnp.sum(p.astype(self.values.dtype).astype(jnp.float32), axis=1)",
        FULL,
    ),
    pallas(
        "hidden keys kept as small numbers",
        "jnp.where(seen, s, -jnp.inf)",
        "s + jnp.where(seen, 0.0, -1e30)",
        HIDDEN_NAN,
    ),
    pallas(
        "the first head's lse for all",
        "self.lse.at[self.batch, self.head,",
        "self.lse.at[self.batch, 0,",
        TWO_HEADS,
        ("bound", "unwritten elements", "race detector"),
    ),
    pallas(
        "values fetched over while they are read",
        "            for source, empty in zip(sources, emptied):\n",
        "            for source, empty in zip(sources, (keys_read, keys_read)):\n",
        CAUSAL,
        ("race detector", "bound", "timeout", "error"),
        ("cpu",),
    ),
)


CUDA_FAULTS = (
    cuda(
        "sums not scaled down under a new maximum",
        MMA,
        "                sums[d][2 * half] *= factor;\n",
        "",
        CAUSAL,
    ),
    cuda("mask off by one", STATE, "key <= query", "key < query", CAUSAL),
    cuda("keys past the end seen", STATE, "key < sequence && ", "", TAIL),
    cuda("diagonal tile skipped", MMA, "CAUSAL ? tile + 1 : tiles", "CAUSAL ? max(tile, 1) : tiles", CAUSAL),
    cuda("scale twice", STATE, "(before - finite(m)) * scale", "(before - finite(m)) * scale * scale", GROWING),
    cuda("log-sum-exp in base 2", STATE, "(m * scale + log2f(l)) * LN2", "m * scale + log2f(l)", FULL),
    cuda(
        "P rounded before its sum",
        MMA,
        "sum += pair.values[i];",
        "sum += static_cast<float>(static_cast<SCALAR>(pair.values[i]));",
        FULL,
    ),
    cuda(
        "a stage read while its copies are under way",
        MMA,
        "async_copy_wait<STAGES - 2>();",
        "async_copy_wait<STAGES - 1>();",
        FULL,
        tiers=("cpu",),
    ),
    cuda(
        "others' copies not waited for",
        MMA,
        "        __syncthreads();  // the stage is full for all, and the one before is read\n",
        "",
        FULL,
        ("bound", "host build"),
        ("cpu",),
    ),
    cuda(
        "queries' second rows masked as the first", MMA, "layout.seen(query + i / 2 * 8,", "layout.seen(query,", CAUSAL
    ),
    cuda(
        "hidden keys kept as small numbers",
        MMA,
        "seen ? scores[j][i] : Max::neutral()",
        "scores[j][i] + (seen ? 0.0f : -1e30f)",
        HIDDEN_NAN,
    ),
    cuda("values not turned", MMA, "load_matrices<true>(", "load_matrices<false>(", FULL),
    cuda(
        "a quarter of the sum of the exponentials",
        MMA,
        "states[half].l = warp_reduce<4>(states[half].l, Sum());",
        "",
        FULL,
    ),
    cuda(
        "rows past the end stored",
        MMA,
        "if (own < layout.sequence) {",
        "if (own >= 0) {",
        GROWING,
        ("bound", "guard bands", "crash"),
    ),
    cuda(
        "maximum of a query's own keys alone", ROWS, "warp_reduce<PARTS>(top, Max())", "top", CAUSAL, variant="2_tiled"
    ),
    cuda(
        "a tile overwritten while it is read",
        "cuda/attention/2_tiled.cu",
        "        __syncthreads();  // read before the next tile is written\n",
        "",
        CAUSAL,
        ("bound", "host build"),
        ("cpu",),
        variant="2_tiled",
    ),
    cuda(
        "the next tile not waited for",
        "cuda/attention/3_async.cu",
        "async_copy_wait<1>();",
        "async_copy_wait<2>();",
        CAUSAL,
        tiers=("cpu",),
        variant="3_async",
    ),
    cuda(
        "values summed over hidden keys, too",
        "cuda/attention/1_naive.cu",
        "CAUSAL ? query + 1 : layout.sequence); ++key) {\n        const SCALAR p",
        "layout.sequence - 1); ++key) {\n        const SCALAR p",
        FULL,
        variant="1_naive",
    ),
)

FAULTS = (*CUDA_FAULTS, *part("attention_hopper", "HOPPER_FAULTS"), *TRITON_FAULTS, *PALLAS_FAULTS)
