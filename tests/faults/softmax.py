"""Faults put into the real softmax kernels; each has to come out of the check as a ``fail``."""

from crosscheck.faults import Fault

BEST = "cuda/softmax/5_persistent.cu"
TAILS = ("softmax-float32-3x1025", "softmax-float32-5x129-one_sided")
WIDE = ("softmax-float32-133x131072", "softmax-bfloat16-131x50257")  # clusters, rows prefetched

FAULTS = (
    Fault(
        "cuda",
        "tail unmasked",
        BEST,
        "            if (row < rows && at < vectors) {\n#pragma",
        "            if (row < rows) {\n#pragma",
        ("guard bands", "bound"),
        TAILS,
    ),
    Fault(
        "cuda",
        "neighbour's fill value",  # that of a sum, not of a maximum
        BEST,
        "filled<SCALAR, VECTOR>(Max::neutral())",
        "filled<SCALAR, VECTOR>(Sum::neutral())",
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
        ("softmax-float32-3x2049-sorted", "softmax-float32-3x1025"),
    ),
    Fault(
        "cuda",
        "maximum not subtracted",
        BEST,
        "exponential(e[i].values[j] - finite(m))",
        "exponential(e[i].values[j])",
        ("bound",),
        ("softmax-float32-4x128-large",),
    ),
    Fault(
        "cuda",
        "16-bit accumulation",
        BEST,
        "part += e[i].values[j];",
        "part = static_cast<float>(static_cast<SCALAR>(part + e[i].values[j]));",
        ("bound",),
        ("softmax-bfloat16-3x127",),
    ),
    Fault(
        "cuda",
        "a row of minus infinity gives 0",
        BEST,
        "/ all.y;",
        "/ fmaxf(all.y, 1.0f);",
        ("bound",),
        ("softmax-float32-3x1000-minus_inf",),
    ),
    Fault(
        "cuda",
        "NaN lost with its sum",
        BEST,
        "/ all.y;",
        "/ (all.y == all.y ? all.y : 1.0f);",
        ("bound",),
        ("softmax-float32-1x4099-nan", "softmax-float32-3x127-plus_inf"),
    ),
    Fault(
        "cuda",
        "last vector of a thread left out of the sum",
        BEST,
        "            l += part;",
        "            l += i + 1 < VECTORS ? part : 0.0f;",
        ("bound",),
        TAILS,
    ),
    Fault(
        "cuda",
        "sums of a cluster merged without their maxima",
        BEST,
        "a.y * exponential(a.x - finite(m)) + b.y * exponential(b.x - finite(m))",
        "a.y + b.y",
        ("bound",),
        WIDE,
        ("gpu",),
    ),
    Fault(
        "cuda",
        "next row copied over the one after it",
        BEST,
        "fetch(row + STAGES * step, turn % PLACES)",
        "fetch(row + STAGES * step, (turn + 1) % PLACES)",
        ("bound",),
        ("softmax-bfloat16-4096x32768",),
        ("gpu",),
    ),
)
