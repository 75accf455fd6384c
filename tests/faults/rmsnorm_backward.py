"""Faults put into the real kernels of RMSNorm's backward pass; each has to come out of the check as a ``fail``."""

from crosscheck.faults import Fault

ROWS = "cuda/include/rmsnorm_backward.cuh"
COOPERATIVE = "cuda/rmsnorm/backward_3_cooperative.cu"
TAILS = ("rmsnorm_backward-float32-3x1025", "rmsnorm_backward-float32-9x257-one_sided")
MANY = ("rmsnorm_backward-float32-18x2049-constant", "rmsnorm_backward-float32-3x1025")

FAULTS = (
    Fault(
        "cuda",
        "tail unmasked",
        ROWS,
        "            if (row < rows && at < vectors) {",
        "            if (row < rows) {",
        ("guard bands", "bound"),
        TAILS,
    ),
    Fault(
        "cuda",
        "missing barrier",
        "cuda/include/reduce.cuh",
        "        __syncthreads();\n",
        "",
        ("bound",),
        MANY,
    ),
    Fault(
        "cuda",
        "missing grid sync",
        COOPERATIVE,
        "    cooperative_groups::this_grid().sync();\n",
        "",
        ("bound",),
        MANY,
    ),
    Fault(
        "cuda",
        "dweight missing its last block",
        COOPERATIVE,
        "(partials, dweight, count, cols,",
        "(partials, dweight, count - 1, cols,",
        ("bound",),
        MANY,
    ),
    Fault(
        "cuda",
        "dweight missing a block's last row",
        ROWS,
        "team < TEAMS; ++team",
        "team < TEAMS - 1; ++team",
        ("bound",),
        ("rmsnorm_backward-float32-16x128-large", "rmsnorm_backward-bfloat16-19x128-weight32-constant"),
    ),
    Fault(
        "cuda",
        "16-bit accumulation",
        ROWS,
        "sums[i].values[j] += up.values[j] * normed;",
        "sums[i].values[j] = static_cast<float>(static_cast<SCALAR>(sums[i].values[j] + up.values[j] * normed));",
        ("bound",),
        ("rmsnorm_backward-bfloat16-6x1025-weight32-tiny", "rmsnorm_backward-bfloat16-11x129-one_sided"),
    ),
    Fault(
        "cuda",
        "dx without the part of rank one",
        ROWS,
        " - normed * mean)",
        ")",
        ("bound",),
        ("rmsnorm_backward-float32-9x257-one_sided",),
    ),
    Fault(
        "cuda",
        "dweight without rstd",
        ROWS,
        "sums[i].values[j] += up.values[j] * normed;",
        "sums[i].values[j] += up.values[j] * normed / scale;",
        ("bound",),
        TAILS,
    ),
    Fault(
        "cuda",
        "copies not waited for",
        ROWS,
        "async_copy_wait<STAGES - 1>()",
        "async_copy_wait<STAGES>()",
        ("bound",),
        TAILS,
    ),
    Fault(
        "cuda",
        "rstd of the row before",
        ROWS,
        "next_scale = row + step < rows ? rstd[row + step] : 0.0f;",
        "next_scale = row + step < rows ? rstd[row] : 0.0f;",
        ("bound",),
        ("rmsnorm_backward-float32-23x1000-nan",),
    ),
)
