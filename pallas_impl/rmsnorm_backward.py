"""RMSNorm's gradients: dx = rstd (g - x rstd^2 mean(g x)), g = dy w; dweight = sum over rows of dy x rstd.

contract  reference/rmsnorm.py; ``out=`` takes a tuple of ``jax.Ref``
mapping   blocks stay and walk down rows, split over 1, 2 or 4 warpgroups, or TEAM rows at once, one a warp; a thread
          keeps dweight of its own columns in float32, and a last kernel adds what the blocks found, in a fixed order
traffic   reads dy and x and writes dx once; dweight of every block, 1 to 4 % more, is written and read. Where rows do
          not fit on chip, dy and x are read twice, first for mean(g x). From 8192 columns on a row's weight comes from
          L2 every time, half as much as dy and x
limits    Hopper. Through TMA: widths that are 1024 times a warpgroup's tiles, up to 32768 in 16 bits and 16384 in
          float32. In registers: up to 12288. Others are read twice. Below one element a thread (32, or 128 with fewer
          than 4 rows) padded by the wrapper, in small kernels more
"""

import functools
from dataclasses import dataclass, replace

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
        "one_read",
        "rows up to 12288 columns stay in registers until dx",
        DTYPES,
        ("sm_90a",),
        {"spill_bytes": 0},
    ),
    Variant(
        "prefetched", "one walk: tiles come through TMA, rows ahead, and stay until dx", DTYPES, ("sm_90a",),
        {"spill_bytes": 0},
    ),
)  # fmt: skip

SHARED = 25_000  # bytes of shared memory for a warpgroup's ring
BARRIERS = 32  # the most that Mosaic has in one group
HELD = 2  # tiles of a row in a warpgroup's registers, with their weight and sums of dweight
TOTALS = 8  # sums of dweight of so many tiles: 64 elements a thread
TEAM_COLS = 1024  # widest row of one warp
DOWN = 128  # rows of partial sums at once in the last kernel, as many as there are below that


@dataclass(frozen=True)
class Config:
    """How a call is carried out.

    kernel: ``registers``, ``ring``, ``ahead`` or ``strips``. warpgroups: of a block, which share a row. blocks: that
    walk down rows, over all strips. tiles: of a row, in ``registers``; held at once for mean(g x), in ``strips``.
    slots: in flight to a warpgroup, of ``tiles`` tiles each, in ``ring``; in ``ahead`` a row takes ``parts`` of them.
    """

    kernel: str
    cut: Cut
    warpgroups: int
    blocks: int
    tiles: int
    slots: int = 0
    parts: int = 1

    def __post_init__(self):
        if self.kernel == "ahead":
            rows.check_ring(self.cut.cols, self.warpgroups, self.parts, self.slots, self.parts + 2)


def configure(height: int, cols: int, itemsize: int, variant: str, most: int = 4) -> Config:
    """The configuration for x (height, cols); most: warpgroups a block can have."""
    cut = rows.cut(max(cols, rows.WARPGROUP), itemsize)
    if variant == "prefetched" and cols % cut.width == 0 and cut.width % rows.LINE == 0:
        warpgroups = max(w for w in (1, 2, 4) if w <= max(1, min(most, cols // 2048)) and cols % (w * cut.width) == 0)
        own = cols // warpgroups // cut.width
        room = SHARED // (2 * cut.width * itemsize)
        tiles = 2 if own % 2 == 0 and room > BARRIERS // warpgroups else 1
        slots = min(room // tiles, BARRIERS // warpgroups)
        # A row of one tile leaves registers for more, and has more need of them: a row a turn, each with its barriers.
        blocks = min(height, rows.MULTIPROCESSORS * (6 if cols * itemsize <= 2048 else 4 // warpgroups))
        if own <= min(HELD, slots * tiles):
            return Config("ring", cut, warpgroups, blocks, tiles, slots)
        parts, slots = rows.fitted(own, 2 * cols * itemsize, rows.SHARED - rows.RESERVED, warpgroups)
        if own <= TOTALS and slots >= parts + 2:
            return Config("ahead", cut, warpgroups, blocks, own, slots, parts)
    if variant != "two_reads" and (found := _in_registers(height, cols, itemsize, most)):
        return found
    tiles = min(4, cols // cut.width or 1)
    chunks = pl.cdiv(cols, tiles * cut.width)
    strips = max(1, cols // cut.width)
    walks = max(min(height, pl.cdiv(8 * rows.MULTIPROCESSORS, strips)), pl.cdiv(height, CHAIN))
    return Config("strips", cut, min(most, rows.SHARERS, max(1, chunks - 1)), walks, tiles)


def _in_registers(height: int, cols: int, itemsize: int, most: int) -> Config | None:
    """The configuration that holds a row in registers, if one does."""
    if rows.WARP <= cols <= TEAM_COLS and height >= rows.TEAM:
        cut = rows.cut(cols, itemsize, team=True)
        return Config("registers", cut, 1, min(height // rows.TEAM, rows.MULTIPROCESSORS * 2), len(cut.starts))
    for each in (8, 4):
        cut = rows.cut(max(cols, rows.WARPGROUP), itemsize, each=each)
        for warpgroups in (1, 2, 4)[:most]:
            tiles, left = divmod(len(cut.starts), warpgroups)
            # The last tile may overlap the one before, which has to be the same warpgroup's.
            apart = left == 0 and (warpgroups == 1 or tiles > 1 or cut.again == 0)
            # Four warpgroups have 128 registers a thread, of which an element takes 4.
            if apart and tiles * cut.width // rows.WARPGROUP <= (48 if warpgroups < 4 else 24):
                blocks = rows.MULTIPROCESSORS * max(1, 2 // warpgroups)
                return Config("registers", cut, warpgroups, min(height, blocks), tiles)
    return None


def _means(dy_ref, x_ref, weight_ref, rstd_ref, mean_ref, *scratch, cols: int, config: Config):
    """rstd mean(g x) of every row, in chunks of a few tiles."""
    cut, warpgroups = config.cut, config.warpgroups
    me, row = lax.axis_index("warpgroup"), lax.axis_index("tile")
    reduce = rows.reduction(cut, scratch)
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


def _own_rows(height: int, blocks: int):
    """First of this block's rows, and how many it has."""
    block, each, more = lax.axis_index("block"), height // blocks, height % blocks
    return block * each + jnp.minimum(block, more), each + (block < more)


def _dx(dy, x, w, rstd, mean):
    """dx and the terms of dweight of a tile; mean: rstd mean(g x)."""
    # --- dx
    xhat = x * rstd
    return rstd * (dy * w - xhat * mean), dy * xhat


def _strips(dy_ref, x_ref, weight_ref, rstd_ref, mean_ref, dx_ref, partial_ref, *, height: int, config: Config):
    """One strip of columns, a tile wide, down some rows."""
    cut = config.cut
    strip, block = lax.axis_index("strip"), lax.axis_index("block")
    whole = cut.cols // cut.width
    first, count = _own_rows(height, config.blocks)

    def walk(start):
        w = rows.load_weight(weight_ref, start, cut)  # (width,)

        def step(row, total):
            # --- load the row
            dy, x = (rows.load(ref, row, start, cut) for ref in (dy_ref, x_ref))  # (width,)
            dx, terms = _dx(dy, x, w, rstd_ref[row], mean_ref[row])
            rows.at(dx_ref, row, start, cut)[...] = dx.astype(dx_ref.dtype)
            # --- dweight
            return total + terms

        total = lax.fori_loop(first, first + count, step, rows.full(0.0, cut))
        rows.at(partial_ref, block, start, cut)[...] = total

    # The last strip's block takes the columns that are left too, beginning early.
    @pl.loop(0, jnp.where(strip == whole - 1, 2, 1) if cut.again else 1)
    def _(turn):
        walk(jnp.where(turn == 0, strip * cut.width, cut.cols - cut.width) if cut.again else strip * cut.width)


def _registers(
    dy_ref, x_ref, weight_ref, rstd_ref, dx_ref, partial_ref, *scratch, height: int, cols: int, config: Config
):
    """Whole rows down, or TEAM of them at once, held in registers from the mean of g x to dx."""
    cut, blocks = config.cut, config.blocks
    me = lax.axis_index("warpgroup")
    reduce = rows.reduction(cut, () if cut.team else scratch)
    tile = lambda t: (me * config.tiles + t) * cut.width
    start = lambda t: jnp.minimum(tile(t), cut.cols - cut.width) if cut.again else tile(t)
    places = [start(t) for t in range(config.tiles)]
    w = [rows.load_weight(weight_ref, place, cut) for place in places]  # (width,) or (TEAM, width) each
    high = rows.TEAM if cut.team else 1
    first, count = _own_rows(height, blocks)
    steps = pl.cdiv(count, high)

    def step(i, totals):
        # A team that begins early, not to run over the end, counts no row twice.
        row = first + jnp.minimum(i * high, count - high)
        # --- load the row
        dy, x = ([rows.load(ref, row, place, cut) for place in places] for ref in (dy_ref, x_ref))
        rstd = rows.along(rows.load_numbers(rstd_ref, row, cut), cut)

        # --- mean of g x
        products = [a * b * c for a, b, c in zip(dy, w, x)]
        if cut.again:
            products[-1] = rows.once(products[-1], tile(config.tiles - 1) - places[-1], cut, 0.0)
        mean = rstd * (reduce(lax.rem(i, 2), functools.reduce(jnp.add, products), jnp.sum, jnp.add) / cols)

        found = []
        for k, place in enumerate(places):
            dx, terms = _dx(dy[k], x[k], w[k], rstd, mean)
            rows.at(dx_ref, row, place, cut)[...] = dx.astype(dx_ref.dtype)
            # --- dweight
            if cut.team:
                line = plgpu.broadcasted_iota(jnp.int32, cut.shape, 0, layout=cut.layout)
                terms = jnp.where(line >= first + i * high - row, terms, 0.0)
            found.append(totals[k] + terms)
        return found

    @pl.loop(0, _segments(height, config))
    def _(segment):
        empty = [rows.full(0.0, cut) for _ in places]
        totals = lax.fori_loop(segment * CHAIN, jnp.minimum((segment + 1) * CHAIN, steps), step, empty)
        for place, total in zip(places, totals):
            partial = partial_ref.at[segment * blocks + lax.axis_index("block"), pl.ds(place, cut.width)]
            partial[...] = _over_team(total, *scratch, cut) if cut.team else total


def _over_team(tile, spot, cut: Cut):
    """The sum (width,) of a tile's rows, by way of shared memory: the sum over warps takes vectors of 4 at most."""
    plgpu.commit_smem()  # all threads have read the tile before
    spot[...] = tile
    plgpu.commit_smem()
    layout = rows.warp_a_row(min(4, cut.width // rows.WARP))
    return jnp.sum(plgpu.load(spot, layout=layout, optimized=False), axis=0)


def _ring(
    dy_ref, x_ref, weight_ref, rstd_ref, dx_ref, partial_ref, slots, filled, *scratch,
    height: int, cols: int, config: Config,
):  # fmt: skip
    """Whole rows down, that come through shared memory and stay in registers from the mean of g x to dx.

    slots: (slot, warpgroup, dy or x, lines of its tiles, LINE); a warpgroup's part of a row takes a few in turn.
    """
    cut, warpgroups, blocks, tiles = config.cut, config.warpgroups, config.blocks, config.tiles
    me, block = lax.axis_index("warpgroup"), lax.axis_index("block")
    reduce = rows.reduction(cut, scratch)
    width = cut.width * tiles  # of a slot
    parts = cols // warpgroups // width  # slots that a row takes
    high = cut.width // rows.LINE
    count = pl.cdiv(height - block, blocks)  # rows
    layout = plgpu.Layout.WG_STRIDED((high, rows.LINE), vec_size=cut.vector)
    places = [(part, tile) for part in range(parts) for tile in range(tiles)]
    start = lambda part, tile: (me * parts + part) * width + tile * cut.width
    weight = lambda *place: rows.load_weight(weight_ref, start(*place), cut)  # (width,)
    weight = {place: weight(*place) for place in places}

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

    def refill(*emptied):
        """Use the slots again that these were in."""
        plgpu.commit_smem()  # all threads have read before the copy writes
        for i in emptied:
            pl.when(i + config.slots < count * parts)(lambda: fetch(i + config.slots))

    def step(turn, totals):
        row, first = block + turn * blocks, turn * parts
        rstd = rstd_ref[row]
        products, held, found = 0.0, [], []
        for part, tile in places:
            # --- load the row
            if tile == 0:
                plgpu.barrier_wait(filled.at[lax.rem(first + part, config.slots) * warpgroups + me])
            dy, x = load(first + part, tile)  # (width,)
            held.append((dy, x))

            # --- mean of g x
            products += dy * weight[part, tile] * x
        refill(*(first + part for part in range(parts)))
        mean = rstd * (reduce(lax.rem(turn, 2), products, jnp.sum, jnp.add) / cols)

        for i, (part, tile) in enumerate(places):
            dx, terms = _dx(*held[i], weight[part, tile], rstd, mean)
            rows.at(dx_ref, row, start(part, tile), cut)[...] = dx.astype(dx_ref.dtype)
            # --- dweight
            found.append(totals[i] + terms)
        return found

    @pl.loop(0, _segments(height, config))
    def _(segment):
        empty = [rows.full(0.0, cut) for _ in places]
        stop = jnp.minimum((segment + 1) * CHAIN, count)
        for place, total in zip(places, lax.fori_loop(segment * CHAIN, stop, step, empty)):
            rows.at(partial_ref, segment * blocks + block, start(*place), cut)[...] = total


def _ahead(
    dy_ref, x_ref, weight_ref, rstd_ref, dx_ref, partial_ref, slots, filled, warps, barrier,
    *, height: int, cols: int, config: Config,
):  # fmt: skip
    """Whole rows down, in shared memory from the mean of g x to dx, which leaves from x's place.

    With dx of a part of a row goes g x of that part of the next one, to which the weight is the same.
    """
    parts, block, blocks = config.parts, lax.axis_index("block"), config.blocks
    count = pl.cdiv(height - block, blocks)
    row = lambda turn: block + jnp.minimum(turn, count - 1) * blocks
    # A branch would let the compiler put off the additions to dweight until after it, and spill what they add.
    ring = rows.Ring((x_ref, dy_ref), slots, filled, parts, count, row, endless=True)
    tiles = range(ring.tiles)
    zeros = lambda: plgpu.layout_cast(jnp.zeros((rows.TEAM, rows.LINE), jnp.float32), ring.layout)
    weight = functools.partial(ring.load_weight, weight_ref)  # (TEAM, LINE), not widened yet: half the registers
    ring.start()

    def load(i, tile):
        # --- load the row
        return ring.load(i, tile, 1), ring.load(i, tile)  # (TEAM, LINE)

    def collect(i, w, then):
        """g x of the i-th part, (TEAM,), a number a warp, and the weight of the part ``then``, instead of w."""
        products, later = 0.0, []
        ring.wait(i)
        for tile in tiles:
            dy, x = load(i, tile)
            # --- mean of g x
            products += dy * w[tile].astype(jnp.float32) * x
            later.append(weight(then, tile))
        return jnp.sum(products, axis=-1), later

    def step(turn, carry):
        w, *totals = carry
        rstd = rstd_ref[row(turn)]
        plgpu.barrier_wait(barrier)
        mean = rstd * (rows.together(warps, lax.rem(turn, 2), jnp.add) / cols)
        found, products = [], 0.0
        for part in range(parts):
            i = turn * parts + part
            for tile in tiles:
                dy, x = load(i, tile)
                dx, terms = _dx(dy, x, w[tile].astype(jnp.float32), rstd, mean)
                ring.at(i, tile)[...] = dx.astype(dx_ref.dtype)
                # --- dweight
                found.append(totals[part * ring.tiles + tile] + terms)
            ring.store(i, dx_ref)
            more, w = collect(i + parts, w, (part + 1) % parts)
            products += more
        rows.put(warps, lax.rem(turn + 1, 2), products)
        plgpu.barrier_arrive(barrier)
        return [w, *found]

    w, products = [weight(0, tile) for tile in tiles], 0.0
    for part in range(parts):
        more, w = collect(jnp.int32(part), w, (part + 1) % parts)
        products += more
    rows.put(warps, 0, products)
    plgpu.barrier_arrive(barrier)

    @pl.loop(0, _segments(height, config))
    def _(segment):
        stop = jnp.minimum((segment + 1) * CHAIN, count)
        empty = [zeros() for _ in range(parts * ring.tiles)]
        _, *totals = lax.fori_loop(segment * CHAIN, stop, step, [[weight(0, tile) for tile in tiles], *empty])
        for n, total in enumerate(totals):
            partial_ref.at[segment * blocks + block, ring.lines(*divmod(n, ring.tiles))][...] = total

    # What is on its way still, of the rows beyond.
    plgpu.barrier_wait(barrier)
    for i in range(parts, config.slots - 1):
        ring.wait(count * parts + i)
    plgpu.wait_smem_to_gmem(0)


def _segments(height: int, config: Config) -> int:
    """How many partial sums a block hands over: no chain of additions is longer than CHAIN."""
    steps = pl.cdiv(height, config.blocks)
    return 1 if config.kernel == "strips" else pl.cdiv(pl.cdiv(steps, rows.TEAM if config.cut.team else 1), CHAIN)


def _down(partial_ref, dweight_ref, *, count: int):
    """dweight of WARP columns: the sum of their count partial sums."""
    there = max(count, rows.TEAM)
    down = min(DOWN, there // rows.TEAM * rows.TEAM)
    shape, layout = (down, rows.WARP), rows.warp_a_row(1)
    here = pl.ds(lax.axis_index("strip") * rows.WARP, rows.WARP)
    tiles = pl.cdiv(count, down)

    def add(i, total):
        first = jnp.minimum(i * down, there - down)
        tile = plgpu.load(partial_ref.at[pl.ds(first, down), here], layout=layout, optimized=False)  # (down, WARP)
        place = plgpu.broadcasted_iota(jnp.int32, shape, 0, layout=layout)
        once = place >= i * down - first
        return total + jnp.where(once & (place < count) if count < there else once, tile, 0.0)

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
    parts = []  # of the rows: the first, how many, the configuration, the first partial sum, and how many
    total = 0
    for first, height in rows.parts(x.shape[0], cut.cols):
        own = replace(config, blocks=min(config.blocks, max(1, height // (rows.TEAM if cut.team else 1))))
        sums = own.blocks * _segments(height, own)
        parts.append((first, height, own, total, sums))
        total += sums
    padded = pl.cdiv(cut.cols, rows.WARP) * rows.WARP
    shape = max(total, rows.TEAM), padded
    scratch = [plgpu.SMEM(cut.shape, jnp.float32)] if cut.team else rows.shared(warpgroups, cut)
    out, parameters = dx, rows.PARAMETERS
    if config.kernel == "ring":
        dy, x = map(rows.by_line, (dy, x))
        slots = plgpu.SMEM((config.slots, warpgroups, 2, config.tiles * cut.width // rows.LINE, rows.LINE), x.dtype)
        scratch = [slots, plgpu.Barrier(num_arrivals=2, num_barriers=config.slots * warpgroups), *scratch]
    if config.kernel == "ahead":
        # A ref cannot be reshaped to lines. XLA lets the kernel write where dx is all the same.
        dy, x, weight = map(rows.by_line, (dy, x, weight))
        out, shape = jax.empty_ref(jax.ShapeDtypeStruct(x.shape, x.dtype)), (shape[0], *weight.shape)
        scratch = rows.Ring.scratch(config, 2, x.dtype) + rows.shared(warpgroups, cut, lines=True)
        parameters = rows.RING_PARAMETERS
    partial = jax.empty_ref(jax.ShapeDtypeStruct(shape, jnp.float32))
    if config.kernel == "strips":
        mean = jax.empty_ref(jax.ShapeDtypeStruct(rstd.shape, jnp.float32))
    for first, height, own, begin, sums in parts:
        here = lambda *refs: [ref.at[pl.ds(first, height)] for ref in refs]

        def walk(dy, x, weight, rstd, dx, partial, *scratch):
            dy, x, rstd, dx = here(dy, x, rstd, dx)
            kernel = {"registers": _registers, "ring": _ring, "ahead": _ahead}[own.kernel]
            partial = partial.at[pl.ds(begin, sums)]
            kernel(dy, x, weight, rstd, dx, partial, *scratch, height=height, cols=cols, config=own)

        def means(dy, x, weight, rstd, mean, *scratch):
            dy, x, rstd, mean = here(dy, x, rstd, mean)
            _means(dy, x, weight, rstd, mean, *scratch, cols=cols, config=own)

        def strips(dy, x, weight, rstd, mean, dx, partial):
            dy, x, rstd, mean, dx = here(dy, x, rstd, mean, dx)
            _strips(dy, x, weight, rstd, mean, dx, partial.at[pl.ds(begin, sums)], height=height, config=own)

        together = dict(num_threads=warpgroups, scratch_types=scratch, compiler_params=parameters)
        if config.kernel != "strips":
            call(walk, grid=(own.blocks,), grid_names=("block",), kernel_name="rmsnorm_backward", **together)(
                dy, x, weight, rstd, out, partial
            )
            continue
        call(means, grid=(height,), grid_names=("tile",), kernel_name="rmsnorm_backward_means", **together)(
            dy, x, weight, rstd, mean
        )
        grid = cut.cols // cut.width, own.blocks
        call(strips, grid=grid, grid_names=("strip", "block"), kernel_name="rmsnorm_backward")(
            dy, x, weight, rstd, mean, dx, partial
        )
    if out is not dx:
        dx[...] = jax.freeze(out).reshape(dx.shape)
    dweight = jax.empty_ref(jax.ShapeDtypeStruct((padded,), weight.dtype))
    call(
        functools.partial(_down, count=total),
        grid=(padded // rows.WARP,),
        grid_names=("strip",),
        kernel_name="rmsnorm_backward_dweight",
    )(jax.freeze(partial).reshape(-1, padded), dweight)
    return jax.freeze(dweight)
