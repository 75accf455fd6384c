"""Vector add: out[i] = x[i] + y[i].

contract  reference/vector_add.py; ``out=`` takes a ``jax.Ref``, which is neither x nor y
mapping   one warpgroup owns TILE elements, the last one also the tail
traffic   reads 2 n and writes n elements (up to one tile of them twice), n additions: memory decides
limits    Hopper; below SMALL elements the wrapper pads, which launches four small kernels more
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_impl import arrays
from pallas_impl.arrays import describe
from reference.contract import Variant, pick
from reference.vector_add import DTYPES, check

VARIANTS = {
    "vector_add": (
        Variant("vector_add", "one tile a warpgroup, without shared memory", DTYPES, ("sm_90a",), {"spill_bytes": 0}),
    )
}

TILE = 1024  # elements: two 16-byte vectors a thread in float32, one in 16 bits; 2048 measured 1 % slower on an H200
SMALL = 128  # elements: one a thread, the least that a warpgroup loads
PART = 1 << 30  # elements a launch: Mosaic computes with int32 indices, and a launch's first element is static


def _add(x_ref, y_ref, out_ref, *, first: int, n: int):
    """Elements first to first + n of the three refs."""
    tile = TILE if n >= TILE else SMALL
    vector = 16 // x_ref.dtype.itemsize if n >= TILE else 1  # elements a load

    def add(start, vector):
        # --- find the elements
        here = lambda ref: ref.at[pl.ds(first, n)].at[pl.ds(start, tile)]  # (tile,)

        # --- load x and y
        layout = plgpu.Layout.WG_STRIDED((tile,), vec_size=vector)
        x = plgpu.load(here(x_ref), layout=layout)
        y = plgpu.load(here(y_ref), layout=layout)

        # --- add in float32, round once
        total = x.astype(jnp.float32) + y.astype(jnp.float32)

        # --- store
        here(out_ref)[...] = total.astype(out_ref.dtype)

    index = lax.axis_index("tile")
    add(index * tile, vector)

    if n % tile:
        # --- the tail
        # The last tile elements of all, by the warpgroup that has just stored some of them: loads take no mask.
        @pl.when(index == n // tile - 1)
        def _():
            add(n - tile, 1)


def _launch(x, y, out, interpret):
    n = x.shape[0]
    firsts = range(0, max(n - TILE, 1), PART)  # so that the last part holds a whole tile
    for first, stop in zip(firsts, [*firsts[1:], n]):
        size = stop - first
        plgpu.kernel(
            functools.partial(_add, first=first, n=size),
            grid=(size // (TILE if size >= TILE else SMALL),),
            grid_names=("tile",),
            kernel_name="vector_add",
            interpret=interpret,
        )(x, y, out)


@functools.partial(jax.jit, static_argnames="interpret")
def _new(x, y, interpret):
    n = x.shape[0]
    if 0 < n < SMALL:
        return _new(*(jnp.pad(array, (0, SMALL - n)) for array in (x, y)), interpret)[:n]
    out = jax.empty_ref(jax.ShapeDtypeStruct(x.shape, x.dtype))
    if n:
        _launch(x, y, out, interpret)
    return jax.freeze(out)


@functools.partial(jax.jit, static_argnames="interpret")
def _into(x, y, out, interpret):
    if x.shape[0] < SMALL:
        out[...] = _new(x, y, interpret)
    else:
        _launch(x, y, out, interpret)


def vector_add(x: jax.Array, y: jax.Array, *, out: jax.Ref | None = None, variant: str | None = None, interpret=None):
    """``x + y``, both (n,); returns (n,) of the same dtype.

    out: a ``jax.Ref``, written and returned where given. variant: a name in VARIANTS. interpret: a
    ``plgpu.InterpretGPUParams`` runs the kernel on a CPU.
    Raises TypeError, ValueError and Unsupported as the contract says.
    """
    info, other = describe("x", x), describe("y", y)
    target = None if out is None else describe("out", out, ref=True)
    check(info, other, out=target, platform="cpu" if interpret else "cuda")
    pick(VARIANTS["vector_add"], variant, info.dtype, arrays.arch(x, interpret))
    if out is None:
        return _new(x, y, interpret)
    _into(x, y, out, interpret)
    return out
