"""Faults put into attention's kernels for Hopper; each has to come out of the check as a ``fail``."""

from crosscheck.faults import Fault

SHARED, PERSISTENT, RING = (
    "cuda/include/hopper_attention.cuh",
    "cuda/attention/6_persistent.cu",
    "cuda/include/ring.cuh",
)
DEALER, LAYOUT = "cuda/include/dealer.cuh", "cuda/include/tile_layout.cuh"

CAUSAL = ("attention-float16-1x1x257x64-causal-lse",)
FULL = ("attention-bfloat16-2x1x128x128-full-lse-one_sided",)
TAIL = ("attention-float16-1x1x100x64-full-scale0.5-lse-constant",)
TWO_HEADS = ("attention-float16-1x2x129x64-full-bshd-lse-outliers",)
HIDDEN_NAN = ("attention-float16-1x1x129x64-causal-lse-nan_keys",)
ROUNDS = (
    "attention-bfloat16-4x16x257x128-causal-bshd-lse-sorted",
)  # several works a block, the ring more than once around


def hopper(name, file, text, replacement, cases, by=("bound",), tiers=("cpu", "gpu"), variant="6_persistent"):
    return Fault("cuda", f"{name}, with wgmma", file, text, replacement, by, cases, tiers, variant)


HOPPER_FAULTS = (
    hopper(
        "sums not scaled down under a new maximum",
        SHARED,
        "            sums[i] *= factors[i / 2 % 2];\n",
        "",
        CAUSAL,
    ),
    hopper("mask off by one", SHARED, "row + half * 8 + 1, sequence)", "row + half * 8, sequence)", CAUSAL),
    hopper("keys past the end seen", SHARED, ": sequence) - first;", ": sequence + TILE_K) - first;", TAIL),
    hopper(
        "diagonal tile skipped",
        SHARED,
        "(min(query + 64, sequence) + TILE_K - 1) / TILE_K",
        "max(min(query + 64, sequence) / TILE_K, 1)",
        CAUSAL,
    ),
    hopper(
        "tiles on the diagonal taken for whole",
        SHARED,
        "(CAUSAL ? min(query + 1, sequence) : sequence) / TILE_K",
        "(CAUSAL ? min(query + TILE_K, sequence) : sequence) / TILE_K",
        CAUSAL,
    ),
    hopper("scale twice", SHARED, "fmaf(scores[i + j], scale,", "fmaf(scores[i + j], scale * scale,", CAUSAL),
    hopper("log-sum-exp in base 2", SHARED, "states[half].log_sum(scale);", "states[half].log_sum(scale) / LN2;", FULL),
    hopper(
        "P rounded before its sum",
        SHARED,
        "sum[j] += scores[i + j];",
        "sum[j] += static_cast<float>(static_cast<SCALAR>(scores[i + j]));",
        FULL,
    ),
    hopper(
        "a thread's share taken for the sum of the exponentials",
        SHARED,
        "            states[half].l = warp_reduce<4>(states[half].l, Sum());\n",
        "",
        FULL,
    ),
    hopper(
        "values of the tile before kept",
        SHARED,
        "start_values(values, tile > 1);",
        "start_values(values, tile > 0);",
        ROUNDS,
    ),
    hopper(
        "a stage read before it is full",
        SHARED,
        "mbarrier_wait(ring.full + turn.stage, turn.parity);",
        "",
        ROUNDS,
        ("bound", "timeout"),
        ("gpu",),  # on a CPU copies are quicker than those who read
    ),
    hopper(
        "a stage filled before it is empty",
        SHARED,
        "        mbarrier_wait(ring.empty + turn.stage, turn.parity ^ 1);\n",
        "",
        ROUNDS,
        ("bound", "timeout", "crash", "host build"),
    ),
    hopper(
        "the parity of a ring's round stays",
        RING,
        "            parity ^= 1;\n",
        "",
        ROUNDS,
        ("bound", "timeout", "crash", "host build"),
    ),
    hopper(
        "values of the second 64 columns taken from the first",
        SHARED,
        "shared_address(ring.stage(stage)), TILE_K * 128);",
        "shared_address(ring.stage(stage)), 0);",
        FULL,
    ),
    hopper(
        "the next queries loaded over output that has not left",
        PERSISTENT,
        "                tma_store_wait<0>();  // the work before has left its place\n",
        "",
        ROUNDS,
        ("bound", "timeout", "host build"),
        ("cpu",),  # on a GPU the copy is nearly always quicker
    ),
    hopper(
        "a group's last round not dealt",
        DEALER,
        "(heads + group - 1) / group * turns",
        "(heads + group - 1) / group * turns - 1",
        CAUSAL,
        ("unwritten elements",),
    ),
    hopper(
        "output of the first head stored for all",
        SHARED,
        "work.query + consumer * 64 + warp_row, work.head,",
        "work.query + consumer * 64 + warp_row, 0,",
        TWO_HEADS,
        ("unwritten elements",),
    ),
    hopper(
        "hidden keys kept as small numbers",
        SHARED,
        "scores[j] = wgmma_col(0, j) < seen ? scores[j] : Max::neutral();",
        "scores[j] += wgmma_col(0, j) < seen ? 0.0f : -1e30f;",
        HIDDEN_NAN,
    ),
    hopper(
        "half a step along the keys",
        LAYOUT,
        "32 / sizeof(T) * 128) >> 4",
        "32 / sizeof(T) * 64) >> 4",
        FULL,
    ),
)  # fmt: skip
