"""RMSNorm, and its gradients by rmsnorm_backward.py: y = x rstd w, rstd[r] = 1 / sqrt(mean over c of x[r, c]^2 + eps).

contract  reference/rmsnorm.py; ``out=`` takes a tuple of ``jax.Ref``
mapping   forward: a warp a row up to 2048 columns, a warpgroup a row up to 16384, a block a row up to 32768, which it
          holds in equal parts, one of 16 bits as it lies in memory. With a residual a block stays and rows of 4096
          columns' multiples come and go by TMA. Otherwise, wider rows are split over a block's warpgroups in chunks
traffic   forward: reads and writes rows x cols elements once, with a residual two of them; rows in chunks are read
          twice. About 4 operations an element: memory decides
limits    Hopper; widths that are odd, or not of 16 bytes, are loaded in smaller vectors; widths below one element a
          thread (32, or 128 with fewer than 4 rows) are padded by the wrapper, in small kernels more
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_impl import arrays, rows
from pallas_impl import rmsnorm_backward as backward
from pallas_impl.arrays import describe
from pallas_impl.rows import Config, Cut, Ring
from reference.contract import Variant, pick
from reference.rmsnorm import DTYPES, check, check_backward, outputs

VARIANTS = {
    "rmsnorm": (
        Variant("two_reads", "a row in chunks: their squares, then the row again", DTYPES, ("sm_90a",)),
        Variant("one_read", "rows up to 16384 columns stay in registers", DTYPES, ("sm_90a",), {"spill_bytes": 0}),
        Variant(
            "prefetched",
            "wider ones in a block's registers, or by TMA, rows ahead",
            DTYPES,
            ("sm_90a",),
            {"spill_bytes": 0},
        ),
    ),
    "rmsnorm_backward": backward.VARIANTS,
}


class Refs(NamedTuple):
    """The arrays of a call, (rows, cols), weight (cols,) and rstd (rows,); None for those that it does not have."""

    x: object
    residual: object
    weight: object
    y: object
    sum: object
    rstd: object

    def part(self, first: int, height: int) -> "Refs":
        """Of these rows alone."""
        cut = {name: ref.at[pl.ds(first, height)] for name, ref in self._asdict().items() if ref is not None}
        return self._replace(**cut | {"weight": self.weight})


def _rounded(refs: Refs, tiles: list, residuals: list) -> list:
    """The tiles that are normed: those of x, or of the sum as it is rounded."""
    if refs.residual is None:
        return tiles
    # --- add the residual, round once
    return [(x + other).astype(refs.sum.dtype).astype(jnp.float32) for x, other in zip(tiles, residuals)]


def _squares(x: list):
    """The tiles' squares, added up tile by tile."""
    return functools.reduce(jnp.add, [tile * tile for tile in x])


def _rstd(squares, turn, cols: int, eps: float, reduce):
    """rstd of each row, from what :func:`_squares` gave every thread of it."""
    return lax.rsqrt(reduce(turn, squares, jnp.sum, jnp.add) / cols + np.float32(eps))


def _store_rstd(refs: Refs, row, rstd, config: Config) -> None:
    def store():
        refs.rstd.at[pl.ds(row, rows.TEAM) if config.cut.team else row][...] = rstd

    if refs.rstd is not None:
        pl.when(lax.axis_index("warpgroup") == 0)(store) if config.warpgroups > 1 else store()


def _store(refs: Refs, row, start, tile, rstd, cut: Cut) -> None:
    # --- scale and store
    w = rows.load_weight(refs.weight, start, cut)  # (width,) or (TEAM, width)
    rows.at(refs.y, row, start, cut)[...] = (tile * rstd * w).astype(refs.y.dtype)
    if refs.sum is not None:
        rows.at(refs.sum, row, start, cut)[...] = tile.astype(refs.sum.dtype)


def _registers(refs: Refs, *scratch, height: int, cols: int, eps: float, config: Config):
    """Rows that a warp, a warpgroup or a block holds: read once."""
    cut, again = config.cut, rows.own(config.cut, config.warpgroups).again
    starts = rows.own_starts(cut, config.warpgroups)
    reduce = rows.reduction(cut, scratch) if scratch else lambda turn, tile, over, two: over(tile, axis=-1)

    def take(row):
        # --- load the row
        load = lambda ref: [rows.load(ref, row, start, cut) for start in starts]  # (width,) or (TEAM, width) each
        x = _rounded(refs, load(refs.x), refs.residual and load(refs.residual))

        # --- mean of the squares
        once = [*x[:-1], rows.once(x[-1], again, cut, 0.0)] if again else x
        rstd = _rstd(_squares(once), 0, cols, eps, reduce)  # () or (TEAM,)
        _store_rstd(refs, row, rstd, config)

        for start, tile in zip(starts, x):
            _store(refs, row, start, tile, rows.along(rstd, cut), cut)

    rows.each_row(height, cut, take)


def _packed(refs: Refs, *scratch, height: int, cols: int, eps: float, config: Config):
    """Rows of 16 bits that a block holds as they lie in memory, so that a multiprocessor has two."""
    cut, again = config.cut, rows.own(config.cut, config.warpgroups).again
    starts, row = rows.own_starts(cut, config.warpgroups), lax.axis_index("tile")
    # --- load the row
    x = [plgpu.load(rows.at(refs.x, row, start, cut), layout=cut.layout) for start in starts]  # (width,) each

    # --- mean of the squares
    squares = rows.full(0.0, cut)
    for n, tile in enumerate(x):
        value = rows.unpacked(tile, squares)
        if again and n == len(x) - 1:
            value = rows.once(value, again, cut, 0.0)
        squares += value * value
    rstd = _rstd(squares, 0, cols, eps, rows.reduction(cut, scratch))
    _store_rstd(refs, row, rstd, config)

    for n, (start, tile) in enumerate(zip(starts, x)):
        store = lambda: _store(refs, row, start, rows.unpacked(tile, rstd), rstd, cut)
        # Always so. Beside an overlap more is unpacked at once, without branches, than 64 registers hold.
        pl.when(jnp.logical_not(rstd < -1 - n))(store) if again else store()


def _ring(refs: Refs, slots, filled, *scratch, height: int, cols: int, eps: float, config: Config):
    """Rows in shared memory, with the sum in the residual's place and y in x's, while others come and go."""
    me, block, blocks = lax.axis_index("warpgroup"), lax.axis_index("block"), min(config.blocks, height)
    count, row = pl.cdiv(height - block, blocks), lambda turn: block + turn * blocks
    sources, outs = ((refs.x,), (refs.y,)) if refs.residual is None else (refs[:2], (refs.y, refs.sum))
    ring = Ring(sources, slots, filled, config.parts, count, row)
    reduce = rows.reduction(config.cut, scratch)
    tiles = [(part, tile) for part in range(config.parts) for tile in range(ring.tiles)]
    w = [ring.load_weight(refs.weight, *place).astype(jnp.float32) for place in tiles]  # (TEAM, LINE) each
    ring.start()

    @pl.loop(0, count)
    def _(turn):
        places = [(turn * config.parts + part, tile) for part, tile in tiles]
        squares = 0.0
        for i, tile in places:
            # --- load the row
            if tile == 0:
                ring.wait(i)
            x, *residuals = [[ring.load(i, tile, source)] for source in range(len(sources))]  # (TEAM, LINE)
            x = _rounded(refs, x, *residuals or [None])
            if residuals:
                ring.at(i, tile, 1)[...] = x[0].astype(refs.sum.dtype)

            # --- mean of the squares
            squares += _squares(x)
        rstd = _rstd(squares, lax.rem(turn, 2), cols, eps, reduce)
        if refs.rstd is not None:
            pl.when(me == 0)(lambda: refs.rstd.at[row(turn)].set(rstd))

        # --- scale and store
        for n, (i, tile) in enumerate(places):
            ring.at(i, tile)[...] = (ring.load(i, tile, len(sources) - 1) * rstd * w[n]).astype(refs.y.dtype)
            if tile == ring.tiles - 1:
                ring.store(i, *outs)

    plgpu.wait_smem_to_gmem(0)


def _chunks(refs: Refs, *scratch, height: int, cols: int, eps: float, config: Config):
    """Rows of any width, in chunks of a few tiles: each is read for its squares, and then again."""
    cut, warpgroups = config.cut, config.warpgroups
    me, row = lax.axis_index("warpgroup"), lax.axis_index("tile")
    reduce = rows.reduction(cut, scratch)
    chunk, own, starts = rows.chunks(cut, warpgroups, config.tiles, me)

    def load(i):
        # --- load the row
        x, *residuals = [
            [rows.load(ref, row, start, cut) for start in starts(i)]  # (width,) each
            for ref in (refs.x, refs.residual)
            if ref is not None
        ]
        return _rounded(refs, x, *residuals or [None])

    def collect(i, squares):
        # --- mean of the squares
        x = load(i)
        if cut.cols % chunk:
            x = [rows.once(tile, i * chunk - start, cut, 0.0) for tile, start in zip(x, starts(i))]
        return squares + _squares(x)

    squares = lax.fori_loop(*own, collect, rows.full(0.0, cut))
    rstd = _rstd(squares, 0, cols, eps, reduce)
    if refs.rstd is not None:
        pl.when(me == 0)(lambda: refs.rstd.at[row].set(rstd))

    @pl.loop(*own)
    def _(i):
        for start, tile in zip(starts(i), load(i)):
            _store(refs, row, start, tile, rstd, cut)


def _launch(refs: Refs, cols: int, eps: float, config: Config, interpret) -> None:
    """refs: arrays for x, weight and residual, of the width that config cuts, in lines for a ring, as y and sum are
    too; cols: without padding.
    """
    cut, warpgroups, ring = config.cut, config.warpgroups, config.kernel == "ring"
    kernel = {"registers": _registers, "packed": _packed, "ring": _ring, "chunks": _chunks}[config.kernel]
    scratch = rows.shared(warpgroups, cut, lines=ring)
    if ring:
        scratch = Ring.scratch(config, 1 + (refs.residual is not None), refs.x.dtype) + scratch
    there = [name for name, ref in refs._asdict().items() if ref is not None]

    def part(*args, first, height):
        """The kernel on height rows from first on."""
        part = Refs(**dict.fromkeys(Refs._fields) | dict(zip(there, args))).part(first, height)
        kernel(part, *args[len(there) :], height=height, cols=cols, eps=eps, config=config)

    for first, count in rows.parts(refs.x.shape[0], cut.cols):
        blocks = min(config.blocks, count) if ring else count // (rows.TEAM if cut.team else 1)
        plgpu.kernel(
            functools.partial(part, first=first, height=count),
            scratch_types=scratch,
            grid=(blocks,),
            grid_names=("block" if ring else "tile",),
            num_threads=warpgroups,
            thread_name="warpgroup",
            kernel_name="rmsnorm",
            compiler_params=rows.RING_PARAMETERS if ring else rows.PARAMETERS,
            interpret=interpret,
        )(*(ref for ref in refs if ref is not None))


def _run(x, weight, residual, eps: float, outs: dict, config: Config, interpret) -> None:
    """Write outs, ``jax.Ref`` by name."""
    shape, cols, missing = x.shape, x.shape[1], config.cut.cols - x.shape[1]
    if x.shape[0] == 0:
        return
    if config.kernel == "ring":
        # A ref cannot be reshaped to lines. XLA lets the kernel write where outs are all the same.
        inside, outside = rows.by_line, lambda value: value.reshape(shape)
    elif missing:
        # Narrower than a tile: zeros beside it, whose squares add nothing.
        inside = lambda array: jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)])
        outside = lambda value: value[:, :cols]
    else:
        _launch(_refs(x, residual, weight, outs), cols, eps, config, interpret)
        return
    others = {name: jax.empty_ref(_like(inside, ref)) if ref.ndim == 2 else ref for name, ref in outs.items()}
    x, residual, weight = (None if array is None else inside(array) for array in (x, residual, weight))
    _launch(_refs(x, residual, weight, others), cols, eps, config, interpret)
    for name, ref in others.items():
        if outs[name] is not ref:
            outs[name][...] = outside(jax.freeze(ref))


def _refs(x, residual, weight, outs) -> Refs:
    return Refs(x, residual, weight, *(outs.get(name) for name in ("y", "sum", "rstd")))


def _like(change, ref):
    """The shape and dtype that ``change`` makes of ref's."""
    return jax.eval_shape(change, jax.ShapeDtypeStruct(ref.shape, ref.dtype))


@functools.partial(jax.jit, static_argnames=("eps", "wanted", "config", "interpret"))
def _new(x, weight, residual, eps, wanted, config: Config, interpret):
    outs = {name: jax.empty_ref(jax.ShapeDtypeStruct(shape, np.dtype(dtype))) for name, shape, dtype in wanted}
    _run(x, weight, residual, eps, outs, config, interpret)
    return tuple(map(jax.freeze, outs.values()))


@functools.partial(jax.jit, static_argnames=("eps", "names", "config", "interpret"))
def _into(x, weight, residual, eps, outs, names, config: Config, interpret):
    _run(x, weight, residual, eps, dict(zip(names, outs)), config, interpret)


def _named(names, refs):
    """Pairs of a name and a ref; what is too many is called out, and left for the check to refuse."""
    return zip([*names, *["out"] * max(0, len(refs) - len(names))], refs)


def rmsnorm(
    x: jax.Array,
    weight: jax.Array,
    eps: float,
    residual: jax.Array | None = None,
    return_rstd: bool = False,
    *,
    out=None,
    variant: str | None = None,
    interpret=None,
):
    """RMSNorm of x (rows, cols), or of x + residual, times weight (cols,): y (rows, cols)[, sum (rows, cols)][, rstd
    (rows,)], a tuple where there are several.

    out: a ``jax.Ref``, or a tuple of them in that order, written and returned where given. variant: a name in
    VARIANTS. interpret: a ``plgpu.InterpretGPUParams`` runs the kernel on a CPU.
    Raises TypeError, ValueError and Unsupported as the contract says.
    """
    info, other = describe("x", x), describe("weight", weight)
    added = None if residual is None else describe("residual", residual)
    wanted = outputs(info, added, return_rstd)
    refs = out if out is None or isinstance(out, (tuple, list)) else (out,)
    targets = refs if refs is None else [describe(name, ref, ref=True) for name, ref in _named(wanted, refs)]
    check(info, other, eps, added, return_rstd, targets, platform="cpu" if interpret else "cuda")
    chosen = pick(VARIANTS["rmsnorm"], variant, info.dtype, arrays.arch(x, interpret))
    sources = 1 if residual is None else 2
    config = rows.configure(*x.shape, x.dtype.itemsize, chosen.name, rows.most_warpgroups(interpret), sources)
    if refs is None:
        specs = tuple((name, shape, dtype) for name, (shape, dtype) in wanted.items())
        results = _new(x, weight, residual, float(eps), specs, config, interpret)
        return results if len(results) > 1 else results[0]
    _into(x, weight, residual, float(eps), tuple(refs), tuple(wanted), config, interpret)
    return out


def _run_backward(dy, x, weight, rstd, dx, config, interpret) -> jax.Array:
    """Write dx, a ``jax.Ref``; returns dweight."""
    height, cols = x.shape
    missing = config.cut.cols - cols
    if height == 0:
        return jnp.zeros_like(weight)
    if missing == 0:
        return backward.launch(dy, x, weight, rstd, dx, config, cols, interpret)[:cols]
    wide = lambda array: jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)])
    padded = jax.empty_ref(_like(wide, dx))
    dweight = backward.launch(wide(dy), wide(x), wide(weight), rstd, padded, config, cols, interpret)
    dx[...] = jax.freeze(padded)[:, :cols]
    return dweight[:cols]


@functools.partial(jax.jit, static_argnames=("config", "interpret"))
def _new_backward(dy, x, weight, rstd, config, interpret):
    dx = jax.empty_ref(jax.ShapeDtypeStruct(x.shape, x.dtype))
    dweight = _run_backward(dy, x, weight, rstd, dx, config, interpret)
    return jax.freeze(dx), dweight


@functools.partial(jax.jit, static_argnames=("config", "interpret"))
def _into_backward(dy, x, weight, rstd, dx, dweight, config, interpret):
    dweight[...] = _run_backward(dy, x, weight, rstd, dx, config, interpret)


def rmsnorm_backward(
    dy: jax.Array,
    x: jax.Array,
    weight: jax.Array,
    rstd: jax.Array,
    *,
    out=None,
    variant: str | None = None,
    interpret=None,
):
    """The gradients of rmsnorm: dx (rows, cols) and dweight (cols,), for dy and x (rows, cols), weight (cols,) and
    rstd (rows,) as the forward pass returned it.

    out: a pair of ``jax.Ref``, written and returned where given. variant: a name in VARIANTS. interpret: a
    ``plgpu.InterpretGPUParams`` runs the kernels on a CPU.
    Raises TypeError, ValueError and Unsupported as the contract says.
    """
    given = [describe(name, array) for name, array in zip(("dy", "x", "weight", "rstd"), (dy, x, weight, rstd))]
    refs = out if out is None or isinstance(out, (tuple, list)) else (out,)
    targets = refs and [describe(name, ref, ref=True) for name, ref in _named(("dx", "dweight"), refs)]
    check_backward(*given, targets, platform="cpu" if interpret else "cuda")
    chosen = pick(VARIANTS["rmsnorm_backward"], variant, given[1].dtype, arrays.arch(x, interpret))
    config = backward.configure(*x.shape, x.dtype.itemsize, chosen.name, rows.most_warpgroups(interpret))
    if out is None:
        return _new_backward(dy, x, weight, rstd, config, interpret)
    _into_backward(dy, x, weight, rstd, *refs, config, interpret)
    return out
