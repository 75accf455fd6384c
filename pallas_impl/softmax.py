"""Softmax: out[r, c] = exp(x[r, c] - m[r]) / l[r], m the row's maximum, l the row's sum of those exponentials.

contract  reference/softmax.py; ``out=`` takes a ``jax.Ref``
mapping   a warp a row up to 2048 columns, a warpgroup a row up to 16384, a block a row up to 32768, which it holds in
          equal parts, one of 16 bits as it lies in memory; otherwise, wider rows are split over the warpgroups of a
          block in chunks
traffic   reads and writes rows x cols elements once; rows in chunks are read twice, the second time from L2 in part.
          About 7 operations an element: memory decides
limits    Hopper; widths that are odd, or not of 16 bytes, are loaded in smaller vectors; widths below one element a
          thread (32, or 128 with fewer than 4 rows) are padded by the wrapper, in two small kernels more
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_impl import arrays, rows
from pallas_impl.arrays import describe
from pallas_impl.rows import Config, Cut
from reference.contract import Variant, pick
from reference.softmax import DTYPES, check

VARIANTS = {
    "softmax": (
        Variant("two_reads", "the online form: maximum and sum together, then the row again", DTYPES, ("sm_90a",)),
        Variant("one_read", "rows up to 16384 columns stay in registers", DTYPES, ("sm_90a",), {"spill_bytes": 0}),
        Variant("prefetched", "wider ones stay in a block's registers", DTYPES, ("sm_90a",), {"spill_bytes": 0}),
    )
}

LOG2E = math.log2(math.e)
# 2^x in one instruction; results below float32's normal range are 0, which the contract allows.
PARAMETERS = dataclasses.replace(rows.PARAMETERS, approx_math=True)


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
    cut, again = config.cut, rows.own(config.cut, config.warpgroups).again
    starts = rows.own_starts(cut, config.warpgroups)
    reduce = rows.reduction(cut, scratch)

    def take(row):
        # --- load the row
        x = [rows.load(x_ref, row, start, cut) for start in starts]  # (width,) or (TEAM, width) each

        e, scale = _scaled(x, cut, again, reduce)

        # --- divide and store
        for start, tile in zip(starts, e):
            rows.at(out_ref, row, start, cut)[...] = (tile * scale).astype(out_ref.dtype)

    rows.each_row(height, cut, take)


def _packed(x_ref, out_ref, *scratch, height: int, config: Config):
    """Rows of 16 bits that a block holds as they lie in memory, so that a multiprocessor has two."""
    cut, again = config.cut, rows.own(config.cut, config.warpgroups).again
    starts, row = rows.own_starts(cut, config.warpgroups), lax.axis_index("tile")
    reduce = rows.reduction(cut, scratch)
    # --- load the row
    x = [plgpu.load(rows.at(x_ref, row, start, cut), layout=cut.layout) for start in starts]  # (width,) each

    # --- maximum of the row
    m = functools.reduce(jnp.maximum, x).astype(jnp.float32)
    m = reduce(0, m, jnp.max, jnp.maximum)

    # --- exponentials and their sum
    l = m - m  # 0, which the compiler cannot know, or NaN where the row's results are
    for n, tile in enumerate(x):
        e = _exp(rows.unpacked(tile, l) - m)
        l += rows.once(e, again, cut, 0.0) if again and n == len(x) - 1 else e
    l = reduce(1, l, jnp.sum, jnp.add)

    # --- divide and store
    scale = 1 / l
    for n, (start, tile) in enumerate(zip(starts, x)):
        # Always so. Without branches all tiles would be unpacked at once, in more than the 64 registers that two blocks
        # leave a thread.
        @pl.when(jnp.logical_not(l < -1 - n))
        def _():
            out = _exp(rows.unpacked(tile, l) - m) * scale
            rows.at(out_ref, row, start, cut)[...] = out.astype(out_ref.dtype)


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
    """Write out, a ``jax.Ref``; both (rows, cols)."""
    cut, warpgroups = config.cut, config.warpgroups
    kernel = {"registers": _registers, "packed": _packed, "chunks": _online}[config.kernel]

    def part(x_ref, out_ref, *scratch, first, height):
        """The kernel on height rows from first on."""
        kernel(x_ref.at[pl.ds(first, height)], out_ref.at[pl.ds(first, height)], *scratch, height=height, config=config)

    for first, height in rows.parts(x.shape[0], cut.cols):
        plgpu.kernel(
            functools.partial(part, first=first, height=height),
            scratch_types=rows.shared(warpgroups, cut),
            grid=(height // (rows.TEAM if cut.team else 1),),
            grid_names=("tile",),
            num_threads=warpgroups,
            thread_name="warpgroup",
            kernel_name="softmax",
            compiler_params=PARAMETERS,
            interpret=interpret,
        )(x, out)


@functools.partial(jax.jit, static_argnames=("config", "interpret"))
def _new(x, config: Config, interpret):
    cols = x.shape[1]
    if cols < config.cut.cols:
        padded = jnp.pad(x, ((0, 0), (0, config.cut.cols - cols)), constant_values=-jnp.inf)
        return _new(padded, config, interpret)[:, :cols]
    out = jax.empty_ref(jax.ShapeDtypeStruct(x.shape, x.dtype))
    if x.shape[0]:
        _launch(x, out, config, interpret)
    return jax.freeze(out)


@functools.partial(jax.jit, static_argnames=("config", "interpret"))
def _into(x, out, config: Config, interpret):
    if x.shape[1] < config.cut.cols:
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
