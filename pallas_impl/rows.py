"""What the row kernels share: how a row is cut into register tiles, and how the warpgroups of a block agree on it.

A row is held as tiles of one width. Loads and stores take no mask: where the width does not divide the row, the last
tile begins early and holds some elements again. A full reduction of Mosaic's has one scratch for all warpgroups of a
block, which would race there without a word: :func:`reduction` goes through shared memory of its own.
"""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

WARP, WARPGROUP = 32, 128  # threads
TEAM = 4  # rows that a warpgroup takes at once, one a warp
PART = 1 << 30  # elements a launch: Mosaic computes with int32 indices, and a launch's first row is static
MULTIPROCESSORS = 132  # of an H100 or H200 (SXM), for kernels whose blocks stay
TEAM_COLS = 2048  # widest row of one warp
WARPGROUP_COLS = 16384  # widest row of one warpgroup: 128 elements a thread
WIDE_FROM, WIDE_COLS = WARPGROUP_COLS + 1, 32768  # narrowest and widest row that a block holds, or a ring
HELD = 32  # float32 elements of a wide row a thread; twice as many of 16 bits as they lie in memory
SHARERS = 4  # warpgroups of a block that share a row in chunks
SHARED = 228 << 10  # bytes of shared memory of a multiprocessor
RESERVED = 2560  # of them in every block not a ring's: 1 KiB is the driver's, the rest for sums and barriers
BARRIERS = 32  # the most that Mosaic has in one group
LINE = 256  # elements: the longest axis of a TMA copy

# By default two barriers surround every store. Here nothing is read where it is written, but in shared memory, where
# the kernels have barriers of their own.
PARAMETERS = plgpu.CompilerParams(unsafe_no_auto_barriers=True)
# A ring's reductions are within warps, and its slots need the room that Mosaic sets aside for others.
RING_PARAMETERS = plgpu.CompilerParams(unsafe_no_auto_barriers=True, reduction_scratch_bytes=0)


class Cut(NamedTuple):
    """A row of cols elements in tiles of width, loaded vector elements at a time; team: TEAM rows, one a warp."""

    cols: int
    width: int
    vector: int
    team: bool = False

    @property
    def starts(self) -> list[int]:
        """Where the tiles begin."""
        whole = list(range(0, self.cols - self.width + 1, self.width))
        return whole + [self.cols - self.width] * (self.cols % self.width > 0)

    @property
    def again(self) -> int:
        """How many elements at the front of the last tile the tile before it holds too."""
        return -self.cols % self.width

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a tile: (width,), or (TEAM, width)."""
        return (TEAM, self.width) if self.team else (self.width,)

    @property
    def layout(self):
        """Of a tile in registers."""
        return warp_a_row(self.vector) if self.team else plgpu.Layout.WG_STRIDED(self.shape, vec_size=self.vector)


def cut(cols: int, itemsize: int, team: bool = False, each: int = 8) -> Cut:
    """Tiles of up to ``each`` elements a thread, and loads as wide as the rows' alignment lets them be."""
    threads = WARP if team else WARPGROUP
    while threads * each > cols:
        each //= 2
    return Cut(cols, threads * each, min(math.gcd(cols, 16 // itemsize), each), team)


@dataclass(frozen=True)
class Config:
    """How softmax or RMSNorm is carried out.

    kernel: ``registers``, ``packed``, ``ring`` or ``chunks``. warpgroups: of a block, which share a row. tiles: held at
    once, in ``chunks``. In ``ring``, parts: slots that a warpgroup's part of a row takes; slots: in flight to it; blocks: that
    stay.
    """

    kernel: str
    cut: Cut
    warpgroups: int = 1
    tiles: int = 4
    parts: int = 1
    slots: int = 2
    blocks: int = MULTIPROCESSORS

    def __post_init__(self):
        if self.kernel == "ring":
            check_ring(self.cut.cols, self.warpgroups, self.parts, self.slots, self.parts + 1)


def configure(height: int, cols: int, itemsize: int, variant: str, most: int, sources: int = 1) -> Config:
    """The configuration of softmax or RMSNorm for x (height, cols).

    most: warpgroups a block can have. sources: arrays of that shape that are read, 2 with a residual.
    """
    if variant == "prefetched" and WIDE_FROM <= cols <= WIDE_COLS:
        if found := (_held if sources == 1 else _ring)(cols, itemsize, most):
            return found
    if variant != "two_reads":
        if cols <= TEAM_COLS and height >= TEAM:
            return Config("registers", cut(max(cols, WARP), itemsize, team=True))
        if cols <= WARPGROUP_COLS:
            return Config("registers", cut(max(cols, WARPGROUP), itemsize))
    tiled = cut(max(cols, WARPGROUP), itemsize)
    tiles = min(4, cols // tiled.width or 1)
    # More chunks than warpgroups: the last one overlaps the one before, which has to be the same warpgroup's.
    chunks = pl.cdiv(cols, tiles * tiled.width)
    return Config("chunks", tiled, min(most, SHARERS, max(1, chunks - 1)), tiles)


def _held(cols: int, itemsize: int, most: int) -> Config | None:
    """The configuration that holds a row in the registers of a block, in equal parts, if one does."""
    for warpgroups in range(1, most + 1):
        part = cut(cols // warpgroups, itemsize)
        # An interpreter, which has 2, has no lack of registers.
        enough = len(part.starts) * part.width <= HELD * 4 // itemsize * WARPGROUP or most == warpgroups == 2
        # In shorter vectors, 16 bits take more registers than two blocks leave.
        if cols % warpgroups == 0 and enough and part.vector * itemsize == 16:
            return Config("registers" if itemsize == 4 else "packed", part._replace(cols=cols), warpgroups)
    return None


def _ring(cols: int, itemsize: int, most: int) -> Config | None:
    """The configuration of a ring of two sources, where a row is a multiple of its tiles and fits."""
    wanted = next((w for w in (1, 2) if cols <= w * 64 * WARPGROUP), 4)
    warpgroups, at_once = min(wanted, most), 4 // wanted  # at once: blocks a multiprocessor
    tiles, odd = divmod(cols, warpgroups * TEAM * LINE)
    parts, slots = fitted(tiles, 2 * cols * itemsize, SHARED // at_once - RESERVED, warpgroups)
    if odd or slots <= parts:
        return None
    return Config("ring", cut(cols, itemsize), warpgroups, parts=parts, slots=slots, blocks=at_once * MULTIPROCESSORS)


def check_ring(cols: int, warpgroups: int, parts: int, slots: int, least: int) -> None:
    """Raise ValueError for a ring that cannot be, or whose blocks would wait for themselves; least: slots."""
    if cols % (warpgroups * parts * TEAM * LINE) or not least <= slots <= BARRIERS // warpgroups:
        raise ValueError(f"parts is {parts} and slots {slots}; accepted: at least {least} slots, and whole tiles")


def fitted(tiles: int, size: int, room: int, warpgroups: int) -> tuple[int, int]:
    """Into how many parts to cut a row of ``size`` bytes, ``tiles`` a warpgroup, and how many slots of one fit.

    The choice that has most quarters of a row in flight, and the fewest parts then.
    """
    choices = [parts for parts in range(1, tiles + 1) if tiles % parts == 0]
    slots = lambda parts: min(room * parts // size, BARRIERS // warpgroups)
    parts = max(choices, key=lambda parts: 4 * slots(parts) // parts, default=1)
    return parts, slots(parts)


def warp_a_row(vector: int):
    """The layout of a (TEAM, n) tile in which a row is a warp's, so that its reduction needs no barrier."""
    tiling = plgpu.Tiling(((TEAM, WARP * vector), (vector,)))
    return plgpu.Layout.TILED(tiling, warp_dims=(-3,), lane_dims=(-2,), vector_dim=-1)


def at(ref, row, start, cut: Cut):
    """The tile of ref (rows, cols) whose first element is (row, start)."""
    return ref.at[pl.ds(row, TEAM) if cut.team else row, pl.ds(start, cut.width)]


def load(ref, row, start, cut: Cut):
    """That tile, in registers, as float32."""
    return plgpu.load(at(ref, row, start, cut), layout=cut.layout, optimized=not cut.team).astype(jnp.float32)


def own(cut: Cut, warpgroups: int) -> Cut:
    """A warpgroup's part of a row that so many share, cut as a row of its own."""
    return cut._replace(cols=cut.cols // warpgroups)


def own_starts(cut: Cut, warpgroups: int) -> list:
    """Where the tiles of this warpgroup's part begin."""
    part = own(cut, warpgroups)
    if warpgroups == 1:
        return part.starts
    return [lax.axis_index("warpgroup") * part.cols + start for start in part.starts]


def unpacked(tile, number):
    """A 16-bit tile as float32, once ``number`` is there, a float32 tile or scalar that is not below 0.

    The compiler does not know that. What it unpacks before it unpacks anew: to keep it would take twice the registers.
    NaN is allowed where the whole row comes out NaN.
    """
    if number.ndim:
        zero = (lax.bitcast_convert_type(number, jnp.int32) >> 31).astype(jnp.int16)
    else:
        zero = jnp.where(number < 0, 1, 0).astype(jnp.int16)
    return lax.bitcast_convert_type(lax.bitcast_convert_type(tile, jnp.int16) ^ zero, tile.dtype).astype(jnp.float32)


def load_weight(ref, start, cut: Cut):
    """ref (cols,) from start on, as wide as a tile, as float32."""
    layout = cut.layout.reduce(0) if cut.team else cut.layout
    tile = plgpu.load(ref.at[pl.ds(start, cut.width)], layout=layout, optimized=not cut.team).astype(jnp.float32)
    return lax.broadcast_in_dim(tile, cut.shape, (1,)) if cut.team else tile


def load_numbers(ref, row, cut: Cut):
    """ref (rows,) at row, or the TEAM numbers from there on, in registers."""
    if not cut.team:
        return ref[row]
    return plgpu.load(ref.at[pl.ds(row, TEAM)], layout=cut.layout.reduce(1), optimized=False)


def full(value, cut: Cut):
    """A tile of one value, to begin a loop with."""
    return plgpu.layout_cast(jnp.full(cut.shape, value, jnp.float32), cut.layout)


def along(value, cut: Cut):
    """A number a row, as wide as a tile."""
    return lax.broadcast_in_dim(value, cut.shape, (0,)) if cut.team else value


def once(tile, again, cut: Cut, fill):
    """The tile with fill in the place of its first ``again`` elements, which another tile holds."""
    place = plgpu.broadcasted_iota(jnp.int32, cut.shape, len(cut.shape) - 1, layout=cut.layout)
    return jnp.where(place >= again, tile, fill)


def each_row(rows: int, cut: Cut, take) -> None:
    """``take(row)`` for the row, or the first of the TEAM rows, that the block ``axis "tile"`` owns."""
    index = lax.axis_index("tile")
    if not cut.team:
        take(index)
    elif rows % TEAM == 0:
        take(index * TEAM)
    else:
        # The last block takes the last TEAM rows too, some of which it has just stored.
        @pl.loop(0, jnp.where(index == rows // TEAM - 1, 2, 1))
        def _(turn):
            take(jnp.where(turn == 0, index * TEAM, rows - TEAM))


def chunks(cut: Cut, warpgroups: int, tiles: int, me):
    """A row in chunks of so many tiles: elements in one, the range of those that warpgroup ``me`` owns, and a function
    that gives the starts of a chunk's tiles. The last chunk begins early where the row is no multiple of one.
    """
    chunk = tiles * cut.width
    count = pl.cdiv(cut.cols, chunk)
    own = me * count // warpgroups, (me + 1) * count // warpgroups
    # Without the minimum where it is not needed, or the compiler loses sight of the alignment.
    begin = (lambda i: jnp.minimum(i * chunk, cut.cols - chunk)) if cut.cols % chunk else lambda i: i * chunk
    return chunk, own, lambda i: [begin(i) + t * cut.width for t in range(tiles)]


def parts(rows: int, cols: int) -> list[tuple[int, int]]:
    """The first row of each launch, and how many it has: TEAM at least, where there are so many at all."""
    step = max(PART // cols, TEAM)
    firsts = range(0, max(rows - TEAM, 1), step)
    return [(first, stop - first) for first, stop in zip(firsts, [*firsts[1:], rows])]


def shared(warpgroups: int, cut: Cut, lines: bool = False) -> list:
    """The shared memory and the barrier of :func:`reduction`, none for one warpgroup; lines: of a ring's tiles."""
    if warpgroups == 1 and not lines:
        return []
    numbers = [plgpu.SMEM((2, warpgroups, TEAM), jnp.float32), plgpu.Barrier(num_arrivals=warpgroups)]
    return numbers if lines else [*numbers, plgpu.SMEM((warpgroups, TEAM, cut.width // TEAM), jnp.float32)]


def reduction(cut: Cut, scratch=()):
    """``reduce(turn, tile, over, two)``: ``over`` (jnp.sum) of the tiles of all warpgroups of a block, along each row.

    two: the same of two numbers (jnp.add). turn: 0 and 1 in alternation, so that nobody writes what another reads.
    """

    def reduce(turn, tile, over, two):
        if not scratch:
            return along(over(tile, axis=-1), cut)
        warps, barrier, *tiles = scratch
        if tiles:
            tile = _by_warp(tile, tiles[0].at[lax.axis_index("warpgroup")], cut)
        put(warps, turn, over(tile, axis=-1))
        plgpu.barrier_arrive(barrier)
        plgpu.barrier_wait(barrier)
        return together(warps, turn, two)

    return reduce


def put(warps, turn, numbers) -> None:
    """Write this warpgroup's numbers, (TEAM,), one a warp, for all warpgroups of a block to read."""
    warps.at[turn, lax.axis_index("warpgroup")][...] = numbers


def together(warps, turn, two):
    """``two`` (jnp.add) of all that the warpgroups have put."""
    return functools.reduce(two, [warps[turn, w, i] for w in range(warps.shape[1]) for i in range(TEAM)])


def _by_warp(tile, spot, cut: Cut):
    """The tile as (TEAM, width / TEAM), a line a warp, by way of shared memory."""
    spot[...] = tile.reshape(spot.shape)
    plgpu.commit_smem()  # this warpgroup's barrier
    return plgpu.load(spot, layout=warp_a_row(min(4, cut.width // WARPGROUP)), optimized=False)


class Ring(NamedTuple):
    """A block's rows on their way through shared memory, by TMA both ways, each warpgroup with its part of every row.

    That part takes ``parts`` slots, one after the other; the i-th of them all is in slot i modulo their number, beside
    those of the other sources. Results replace what they were made of and leave from there: a slot is filled again
    when the store of it has read it.

    sources: (rows, cols / LINE, LINE) each. slots, filled: :meth:`scratch`. count: rows of this block, ``row(turn)``.
    endless: no branches; more than count rows are fetched, which row has to give too.
    """

    sources: tuple
    slots: object
    filled: object
    parts: int
    count: object
    row: object
    endless: bool = False

    @staticmethod
    def scratch(config, sources: int, dtype) -> list:
        slots, warpgroups = config.slots, config.warpgroups
        lines = config.cut.cols // LINE // warpgroups // config.parts
        filled = plgpu.Barrier(num_arrivals=sources, num_barriers=slots * warpgroups)
        return [plgpu.SMEM((slots, warpgroups, sources, lines, LINE), dtype), filled]

    @property
    def tiles(self) -> int:
        """In a slot, of TEAM lines, one a warp."""
        return self.slots.shape[3] // TEAM

    def _place(self, i):
        """The slot of the i-th part, its row, and its lines in it."""
        slots, _, _, lines, _ = self.slots.shape
        part = lax.axis_index("warpgroup") * self.parts + lax.rem(i, self.parts)
        return lax.rem(i, slots), self.row(lax.div(i, self.parts)), pl.ds(part * lines, lines)

    def fetch(self, i) -> None:
        """Start the copies of the i-th part."""
        # --- load the row
        me, (slot, row, lines) = lax.axis_index("warpgroup"), self._place(i)
        filled = self.filled.at[slot * self.slots.shape[1] + me]
        for k, source in enumerate(self.sources):
            plgpu.copy_gmem_to_smem(source.at[row, lines], self.slots.at[slot, me, k], filled)

    def start(self) -> None:
        for i in range(self.slots.shape[0] - self.endless):
            self._when(i < self.count * self.parts, i)

    def _when(self, there, i) -> None:
        if self.endless:
            self.fetch(i)
        else:
            pl.when(there)(lambda: self.fetch(i))

    def wait(self, i) -> None:
        """Until the i-th part is there."""
        slots, warpgroups, *_ = self.slots.shape
        plgpu.barrier_wait(self.filled.at[lax.rem(i, slots) * warpgroups + lax.axis_index("warpgroup")])

    def at(self, i, tile: int, source: int = 0):
        """A tile (TEAM, LINE) of the i-th part, in shared memory."""
        slot = lax.rem(i, self.slots.shape[0])
        return self.slots.at[slot, lax.axis_index("warpgroup"), source, pl.ds(tile * TEAM, TEAM)]

    def load(self, i, tile: int, source: int = 0):
        """That tile, in registers, as float32."""
        return plgpu.load(self.at(i, tile, source), layout=self.layout, optimized=False).astype(jnp.float32)

    def store(self, i, *outs) -> None:
        """Start the stores of the i-th part's slots, of one source each, and fill those of the part before again."""
        me, (slot, row, lines) = lax.axis_index("warpgroup"), self._place(i)
        plgpu.commit_smem()  # all threads have read and written before the copies do
        for k, out in enumerate(outs):
            plgpu.copy_smem_to_gmem(self.slots.at[slot, me, k], out.at[row, lines], commit_group=False)
        plgpu.commit_smem_to_gmem_group()
        plgpu.wait_smem_to_gmem(1, wait_read_only=True)
        then = i - 1 + self.slots.shape[0]
        self._when((i > 0) & (then < self.count * self.parts), then)

    @property
    def layout(self):
        """Of a tile in registers."""
        return warp_a_row(16 // self.slots.dtype.itemsize)

    def lines(self, part: int, tile: int):
        """Where in a row this warpgroup's tile is."""
        first = (lax.axis_index("warpgroup") * self.parts + part) * self.tiles + tile
        return pl.ds(first * TEAM, TEAM)

    def load_weight(self, ref, part: int, tile: int):
        """That tile of ref (cols / LINE, LINE), in registers."""
        return plgpu.load(ref.at[self.lines(part, tile)], layout=self.layout, optimized=False)


def by_line(array):
    """An array (..., cols) as (..., cols / LINE, LINE)."""
    return array.reshape(*array.shape[:-1], -1, LINE)


def most_warpgroups(interpret) -> int:
    """Of a block. The interpreter runs each in a thread of XLA's, which has one a core, and waits for all: 2 there."""
    return 2 if interpret else 8
