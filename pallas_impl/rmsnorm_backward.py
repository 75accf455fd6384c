"""RMSNorm's gradients: dx = rstd (g - x rstd^2 mean(g x)), g = dy w; dweight = sum over rows of dy x rstd.

contract  reference/rmsnorm.py; ``out=`` takes a tuple of ``jax.Ref``
mapping   blocks stay and walk down rows; a thread keeps dweight of its own columns in float32, and a last kernel adds
          what the blocks found, in a fixed order. Rows are split over the warpgroups of a block, of which a
          multiprocessor has four
traffic   reads dy and x and writes dx once; dweight of every block, 1 to 4 % more, is written and read. Where rows do
          not fit on chip, dy and x are read twice, first for mean(g x)
limits    Hopper; prefetched: widths that are multiples of 1024 elements a warpgroup, up to 32768 in 16 bits and 16384
          in float32, from 4 rows on; others are read twice, padded where narrower than 128
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_impl import rows
from pallas_impl.rows import Cut
from reference.contract import CHAIN, Variant
from reference.rmsnorm import DTYPES

VARIANTS = (
    Variant("two_reads", "mean(g x) of every row, then strips of columns, walked down", DTYPES, ("sm_90a",)),
    Variant(
        "prefetched", "one walk: tiles come through TMA, rows ahead, and stay until dx", DTYPES, ("sm_90a",),
        {"spill_bytes": 0},
    ),
)  # fmt: skip

SHARED = 50_000  # bytes of shared memory for a warpgroup's ring
BARRIERS = 32  # the most that Mosaic has in one group
HELD = 8  # tiles of a row in a warpgroup's registers, as float32 sums: 64 elements a thread
DOWN = 128  # rows of partial sums at once in the last kernel, as many as there are below that


@dataclass(frozen=True)
class Config:
    """How a call is carried out.

    kernel: ``ring`` or ``strips``. warpgroups: of a block, which share a row. blocks: that walk down rows, over all
    strips. slots: in flight to a warpgroup, of ``tiles`` tiles each, in ``ring``. tiles: in ``strips``, held at once for
    mean(g x).
    """

    kernel: str
    cut: Cut
    warpgroups: int
    blocks: int
    tiles: int
    slots: int = 0


def configure(height: int, cols: int, itemsize: int, variant: str, most: int = 4) -> Config:
    """The configuration for x (height, cols); most: warpgroups a block can have."""
    cut = rows.cut(max(cols, rows.WARPGROUP), itemsize)
    if variant == "prefetched" and height >= rows.TEAM and cols % cut.width == 0 and cut.width % rows.LINE == 0:
        warpgroups = max(w for w in (1, 2, 4) if w <= max(1, min(most, cols // 2048)) and cols % (w * cut.width) == 0)
        own = cols // warpgroups // cut.width
        room = SHARED // (2 * cut.width * itemsize)
        tiles = 2 if own % 2 == 0 and room > BARRIERS // warpgroups else 1
        slots = min(room // tiles, BARRIERS // warpgroups)
        if own <= min(HELD, slots * tiles):
            return Config("ring", cut, warpgroups, min(height, rows.MULTIPROCESSORS * 4 // warpgroups), tiles, slots)
    tiles = min(4, cols // cut.width or 1)
    chunks = pl.cdiv(cols, tiles * cut.width)
    strips = max(1, cols // cut.width)
    walks = max(rows.TEAM, min(height, pl.cdiv(8 * rows.MULTIPROCESSORS, strips)), pl.cdiv(height, CHAIN))
    return Config("strips", cut, min(most, max(1, chunks - 1)), walks, tiles)


def _means(dy_ref, x_ref, weight_ref, rstd_ref, mean_ref, *scratch, cols: int, config: Config):
    """rstd mean(g x) of every row, in chunks of a few tiles."""
    cut, warpgroups = config.cut, config.warpgroups
    me, row = lax.axis_index("warpgroup"), lax.axis_index("tile")
    reduce = rows.reduction(warpgroups, cut, scratch)
    chunk, own, starts = rows.chunks(cut, warpgroups, config.tiles, me)

    def collect(i, total):
        # --- load the row
        dy, x = ([rows.load(ref, row, start, cut) for start in starts(i)] for ref in (dy_ref, x_ref))  # (width,) each
        w = [rows.load_weight(weight_ref, start, cut) for start in starts(i)]

        # --- mean of g x
        products = [a * c * b for a, b, c in zip(dy, x, w)]
        if cut.cols % chunk:
            products = [rows.once(tile, i * chunk - start, cut, 0.0) for tile, start in zip(products, starts(i))]
        return total + functools.reduce(jnp.add, products)

    total = reduce(0, lax.fori_loop(*own, collect, rows.full(0.0, cut)), jnp.sum, jnp.add)

    @pl.when(me == 0)
    def _():
        mean_ref[row] = rstd_ref[row] * (total / cols)


def _dx(dy, x, w, rstd, mean):
    """dx and the terms of dweight of a tile; mean: rstd mean(g x)."""
    # --- dx
    xhat = x * rstd
    return rstd * (dy * w - xhat * mean), dy * xhat


def _strips(dy_ref, x_ref, weight_ref, rstd_ref, mean_ref, dx_ref, partial_ref, *, height: int, config: Config):
    """One strip of columns, a tile wide, down some rows."""
    cut, blocks = config.cut, config.blocks
    strip, block = lax.axis_index("strip"), lax.axis_index("block")
    whole = cut.cols // cut.width
    own = block * (height // blocks) + jnp.minimum(block, height % blocks)
    count = height // blocks + (block < height % blocks)

    def walk(start):
        w = rows.load_weight(weight_ref, start, cut)  # (width,)

        def step(row, total):
            # --- load the row
            dy, x = (rows.load(ref, row, start, cut) for ref in (dy_ref, x_ref))  # (width,)
            dx, terms = _dx(dy, x, w, rstd_ref[row], mean_ref[row])
            rows.at(dx_ref, row, start, cut)[...] = dx.astype(dx_ref.dtype)
            # --- dweight
            return total + terms

        total = lax.fori_loop(own, own + count, step, rows.full(0.0, cut))
        rows.at(partial_ref, block, start, cut)[...] = total

    # The last strip's block takes the columns that are left too, beginning early.
    @pl.loop(0, jnp.where(strip == whole - 1, 2, 1) if cut.again else 1)
    def _(turn):
        walk(jnp.where(turn == 0, strip * cut.width, cut.cols - cut.width) if cut.again else strip * cut.width)


def _ring(
    dy_ref, x_ref, weight_ref, rstd_ref, dx_ref, partial_ref, slots, filled, *scratch,
    height: int, cols: int, config: Config,
):  # fmt: skip
    """Whole rows down, whose tiles stay in shared memory from the mean of g x to dx.

    slots: (slot, warpgroup, dy or x, lines of its tiles, LINE); a warpgroup's part of a row takes a few in turn.
    """
    cut, warpgroups, blocks, tiles = config.cut, config.warpgroups, config.blocks, config.tiles
    me, block = lax.axis_index("warpgroup"), lax.axis_index("block")
    reduce = rows.reduction(warpgroups, cut, scratch)
    width = cut.width * tiles  # of a slot
    parts = cols // warpgroups // width  # slots that a row takes
    high = cut.width // rows.LINE
    count = pl.cdiv(height - block, blocks)  # rows
    layout = plgpu.Layout.WG_STRIDED((high, rows.LINE), vec_size=cut.vector)
    places = [(part, tile) for part in range(parts) for tile in range(tiles)]
    start = lambda part, tile: (me * parts + part) * width + tile * cut.width
    weight = lambda *place: rows.load_weight(weight_ref, start(*place), cut)  # (width,)
    if len(places) <= HELD // 2:
        weight = {place: weight(*place) for place in places}.__getitem__
    else:
        weight = lambda place, load=weight: load(*place)

    def fetch(i):
        """Start the copies of the i-th slot's worth of this warpgroup's rows."""
        row, part, slot = block + lax.div(i, parts) * blocks, lax.rem(i, parts), lax.rem(i, config.slots)
        lines = pl.ds((me * parts + part) * tiles * high, tiles * high)
        for k, ref in enumerate((dy_ref, x_ref)):
            plgpu.copy_gmem_to_smem(ref.at[row, lines], slots.at[slot, me, k], filled.at[slot * warpgroups + me])

    def load(i, tile):
        here = slots.at[lax.rem(i, config.slots), me]
        dy, x = (plgpu.load(here.at[k, pl.ds(tile * high, high)], layout=layout) for k in range(2))
        return (array.reshape(cut.width).astype(jnp.float32) for array in (dy, x))

    for i in range(config.slots):
        pl.when(i < count * parts)(lambda: fetch(i))

    def step(turn, totals):
        row, first = block + turn * blocks, turn * parts
        rstd = rstd_ref[row]
        products, found = 0.0, []
        for part, tile in places:
            # --- load the row
            if tile == 0:
                plgpu.barrier_wait(filled.at[lax.rem(first + part, config.slots) * warpgroups + me])
            dy, x = load(first + part, tile)  # (width,)

            # --- mean of g x
            products += dy * weight((part, tile)) * x
        mean = rstd * (reduce(lax.rem(turn, 2), products, jnp.sum, jnp.add) / cols)

        for (part, tile), total in zip(places, totals):
            dy, x = load(first + part, tile)
            dx, terms = _dx(dy, x, weight((part, tile)), rstd, mean)
            rows.at(dx_ref, row, start(part, tile), cut)[...] = dx.astype(dx_ref.dtype)
            if tile == tiles - 1:
                plgpu.commit_smem()  # all threads have read before the copy writes
                ahead = first + part + config.slots
                pl.when(ahead < count * parts)(lambda: fetch(ahead))

            # --- dweight
            found.append(total + terms)
        return found

    @pl.loop(0, _segments(height, blocks))
    def _(segment):
        empty = [rows.full(0.0, cut) for _ in places]
        stop = jnp.minimum((segment + 1) * CHAIN, count)
        for place, total in zip(places, lax.fori_loop(segment * CHAIN, stop, step, empty)):
            rows.at(partial_ref, segment * blocks + block, start(*place), cut)[...] = total


def _segments(height: int, blocks: int) -> int:
    """How many partial sums a block hands over: no chain of additions is longer than CHAIN."""
    return pl.cdiv(pl.cdiv(height, blocks), CHAIN)


def _down(partial_ref, dweight_ref, *, count: int):
    """dweight of WARP columns: the sum of their count partial sums."""
    down = min(DOWN, count // rows.TEAM * rows.TEAM)
    shape, layout = (down, rows.WARP), rows.warp_a_row(1)
    here = pl.ds(lax.axis_index("strip") * rows.WARP, rows.WARP)
    tiles = pl.cdiv(count, down)

    def add(i, total):
        first = jnp.minimum(i * down, count - down)
        tile = plgpu.load(partial_ref.at[pl.ds(first, down), here], layout=layout, optimized=False)  # (down, WARP)
        place = plgpu.broadcasted_iota(jnp.int32, shape, 0, layout=layout)
        return total + jnp.where(place >= i * down - first, tile, 0.0)

    empty = lambda: plgpu.layout_cast(jnp.zeros(shape, jnp.float32), layout)

    def chain(i, total):
        return total + lax.fori_loop(i * CHAIN, jnp.minimum((i + 1) * CHAIN, tiles), add, empty())

    # --- dweight
    total = lax.fori_loop(0, pl.cdiv(tiles, CHAIN), chain, empty())
    dweight_ref.at[here][...] = jnp.sum(total, axis=0).astype(dweight_ref.dtype)


def launch(dy, x, weight, rstd, dx, config: Config, cols: int, interpret) -> jax.Array:
    """Write dx, (rows, cols) with rows >= 1; returns dweight. All as wide as config cuts; cols: without padding."""
    cut, warpgroups = config.cut, config.warpgroups
    call = functools.partial(
        plgpu.kernel, compiler_params=rows.PARAMETERS, interpret=interpret, num_threads=1, thread_name="warpgroup"
    )
    ring = config.kernel == "ring"
    parts = rows.parts(x.shape[0], cut.cols)
    counts = [config.blocks * (_segments(height, config.blocks) if ring else 1) for _, height in parts]
    padded = pl.cdiv(cut.cols, rows.WARP) * rows.WARP
    partial = jax.empty_ref(jax.ShapeDtypeStruct((sum(counts), padded), jnp.float32))
    if ring:
        lines = lambda array: array.reshape(x.shape[0], -1, rows.LINE)
        scratch = [
            plgpu.SMEM((config.slots, warpgroups, 2, config.tiles * cut.width // rows.LINE, rows.LINE), x.dtype),
            plgpu.Barrier(num_arrivals=2, num_barriers=config.slots * warpgroups),
            *rows.shared(warpgroups, cut),
        ]
    else:
        mean = jax.empty_ref(jax.ShapeDtypeStruct(rstd.shape, jnp.float32))
    for i, (first, height) in enumerate(parts):
        here = lambda *refs: [ref.at[pl.ds(first, height)] for ref in refs]
        sums = lambda ref: ref.at[pl.ds(sum(counts[:i]), counts[i])]
        if ring:

            def walk(dy, x, weight, rstd, dx, partial, *scratch):
                dy, x, rstd, dx = here(dy, x, rstd, dx)
                _ring(dy, x, weight, rstd, dx, sums(partial), *scratch, height=height, cols=cols, config=config)

            call(
                walk,
                scratch_types=scratch,
                grid=(config.blocks,),
                grid_names=("block",),
                num_threads=warpgroups,
                kernel_name="rmsnorm_backward",
            )(lines(dy), lines(x), weight, rstd, dx, partial)
            continue

        def means(dy, x, weight, rstd, mean, *scratch):
            dy, x, rstd, mean = here(dy, x, rstd, mean)
            _means(dy, x, weight, rstd, mean, *scratch, cols=cols, config=config)

        def strips(dy, x, weight, rstd, mean, dx, partial):
            dy, x, rstd, mean, dx = here(dy, x, rstd, mean, dx)
            _strips(dy, x, weight, rstd, mean, dx, sums(partial), height=height, config=config)

        call(
            means,
            scratch_types=rows.shared(warpgroups, cut),
            grid=(height,),
            grid_names=("tile",),
            num_threads=warpgroups,
            kernel_name="rmsnorm_backward_means",
        )(dy, x, weight, rstd, mean)
        call(
            strips,
            grid=(cut.cols // cut.width, config.blocks),
            grid_names=("strip", "block"),
            kernel_name="rmsnorm_backward",
        )(dy, x, weight, rstd, mean, dx, partial)
    dweight = jax.empty_ref(jax.ShapeDtypeStruct((padded,), weight.dtype))
    call(
        functools.partial(_down, count=sum(counts)),
        grid=(padded // rows.WARP,),
        grid_names=("strip",),
        kernel_name="rmsnorm_backward_dweight",
    )(partial, dweight)
    return jax.freeze(dweight)
