"""Faults put into matmul's kernels for Hopper; each has to come out of the check as a ``fail``."""

from crosscheck.faults import Fault

TILE = "cuda/include/hopper_tile.cuh"
LAYOUT = "cuda/include/tile_layout.cuh"
CLUSTER = "cuda/matmul/10_cluster.cu"
SPLIT = "cuda/matmul/11_split.cu"

LARGE = ("matmul-bfloat16-2048x2048x2048",)  # one tile a block of clusters that share B, the ring many times around
SEVERAL = ("matmul-bfloat16-4096x4096x4096",)  # four tiles a block
SHARED = ("matmul-bfloat16-64x4096x14336", "matmul-bfloat16-16x8192x8192")  # blocks share K, as it is and swapped
GPU = ("gpu",)

HOPPER_FAULTS = (
    Fault(
        "cuda",
        "a stage read before it is full",
        TILE,
        "        mbarrier_wait(ring.full + turn.stage, turn.parity);\n        multiply_stage",
        "        multiply_stage",
        ("bound", "timeout"),
        LARGE,
        GPU,
    ),
    Fault(
        "cuda",
        "the parity of a ring's round stays",
        "cuda/include/ring.cuh",
        "            parity ^= 1;\n",
        "",
        ("bound", "timeout"),
        LARGE,
        GPU,
    ),
    Fault(
        "cuda",
        "sums of the tile before are kept",
        TILE,
        "multiply_stage(sums, ring, turn.stage, consumer, step > 0);",
        "multiply_stage(sums, ring, turn.stage, consumer, true);",
        ("bound",),
        SEVERAL,
        GPU,
    ),
    Fault(
        "cuda",
        "staged rows swizzled by 4 instead of 8",
        LAYOUT,
        "(byte ^ (row % 8 * 16))",
        "(byte ^ (row % 4 * 16))",
        ("bound",),
        LARGE,
        GPU,
    ),
    Fault(
        "cuda",
        "columns along N taken for atoms along K",
        LAYOUT,
        "K_MAJOR ? 1 : column_bytes >> 4",
        "K_MAJOR ? 1 : 1024 >> 4",
        ("bound",),
        LARGE,
        GPU,
    ),
    Fault(
        "cuda",
        "half a step along K",
        LAYOUT,
        "32 / sizeof(T) * 128) >> 4",
        "32 / sizeof(T) * 64) >> 4",
        ("bound",),
        LARGE,
        GPU,
    ),
    Fault(
        "cuda",
        "the way back of the order is one column off",
        "cuda/include/tile_order.cuh",
        "cols - 1 - col",
        "cols - 2 - col",
        ("unwritten elements",),
        SEVERAL,
        GPU,
    ),
    Fault(
        "cuda",
        "last tile not stored",
        CLUSTER,
        "        for (int tile = cluster; tile < tile_rows * tile_cols; tile += clusters) {\n"
        "            const Place at = tile_place<GROUP>(tile, tile_rows, tile_cols);\n"
        "            const int row = (at.row * DOWN + place_row) * TILE_M + consumer",
        "        for (int tile = cluster; tile + 1 < tile_rows * tile_cols; tile += clusters) {\n"
        "            const Place at = tile_place<GROUP>(tile, tile_rows, tile_cols);\n"
        "            const int row = (at.row * DOWN + place_row) * TILE_M + consumer",
        ("unwritten elements", "timeout"),
        LARGE,
        GPU,
    ),
    Fault(
        "cuda",
        "bias added twice",
        TILE,
        "sum + static_cast<float>(bias[col])",
        "sum + 2.0f * static_cast<float>(bias[col])",
        ("bound",),
        ("matmul-bfloat16-4096x4096x4096-bias-gelu",),
        GPU,
    ),
    Fault(
        "cuda",
        "B's part sent to the first block alone",
        CLUSTER,
        "((1 << DOWN) - 1) << place_col * DOWN;",
        "1;",
        ("bound", "timeout", "crash"),
        LARGE,
        GPU,
    ),
    Fault(
        "cuda",
        "a stage released to its own block alone",
        CLUSTER,
        "consumer, row_blocks | col_blocks);",
        "consumer);",
        ("bound", "timeout", "crash"),
        LARGE,
        GPU,
    ),
    Fault(
        "cuda",
        "a buffer written while TMA reads it",  # the fence's and the barrier's absence shows by luck, this one by far
        TILE,
        "            tma_store_wait<COUNT - 1>();  // what the buffer held before is copied\n",
        "",
        ("bound",),
        LARGE,
        GPU,
    ),
    Fault(
        "cuda",
        "stages that two blocks share multiplied twice",
        SPLIT,
        "(rank + 1) / CLUSTER;",
        "(rank + 1) / CLUSTER + (rank + 1 < CLUSTER);",
        ("bound",),
        SHARED,
        GPU,
    ),
    Fault(
        "cuda",
        "the last block's sums left out",
        SPLIT,
        "block < CLUSTER; ++block",
        "block + 1 < CLUSTER; ++block",
        ("bound",),
        SHARED,
        GPU,
    ),
    Fault(
        "cuda",
        "rows and columns not swapped back",
        SPLIT,
        "static_cast<long long>(at_col) * rows + at_row\n",
        "static_cast<long long>(at_row) * cols + at_col\n",
        ("bound",),
        SHARED[1:],
        GPU,
    ),
)
