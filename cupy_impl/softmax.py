"""Softmax in CUDA C++: ``cuda/softmax/*.cu``. Contract and errors: ``reference/softmax.py``."""

from dataclasses import replace

import numpy as np

from cupy_impl import device
from cupy_impl.launches import CXX_TYPES, Kernel, Launch
from cupy_impl.rows import (
    MOST_CLUSTER,
    MOST_THREADS,
    STRAIGHT,
    WARP,
    Tile,
    ceil_div,
    packed_tile,
    resident,
    shared_bytes,
    spread,
    vector_width,
)
from reference.contract import ArrayInfo, Variant, pick, scalar
from reference.softmax import DTYPES, check

PORTABLE, HOPPER, KEPT = ("sm_80",), ("sm_90",), {"spill_bytes": 0}

VARIANTS = {
    "softmax": (
        Variant("1_naive", "a thread a row", DTYPES, PORTABLE),
        Variant("2_block", "a block a row: coalesced loads, reductions in shared memory", DTYPES, PORTABLE),
        Variant("3_warp", "16-byte vectors, warp shuffles, the online form: two reads", DTYPES, PORTABLE, KEPT),
        Variant("4_registers", "the row stays in registers: one read", DTYPES, PORTABLE, KEPT),
        Variant(
            "5_persistent",
            "wide rows through shared memory, one computed, others coming and going",
            DTYPES,
            HOPPER,
            KEPT,
        ),
        Variant(
            "6_packed", "rows as they lie in memory, teams for short ones, clusters for wide", DTYPES, HOPPER, KEPT
        ),
    )
}

VALUES = 32  # float32 registers of a thread that hold its part of the row
STAGE_BYTES = 64 * 1024  # of a row in a block, so that three fit


def plan(x: ArrayInfo, out: ArrayInfo, *, variant: Variant, multiprocessors: int = 132) -> tuple[Launch, ...]:
    """The launches of a call; multiprocessors: of the device, 132 an H200's."""
    rows, cols = x.shape
    if rows == 0:
        return ()
    vector = vector_width(cols, x, out)
    rung = variant.name
    if rung == "1_naive":
        return (_launch(x, rung, ceil_div(rows, 64), 64, (("BLOCK", "64"),)),)
    if rung == "2_block":
        return (_launch(x, rung, rows, 256, (("BLOCK", "256"),)),)
    itemsize = scalar(x.dtype).itemsize
    if rung == "6_packed" and (tile := packed_tile(cols, vector, itemsize)):
        grid = ceil_div(rows, tile.teams) * tile.shares
        return (_launch(x, rung, grid, tile.block, tile.defines[:4], cluster=tile.shares),)
    if rung == "5_persistent" and (tile := persistent_tile(cols, vector, itemsize)):
        grid = min(rows, resident(tile.shares, multiprocessors)) * tile.shares
        staged = tile.stages * tile.held * itemsize
        return (_launch(x, rung, grid, tile.block, tile.defines[:5], staged, tile.shares),)
    if rung in ("4_registers", "5_persistent") and cols <= MOST_THREADS * VALUES:
        tile = spread(cols, vector, VALUES)
        tile = replace(tile, team=max(tile.team, WARP))
        return (_launch(x, "4_registers", rows, tile.team, tile.defines[:3]),)
    block = min(512, ceil_div(cols // vector, 4 * WARP) * WARP)
    return (_launch(x, "3_warp", rows, block, (("VECTOR", str(vector)), ("BLOCK", str(block)))),)


def persistent_tile(cols: int, vector: int, itemsize: int) -> Tile | None:
    """Rung 5's tile, None for rows that it has no use for: narrow ones, and those too wide for it."""
    cluster, size = 1, 4 if vector == 1 else itemsize  # single 16-bit elements fill registers as float32 does
    while cluster < MOST_CLUSTER and ceil_div(cols, cluster) * size > STAGE_BYTES:
        cluster *= 2
    tile = spread(cols, vector, VALUES, shares=cluster)
    stages = min(3, shared_bytes(1) // (tile.held * itemsize))
    wanted = cols * itemsize > STRAIGHT and tile.block <= MOST_THREADS and stages > 1
    return replace(tile, stages=stages) if wanted else None


def _launch(x, rung, grid, block, defines, shared_bytes=0, cluster=1) -> Launch:
    rows, cols = x.shape
    return Launch(
        kernel=Kernel(
            f"softmax/{rung}.cu", "softmax", (("SCALAR", CXX_TYPES[x.dtype]), ("CLUSTER", str(cluster)), *defines)
        ),
        grid=(grid, 1, 1),
        block=(block, 1, 1),
        arguments=("x", "out", np.int64(rows), np.int32(cols)),
        shared_bytes=shared_bytes,
        cluster=(cluster, 1, 1),
    )


def softmax(x, *, out=None, variant: str | None = None, runtime=device):
    """Softmax over the last axis of x (rows, cols), on CuPy's current stream; returns out (rows, cols), of x's dtype.

    out: written and returned where given. variant: a name in VARIANTS. runtime: ``cupy_impl.device``, or
    ``cupy_impl.host`` for NumPy arrays on a CPU.
    Raises TypeError, ValueError and Unsupported as the contract says.
    """
    info = runtime.describe("x", x)
    check(info, None if out is None else runtime.describe("out", out, written=True), platform=runtime.PLATFORM)
    rung = pick(VARIANTS["softmax"], variant, info.dtype, runtime.arch(x))
    if out is None:
        out = runtime.empty_like(x)
    launches = plan(info, runtime.describe("out", out), variant=rung, multiprocessors=runtime.multiprocessors(x))
    runtime.launch(launches, {"x": x, "out": out}, rung)
    return out
