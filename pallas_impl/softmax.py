"""Softmax: out[r, c] = exp(x[r, c] - m[r]) / l[r], m the row's maximum, l the row's sum of those exponentials.

contract  reference/softmax.py; ``out=`` takes a ``jax.Ref``
mapping   a warp a row up to 2048 columns, a warpgroup a row up to 16384; wider rows are split over the warpgroups of a
          block. Where they are 4096 columns' multiples up to 32768, a block holds a row of float32, or stays while 16-bit
          ones come and go by TMA
traffic   reads and writes rows x cols elements once; wider rows are read twice, the second time from L2 in part.
          About 7 operations an element: memory decides
limits    Hopper; widths that are odd, or not of 16 bytes, are loaded in smaller vectors; widths below one element a
          thread (32, or 128 with fewer than 4 rows) are padded by the wrapper, in two small kernels more
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_impl import arrays, rows
from pallas_impl.arrays import describe
from pallas_impl.rows import Config, Cut, Ring
from reference.contract import Variant, pick
from reference.softmax import DTYPES, check

VARIANTS = {
    "softmax": (
        Variant("two_reads", "the online form: maximum and sum together, then the row again", DTYPES, ("sm_90a",)),
        Variant("one_read", "rows up to 16384 columns stay in registers", DTYPES, ("sm_90a",), {"spill_bytes": 0}),
        Variant(
            "prefetched",
            "wider ones in a block's registers, or by TMA, rows ahead",
            DTYPES,
            ("sm_90a",),
            {"spill_bytes": 0},
        ),
    )
}

LOG2E = math.log2(math.e)


def _exp(x):
    return jnp.exp2(x * LOG2E)


def _finite(m):
    """m with 0 for -inf, to subtract."""
    return jnp.where(m == -jnp.inf, 0.0, m)


def _scaled(x: list, cut: Cut, again: int, reduce):
    """exp(x - m) of a row's tiles, and 1 / l."""
    # --- maximum of the row
    m = reduce(0, functools.reduce(jnp.maximum, x), jnp.max, jnp.maximum)

    # --- exponentials and their sum
    e = [_exp(tile - m) for tile in x]
    terms = [*e[:-1], rows.once(e[-1], again, cut, 0.0)] if again else e
    return e, 1 / reduce(1, functools.reduce(jnp.add, terms), jnp.sum, jnp.add)


def _registers(x_ref, out_ref, *scratch, height: int, config: Config):
    """Rows that a warp, a warpgroup or a block holds: read once."""
    cut, starts = config.cut, rows.own_starts(config.cut, config.warpgroups)
    reduce = rows.reduction(cut, scratch)

    def take(row):
        # --- load the row
        x = [rows.load(x_ref, row, start, cut) for start in starts]  # (width,) or (TEAM, width) each

        e, scale = _scaled(x, cut, cut.again, reduce)

        # --- divide and store
        for start, tile in zip(starts, e):
            rows.at(out_ref, row, start, cut)[...] = (tile * scale).astype(out_ref.dtype)

    rows.each_row(height, cut, take)


def _ring(x_ref, out_ref, slots, filled, *scratch, height: int, config: Config):
    """Rows that the warpgroups of a block hold together, while others come and go."""
    block, blocks = lax.axis_index("block"), min(config.blocks, height)
    count, row = pl.cdiv(height - block, blocks), lambda turn: block + turn * blocks
    ring = Ring((x_ref,), slots, filled, config.parts, count, row)
    reduce = rows.reduction(config.cut, scratch)
    ring.start()

    @pl.loop(0, count)
    def _(turn):
        parts = [turn * config.parts + part for part in range(config.parts)]
        # --- load the row
        x = []
        for i in parts:
            ring.wait(i)
            x += [ring.load(i, tile) for tile in range(ring.tiles)]  # (TEAM, LINE) each

        e, scale = _scaled(x, config.cut, 0, reduce)

        # --- divide and store
        for n, i in enumerate(parts):
            for tile in range(ring.tiles):
                ring.at(i, tile)[...] = (e[n * ring.tiles + tile] * scale).astype(out_ref.dtype)
            ring.store(i, out_ref)

    plgpu.wait_smem_to_gmem(0)


def _online(x_ref, out_ref, *scratch, height: int, config: Config):
    """Rows of any width, in chunks of a few tiles: each is read for maximum and sum, and then again."""
    cut, warpgroups = config.cut, config.warpgroups
    me, row = lax.axis_index("warpgroup"), lax.axis_index("tile")
    reduce = rows.reduction(cut, scratch)
    chunk, own, starts = rows.chunks(cut, warpgroups, config.tiles, me)

    def collect(i, state):
        m, l = state  # (width,) each: a thread's elements apart from its neighbours'
        # --- load the row
        x = [rows.load(x_ref, row, start, cut) for start in starts(i)]  # (width,) each
        if cut.cols % chunk:
            x = [rows.once(tile, i * chunk - start, cut, -jnp.inf) for tile, start in zip(x, starts(i))]

        # --- maximum of the row
        top = functools.reduce(jnp.maximum, x, m)

        # --- exponentials and their sum
        e = [_exp(tile - _finite(top)) for tile in x]
        return top, functools.reduce(jnp.add, e) + l * _exp(m - _finite(top))

    m, l = lax.fori_loop(*own, collect, (rows.full(-jnp.inf, cut), rows.full(0.0, cut)))
    top = reduce(0, m, jnp.max, jnp.maximum)
    scale = 1 / reduce(1, l * _exp(m - _finite(top)), jnp.sum, jnp.add)

    @pl.loop(*own)
    def _(i):
        # --- divide and store
        for start in starts(i):
            e = _exp(rows.load(x_ref, row, start, cut) - top)
            rows.at(out_ref, row, start, cut)[...] = (e * scale).astype(out_ref.dtype)


def _launch(x, out, config: Config, interpret):
    """Write out, a ``jax.Ref``; both (rows, cols), or for a ring (rows, cols / LINE, LINE)."""
    cut, warpgroups, ring = config.cut, config.warpgroups, config.kernel == "ring"
    kernel = {"registers": _registers, "ring": _ring, "chunks": _online}[config.kernel]

    def part(x_ref, out_ref, *scratch, first, height):
        """The kernel on height rows from first on."""
        kernel(x_ref.at[pl.ds(first, height)], out_ref.at[pl.ds(first, height)], *scratch, height=height, config=config)

    scratch = rows.shared(warpgroups, cut, lines=ring)
    if ring:
        scratch = Ring.scratch(config, 1, x.dtype) + scratch
    for first, height in rows.parts(x.shape[0], cut.cols):
        blocks = min(config.blocks, height) if ring else height // (rows.TEAM if cut.team else 1)
        plgpu.kernel(
            functools.partial(part, first=first, height=height),
            scratch_types=scratch,
            grid=(blocks,),
            grid_names=("block" if ring else "tile",),
            num_threads=warpgroups,
            thread_name="warpgroup",
            kernel_name="softmax",
            compiler_params=rows.RING_PARAMETERS if ring else rows.PARAMETERS,
            interpret=interpret,
        )(x, out)


@functools.partial(jax.jit, static_argnames=("config", "interpret"))
def _new(x, config: Config, interpret):
    cols = x.shape[1]
    if cols < config.cut.cols:
        padded = jnp.pad(x, ((0, 0), (0, config.cut.cols - cols)), constant_values=-jnp.inf)
        return _new(padded, config, interpret)[:, :cols]
    source = rows.by_line(x) if config.kernel == "ring" else x
    out = jax.empty_ref(jax.ShapeDtypeStruct(source.shape, x.dtype))
    if x.shape[0]:
        _launch(source, out, config, interpret)
    return jax.freeze(out).reshape(x.shape)


@functools.partial(jax.jit, static_argnames=("config", "interpret"))
def _into(x, out, config: Config, interpret):
    # A ref cannot be reshaped for a ring. XLA lets the kernel write where out is all the same.
    if x.shape[1] < config.cut.cols or config.kernel == "ring":
        out[...] = _new(x, config, interpret)
    elif x.shape[0]:
        _launch(x, out, config, interpret)


def softmax(x: jax.Array, *, out: jax.Ref | None = None, variant: str | None = None, interpret=None):
    """Softmax of x (rows, cols) over its columns; returns (rows, cols) of the same dtype.

    out: a ``jax.Ref``, written and returned where given. variant: a name in VARIANTS. interpret: a
    ``plgpu.InterpretGPUParams`` runs the kernel on a CPU.
    Raises TypeError, ValueError and Unsupported as the contract says.
    """
    info = describe("x", x)
    target = None if out is None else describe("out", out, ref=True)
    check(info, target, platform="cpu" if interpret else "cuda")
    chosen = pick(VARIANTS["softmax"], variant, info.dtype, arrays.arch(x, interpret))
    config = rows.configure(*x.shape, x.dtype.itemsize, chosen.name, rows.most_warpgroups(interpret))
    if out is None:
        return _new(x, config, interpret)
    _into(x, out, config, interpret)
    return out
