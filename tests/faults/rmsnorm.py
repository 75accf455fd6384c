"""Faults put into the real RMSNorm kernels; each has to come out of the check as a ``fail``."""

from crosscheck.faults import Fault

BEST = "cuda/rmsnorm/5_persistent.cu"
TAILS = ("rmsnorm-float32-3x1025-rstd", "rmsnorm-bfloat16-5x129-rstd-one_sided")

FAULTS = (
    Fault(
        "cuda",
        "tail unmasked",
        BEST,
        "            if (row < rows && at < vectors) {\n                Vector<float, VECTOR> value",
        "            if (row < rows) {\n                Vector<float, VECTOR> value",
        ("guard bands", "bound"),
        TAILS,
    ),
    Fault(
        "cuda",
        "neighbour's fill value",  # that of a maximum, not of a sum
        BEST,
        "v[i] = inside ? reinterpret_cast<const Vec*>(x + start)[at] : Vec();",
        "v[i] = inside ? reinterpret_cast<const Vec*>(x + start)[at] : filled<SCALAR, VECTOR>(Max::neutral());",
        ("bound",),
        TAILS,
    ),
    Fault(
        "cuda",
        "missing barrier",
        "cuda/include/reduce.cuh",
        "        __syncthreads();\n",
        "",
        ("bound",),
        ("rmsnorm-float32-3x2049-residual-rstd-constant", "rmsnorm-float32-3x1025-rstd"),
    ),
    Fault(
        "cuda",
        "eps omitted",
        BEST,
        "rsqrtf(squares / cols + eps)",
        "rsqrtf(squares / cols)",
        ("bound",),
        ("rmsnorm-float32-3x33-rstd-zeros", "rmsnorm-float32-5x129-residual-tiny"),
    ),
    Fault(
        "cuda",
        "mean over the padded row",
        BEST,
        "rsqrtf(squares / cols + eps)",
        "rsqrtf(squares / (CLUSTER * TEAM * VECTORS * VECTOR) + eps)",
        ("bound",),
        TAILS,
    ),
    Fault(
        "cuda",
        "16-bit accumulation",
        BEST,
        "part += value.values[j] * value.values[j];",
        "part = static_cast<float>(static_cast<SCALAR>(part + value.values[j] * value.values[j]));",
        ("bound",),
        ("rmsnorm-bfloat16-1x127-rstd", "rmsnorm-bfloat16-5x129-rstd-one_sided"),
    ),
    Fault(
        "cuda",
        "rstd of a block's first row alone",
        BEST,
        "first == 0) {",
        "threadIdx.x == 0) {",
        ("unwritten elements",),
        ("rmsnorm-float32-3x33-rstd-zeros",),
    ),
    Fault(
        "cuda",
        "weight of the neighbouring vector",
        BEST,
        "reinterpret_cast<const Weights*>(weight)[at] : Weights()",
        "reinterpret_cast<const Weights*>(weight)[at ^ 1] : Weights()",
        ("bound",),
        ("rmsnorm-float32-4x128-large",),
    ),
)
