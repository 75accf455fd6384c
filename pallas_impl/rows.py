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
RING_COLS = 32768  # widest row of a ring: 64 elements a thread of its 4 warpgroups
SHARED = 200_000  # bytes of shared memory for a ring
LINE = 256  # elements: the longest axis of a TMA copy

# By default two barriers surround every store. Here nothing is read where it is written, but in shared memory, where
# the kernels have barriers of their own.
PARAMETERS = plgpu.CompilerParams(unsafe_no_auto_barriers=True)


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

    kernel: ``registers``, ``ring`` or ``chunks``. warpgroups: of a block, which share a row. tiles: held at once, in
    ``chunks``. stages: rows in flight, in ``ring``. blocks: that stay, in ``ring``.
    """

    kernel: str
    cut: Cut
    warpgroups: int = 1
    tiles: int = 4
    stages: int = 1
    blocks: int = MULTIPROCESSORS


def configure(height: int, cols: int, itemsize: int, variant: str, most: int, sources: int = 1) -> Config:
    """The configuration of softmax or RMSNorm for x (height, cols).

    most: warpgroups a block can have. sources: arrays of that shape that are read, 2 with a residual.
    """
    if variant != "two_reads":
        if cols <= TEAM_COLS and height >= TEAM:
            return Config("registers", cut(max(cols, WARP), itemsize, team=True))
        if cols <= WARPGROUP_COLS:
            return Config("registers", cut(max(cols, WARPGROUP), itemsize))
    tiled = cut(max(cols, WARPGROUP), itemsize)
    stages = min(3, SHARED // (cols * itemsize * sources))
    if variant == "prefetched" and cols <= RING_COLS and cols % (most * tiled.width) == 0 and stages:
        return Config("ring", tiled, most, stages=stages)
    tiles = min(4, cols // tiled.width or 1)
    # More chunks than warpgroups: the last one overlaps the one before, which has to be the same warpgroup's.
    chunks = pl.cdiv(cols, tiles * tiled.width)
    return Config("chunks", tiled, min(most, max(1, chunks - 1)), tiles)


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


def shared(warpgroups: int, cut: Cut) -> list:
    """The shared memory and the barrier of :func:`reduction`, none for one warpgroup."""
    if warpgroups == 1:
        return []
    return [
        plgpu.SMEM((warpgroups, TEAM, cut.width // TEAM), jnp.float32),
        plgpu.SMEM((2, warpgroups, TEAM), jnp.float32),
        plgpu.Barrier(num_arrivals=warpgroups),
    ]


def reduction(warpgroups: int, cut: Cut, scratch=()):
    """``reduce(turn, tile, over, two)``: ``over`` (jnp.sum) of the tiles of all warpgroups of a block, along each row.

    two: the same of two numbers (jnp.add). turn: 0 and 1 in alternation, so that nobody writes what another reads.
    """

    def reduce(turn, tile, over, two):
        if warpgroups == 1:
            return along(over(tile, axis=-1), cut)
        tiles, warps, barrier = scratch
        me = lax.axis_index("warpgroup")
        tiles.at[me][...] = tile.reshape(tiles.shape[1:])
        plgpu.commit_smem()  # this warpgroup's barrier
        layout = warp_a_row(min(4, cut.width // WARPGROUP))
        by_warp = plgpu.load(tiles.at[me], layout=layout, optimized=False)  # (TEAM, width / TEAM)
        warps.at[turn, me][...] = over(by_warp, axis=-1)  # (TEAM,)
        plgpu.barrier_arrive(barrier)
        plgpu.barrier_wait(barrier)
        return functools.reduce(two, [warps[turn, w, i] for w in range(warpgroups) for i in range(TEAM)])

    return reduce


class Ring(NamedTuple):
    """Rows on their way from memory: the next few of a block's rows, through TMA, each warpgroup fetching its part.

    source: (rows, cols / LINE, LINE). slots, filled: :meth:`scratch`.
    """

    source: object
    slots: object
    filled: object
    cut: Cut

    @staticmethod
    def scratch(stages: int, warpgroups: int, cut: Cut, dtype) -> list:
        slots = plgpu.SMEM((stages, warpgroups, cut.cols // warpgroups // LINE, LINE), dtype)
        return [slots, plgpu.Barrier(num_barriers=stages * warpgroups)]

    def fetch(self, turn, row) -> None:
        """Start the copy of the row that is ``turn``-th."""
        stages, warpgroups, lines, _ = self.slots.shape
        me, slot = lax.axis_index("warpgroup"), lax.rem(turn, stages)
        source = self.source.at[row, pl.ds(me * lines, lines)]
        plgpu.copy_gmem_to_smem(source, self.slots.at[slot, me], self.filled.at[slot * warpgroups + me])

    def load(self, turn) -> list:
        """This warpgroup's tiles of the ``turn``-th row, (width,) each, in registers, as float32."""
        stages, warpgroups, lines, _ = self.slots.shape
        me, slot = lax.axis_index("warpgroup"), lax.rem(turn, stages)
        plgpu.barrier_wait(self.filled.at[slot * warpgroups + me])
        high = self.cut.width // LINE
        layout = plgpu.Layout.WG_STRIDED((high, LINE), vec_size=self.cut.vector)
        tiles = [
            plgpu.load(self.slots.at[slot, me, pl.ds(line, high)], layout=layout) for line in range(0, lines, high)
        ]
        return [tile.reshape(self.cut.width).astype(jnp.float32) for tile in tiles]


def most_warpgroups(interpret) -> int:
    """Of a block. The interpreter runs each in a thread of XLA's, which has one a core, and waits for all: 2 there."""
    return 2 if interpret else 4
