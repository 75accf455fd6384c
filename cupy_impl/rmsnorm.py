"""RMSNorm and its gradients in CUDA C++: ``cuda/rmsnorm/*.cu``. Contract and errors: ``reference/rmsnorm.py``."""

from dataclasses import replace

import numpy as np

from cupy_impl import device
from cupy_impl.launches import CXX_TYPES, NULL, Kernel, Launch, Workspace
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
from reference.contract import CHAIN, ArrayInfo, Variant, pick, scalar
from reference.rmsnorm import DTYPES, check, check_backward, outputs

PORTABLE, HOPPER, KEPT = ("sm_80",), ("sm_90",), {"spill_bytes": 0}

VARIANTS = {
    "rmsnorm": (
        Variant("1_naive", "a thread a row", DTYPES, PORTABLE),
        Variant("2_block", "a block a row: coalesced loads, a reduction in shared memory", DTYPES, PORTABLE),
        Variant("3_warp", "16-byte vectors, warp shuffles", DTYPES, PORTABLE, KEPT),
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
    ),
    "rmsnorm_backward": (
        Variant("backward_1_naive", "dx by rows, dweight by columns", DTYPES, PORTABLE),
        Variant("backward_2_two_kernels", "one read, dweight's sums in registers, then folded", DTYPES, HOPPER, KEPT),
        Variant("backward_3_cooperative", "the same in one launch, with a grid sync", DTYPES, HOPPER, KEPT),
    ),
}

VALUES = 32  # elements of a row that a thread holds
RESIDENT_THREADS = 512  # of the backward rungs 2 and 3 on a multiprocessor, each with 128 registers
SHARE = 128  # threads of a block that shares rows with others
FOLD, FOLDED = 256, 8  # threads of fold.cu, and the columns they own


def plan(
    x: ArrayInfo,
    weight: ArrayInfo,
    *written: ArrayInfo,
    eps: float,
    residual: ArrayInfo | None = None,
    return_rstd: bool = False,
    variant: Variant,
    multiprocessors: int = 132,
) -> tuple[Launch, ...]:
    """The launches of a forward call; written: its outputs. multiprocessors: of the device, 132 an H200's."""
    rows, cols = x.shape
    if rows == 0:
        return ()
    given = [x, weight] if residual is None else [x, weight, residual]
    vector = vector_width(cols, *given, *written[: len(given) - 1])
    itemsize = scalar(x.dtype).itemsize
    arrays = 1 if residual is None else 2
    pointers = (
        "x",
        "weight",
        NULL if residual is None else "residual",
        "y",
        NULL if residual is None else "sum",
        "rstd" if return_rstd else NULL,
    )

    def launch(rung, grid, block, defines, shared_bytes=0, cluster=1):
        common = ("RESIDUAL", str(arrays - 1)), ("CLUSTER", str(cluster)), *defines
        numbers = np.float32(eps), np.int64(rows), np.int32(cols)
        return (_launch(rung, "rmsnorm", x, weight, grid, block, pointers + numbers, common, shared_bytes, cluster),)

    rung = variant.name
    if rung == "1_naive":
        return launch(rung, ceil_div(rows, 64), 64, (("BLOCK", "64"),))
    if rung == "2_block":
        return launch(rung, rows, 256, (("BLOCK", "256"),))
    if rung == "6_packed" and (tile := packed_tile(cols, vector, itemsize, arrays)):
        grid = ceil_div(rows, tile.teams) * tile.shares
        return launch(rung, grid, tile.block, tile.defines[:4], cluster=tile.shares)
    if rung == "5_persistent" and (tile := persistent_tile(cols, vector, itemsize, arrays)):
        grid = min(rows, resident(tile.shares, multiprocessors)) * tile.shares
        shared = tile.stages * tile.held * arrays * itemsize
        return launch(rung, grid, tile.block, tile.defines[:5], shared, tile.shares)
    if rung in ("4_registers", "5_persistent") and cols <= MOST_THREADS * VALUES:
        tile = spread(cols, vector, VALUES)
        tile = replace(tile, team=max(tile.team, WARP))
        return launch("4_registers", rows, tile.team, tile.defines[:3])
    block = min(512, ceil_div(cols // vector, 4 * WARP) * WARP)
    return launch("3_warp", rows, block, (("VECTOR", str(vector)), ("BLOCK", str(block))))


def persistent_tile(cols: int, vector: int, itemsize: int, arrays: int) -> Tile | None:
    """Rung 5's tile, None for rows that it has no use for: narrow ones, and those too wide for it."""
    if cols * itemsize * arrays <= STRAIGHT:
        return None
    values = min(64 // itemsize, 16 * vector)  # single 16-bit elements fill registers as float32 does
    for cluster in (1, 2, 4, MOST_CLUSTER):
        tile = spread(cols, vector, values, shares=cluster)
        stages = min(3, shared_bytes(1) // (tile.held * arrays * itemsize))
        if tile.block <= MOST_THREADS and stages > 1:
            return replace(tile, stages=stages)
    return None


def backward_tile(x: ArrayInfo, weight: ArrayInfo, *others: ArrayInfo, multiprocessors: int = 132) -> Tile | None:
    """The tile of the backward rungs 2 and 3, None for rows too wide for them.

    A thread has 32 bytes of a row, the weight and the sums of their columns. A wide row is shared by small blocks: while
    one waits for the others' parts of its mean, the rest of its multiprocessor is at work.
    """
    cols, itemsize = x.shape[1], scalar(x.dtype).itemsize
    vector = vector_width(cols, x, weight, *others)
    tile = spread(cols, vector, 32 // itemsize, block=SHARE)
    if tile.block > MOST_THREADS:
        tile = spread(cols, vector, 32 // itemsize, shares=ceil_div(cols * itemsize, 32 * SHARE))
    if tile.shares > _blocks(tile) * multiprocessors:
        return None
    budget = shared_bytes(_blocks(tile)) - _totals_bytes(tile)
    most = 6 if tile.shares > 1 else 4
    return replace(tile, stages=min(most, budget // (tile.held * 2 * itemsize)))


def _blocks(tile: Tile) -> int:
    """Blocks of the backward rungs 2 and 3 on a multiprocessor; more of those that wait for each other."""
    return max(1, (RESIDENT_THREADS + SHARE * (tile.shares > 1)) // tile.block)


def _totals_bytes(tile: Tile) -> int:
    """Shared memory for dweight's sums of a block's teams, where there are several."""
    return tile.held * 4 * (tile.teams > 1)


def plan_backward(
    dy: ArrayInfo,
    x: ArrayInfo,
    weight: ArrayInfo,
    rstd: ArrayInfo,
    dx: ArrayInfo,
    dweight: ArrayInfo,
    *,
    variant: Variant,
    multiprocessors: int = 132,
) -> tuple[Launch, ...]:
    """The launches of a backward call, with ``partials`` (count, cols), dweight's partial sums, as their workspace."""
    rows, cols = x.shape
    if rows == 0:
        return (_fold(weight, 0, cols),)
    tile = None
    if variant.name != "backward_1_naive":
        tile = backward_tile(x, weight, dy, dx, multiprocessors=multiprocessors)
    sizes = np.int64(rows), np.int32(cols)

    def launch(rung, name, grid, block, arguments, defines, **more):
        return _launch(rung, name, x, weight, grid, block, (*arguments, *sizes), defines, **more)

    if tile is None:
        rung, block, chunks = "backward_1_naive", 128, ceil_div(rows, CHAIN)
        defines = ("BLOCK", str(block)), ("ROWS", str(CHAIN))
        columns = launch(rung, "dweight_partials", chunks, block, ("dy", "x", "rstd", "partials"), defines)
        return (
            launch(rung, "rmsnorm_backward", rows, block, ("dy", "x", "weight", "rstd", "dx"), defines),
            replace(columns, grid=(chunks, ceil_div(cols, block), 1), workspace=_partials(chunks, cols)),
            _fold(weight, chunks, cols),
        )
    groups = min(ceil_div(rows, tile.teams), _blocks(tile) * multiprocessors // tile.shares)
    count = groups * ceil_div(ceil_div(rows, groups * tile.teams), CHAIN)
    shared = tile.stages * tile.held * 2 * scalar(x.dtype).itemsize + _totals_bytes(tile)
    shape = "rmsnorm_backward", groups * tile.shares, tile.block
    defines = *tile.defines, ("BLOCKS", str(_blocks(tile)))
    more = {"shared_bytes": shared, "workspace": _partials(count, cols)}
    words = NULL
    if tile.shares > 1:
        words = "words"
        more["workspace"] += (Workspace("words", (rows, tile.shares), "uint64", zeroed=True),)
    if variant.name == "backward_3_cooperative":
        arguments = "dy", "x", "weight", "rstd", "dx", "dweight", "partials", words, np.int32(count)
        return (launch(variant.name, *shape, arguments, defines, cooperative=True, **more),)
    arguments = "dy", "x", "weight", "rstd", "dx", "partials", words
    rows_ = launch("backward_2_two_kernels", *shape, arguments, defines, cooperative=tile.shares > 1, **more)
    return rows_, _fold(weight, count, cols)


def _partials(count: int, cols: int):
    return (Workspace("partials", (count, cols), "float32"),)


def _fold(weight: ArrayInfo, count: int, cols: int) -> Launch:
    """dweight (cols,) from partials (count, cols), zeros from none."""
    return Launch(
        kernel=Kernel("rmsnorm/fold.cu", "fold", (("WEIGHT", CXX_TYPES[weight.dtype]), ("BLOCK", str(FOLD)))),
        grid=(ceil_div(cols, FOLDED), 1, 1),
        block=(FOLD, 1, 1),
        arguments=("partials" if count else NULL, "dweight", np.int32(count), np.int32(cols)),
    )


def _launch(rung, name, x, weight, grid, block, arguments, defines, shared_bytes=0, cluster=1, **more) -> Launch:
    types = ("SCALAR", CXX_TYPES[x.dtype]), ("WEIGHT", CXX_TYPES[weight.dtype])
    return Launch(
        kernel=Kernel(f"rmsnorm/{rung}.cu", name, (*types, *defines)),
        grid=(grid, 1, 1),
        block=(block, 1, 1),
        arguments=arguments,
        shared_bytes=shared_bytes,
        cluster=(cluster, 1, 1),
        **more,
    )


def rmsnorm(x, weight, eps, residual=None, return_rstd=False, *, out=None, variant: str | None = None, runtime=device):
    """RMSNorm of x (rows, cols), or of x + residual, with weight (cols,), on CuPy's current stream.

    Returns y[, sum][, rstd]: y (rows, cols) of x's dtype, with a residual sum (rows, cols), with return_rstd rstd
    (rows,), float32; a tuple where there are several. out: the same, written and returned where given. variant: a name
    in VARIANTS. runtime: ``cupy_impl.device``, or ``cupy_impl.host`` for NumPy arrays on a CPU.
    Raises TypeError, ValueError and Unsupported as the contract says.
    """
    arrays = {"x": x, "weight": weight} | ({} if residual is None else {"residual": residual})
    given = {name: runtime.describe(name, array) for name, array in arrays.items()}
    wanted = outputs(given["x"], residual, return_rstd)
    out, infos = _describe_outputs(out, tuple(wanted), runtime)
    check(**given, eps=eps, return_rstd=return_rstd, out=infos, platform=runtime.PLATFORM)
    rung = pick(VARIANTS["rmsnorm"], variant, given["x"].dtype, runtime.arch(x))
    if out is None:
        like = {"y": x, "sum": x}
        out = [runtime.empty_like(like[n]) if n in like else runtime.empty(s, d, x) for n, (s, d) in wanted.items()]
    written = dict(zip(wanted, out))
    launches = plan(
        given["x"],
        given["weight"],
        *(runtime.describe(name, array) for name, array in written.items()),
        eps=eps,
        residual=given.get("residual"),
        return_rstd=return_rstd,
        variant=rung,
        multiprocessors=runtime.multiprocessors(x),
    )
    runtime.launch(launches, arrays | written, rung)
    return tuple(out) if len(out) > 1 else out[0]


def rmsnorm_backward(dy, x, weight, rstd, *, out=None, variant: str | None = None, runtime=device):
    """The gradients of RMSNorm: dx (rows, cols) of x's dtype and dweight (cols,) of weight's, on CuPy's current stream.

    dy, x (rows, cols), weight (cols,), rstd (rows,), float32, as the forward pass returned it. out: (dx, dweight),
    written and returned where given. variant, runtime: as in :func:`rmsnorm`.
    Raises TypeError, ValueError and Unsupported as the contract says.
    """
    arrays = {"dy": dy, "x": x, "weight": weight, "rstd": rstd}
    given = {name: runtime.describe(name, array) for name, array in arrays.items()}
    out, infos = _describe_outputs(out, ("dx", "dweight"), runtime)
    check_backward(**given, out=infos, platform=runtime.PLATFORM)
    rung = pick(VARIANTS["rmsnorm_backward"], variant, given["x"].dtype, runtime.arch(x))
    if out is None:
        out = runtime.empty_like(x), runtime.empty_like(weight)
    written = dict(zip(("dx", "dweight"), out))
    infos = [runtime.describe(name, array) for name, array in written.items()]
    launches = plan_backward(*given.values(), *infos, variant=rung, multiprocessors=runtime.multiprocessors(x))
    runtime.launch(launches, arrays | written, rung)
    return tuple(out)


def _describe_outputs(out, names: tuple[str, ...], runtime):
    """What was given as ``out=`` as a sequence, one array standing for itself, and the arrays' descriptions."""
    if out is None:
        return None, None
    arrays = out if isinstance(out, (tuple, list)) else (out,)
    named = [names[i] if i < len(names) else "out" for i in range(len(arrays))]
    return arrays, [runtime.describe(name, array, written=True) for name, array in zip(named, arrays)]
