"""Matmul with an epilogue: out = f(A B + bias), A (M, K), B (K, N).

contract  reference/matmul.py; ``out=`` takes a ``jax.Ref``
mapping   a block owns a tile of out and walks along K, its tiles of A and B some steps ahead in shared memory, by TMA; one
          warpgroup fetches them, one or two multiply by wgmma. persistent: a block a multiprocessor, one tile after the
          other, the next one's steps on their way while this one is stored; two blocks share the rows of A they fetch
traffic   a tile of M x N elements reads (M + N) K and does M N K multiplications: the tensor cores decide from about
          128 rows on, memory below
limits    Hopper; IEEE float32 by plain, without tensor cores; TF32 on them where K goes along the rows of A and of B.
          Mosaic has no TMA of ends within its pieces of 8 rows by 128 bytes (64 in small products): such arrays are
          padded by the wrapper, out with them, in a copy each; so is a bias that ends within a tile. K = 0 multiplies
          zeros
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_impl import arrays
from pallas_impl.arrays import describe
from pallas_impl.matmul_tiles import ACROSS, DOWN, Config, Problem, Shared, Tiles, fitting
from pallas_impl.rows import MULTIPROCESSORS, most_warpgroups
from reference.contract import Unsupported, Variant, pick
from reference.matmul import check

HALVES = ("float16", "bfloat16")
TMA = {"spill_bytes": 0, "UTMALDG": ">0", "UTMASTG": ">0"}
TENSOR = TMA | {"HGMMA": ">0"}

VARIANTS = {
    "matmul": (
        Variant("plain", "IEEE float32 by outer products, in registers", ("float32",), ("sm_90a",), TMA),
        Variant("persistent_tf32", "TF32 by persistent, IEEE by plain", ("float32",), ("sm_90a",), TMA),
        Variant("pipelined", "one warpgroup fetches by TMA and multiplies by wgmma", HALVES, ("sm_90a",), TENSOR),
        Variant("specialised", "a warpgroup fetches, others multiply", HALVES, ("sm_90a",), TENSOR),
        Variant("persistent", "blocks that stay, in pairs, stores behind the next tile", HALVES, ("sm_90a",), TENSOR),
    )
}

# Registers of a thread: of the warpgroup that fetches, and of two that multiply. 128 times (40 + 2 * 232) is all.
FETCHING, MULTIPLYING = 40, 232

# Of specialised and persistent, the best for large products first, with 128 bytes of K a step. The first whose tiles
# are ENOUGH for the GPU is taken; 64 rows are the fewest of a wgmma.
ENOUGH = 120
TABLE = (
    Config("persistent", 128, 256, 64, stages=4, consumers=2, cluster=2),
    Config("persistent", 128, 128, 64, stages=5, consumers=2),
    Config("persistent", 128, 64, 64, stages=6),
    Config("persistent", 64, 64, 64, stages=8),
    Config("persistent", 64, 32, 64, stages=8),
)


def _plain(tiles: Tiles, turned):
    config, steps = tiles.config, tiles.steps
    m, n, shape = lax.axis_index("row"), lax.axis_index("col"), (config.tile_m, config.tile_n)
    pl.loop(0, min(config.stages, steps))(lambda i: tiles.fetch(m, n, i, i))

    def step(i, acc):
        slot = tiles.slot(i)
        plgpu.barrier_wait(tiles.filled.at[slot])
        a, b = tiles.slots_a.at[slot], tiles.slots_b.at[slot]
        a = a if tiles.problem.transpose_a else _turned(a, turned.at[0])  # (tile_k, tile_m)
        b = _turned(b, turned.at[1]) if tiles.problem.transpose_b else b  # (tile_k, tile_n)
        plgpu.commit_smem()
        # --- multiply and accumulate
        for k in range(config.tile_k):
            left = plgpu.load(a.at[k], layout=DOWN, optimized=False)
            right = plgpu.load(b.at[k], layout=ACROSS, optimized=False)
            acc += lax.broadcast_in_dim(left, shape, (0,)) * lax.broadcast_in_dim(right, shape, (1,))
        plgpu.commit_smem()  # all threads have read before the copies write
        pl.when(i + config.stages < steps)(lambda: tiles.fetch(m, n, i + config.stages, i))
        return acc

    zeros = plgpu.layout_cast(jnp.zeros(shape, jnp.float32), plgpu.Layout.WGMMA)
    tiles.store(0, m, n, lax.fori_loop(0, steps, step, zeros))
    plgpu.wait_smem_to_gmem(0)


def _turned(tile, into):
    """``into`` (cols, rows), with what tile (rows, cols) has: shared memory is not loaded by column."""
    values = plgpu.load(tile, layout=plgpu.Layout.WGMMA, optimized=False)
    place = plgpu.broadcasted_iota(jnp.int32, tile.shape, 1, layout=plgpu.Layout.WGMMA)
    for col in range(tile.shape[1]):
        into.at[col][...] = jnp.sum(jnp.where(place == col, values, 0.0), axis=1)
    return into


def _pipelined(tiles: Tiles):
    config, steps = tiles.config, tiles.steps
    m, n = lax.axis_index("row"), lax.axis_index("col")
    pl.loop(0, min(config.stages, steps))(lambda i: tiles.fetch(m, n, i, i))

    def refill(i):
        plgpu.commit_smem()  # every warp's part of the product is done
        pl.when(i + config.stages < steps)(lambda: tiles.fetch(m, n, i + config.stages, i))

    @functools.partial(pl.run_scoped, acc=plgpu.ACC((config.tile_m, config.tile_n), jnp.float32))
    def _(acc):
        tiles.accumulate(0, 0, acc, refill)
        tiles.store(0, m, n, acc[...])

    plgpu.wait_smem_to_gmem(0)


def _specialised(tiles: Tiles, empty):
    each = lambda take: take(0, lax.axis_index("row"), lax.axis_index("col"))
    _by_roles(tiles, empty, each, tiles.steps)


def _persistent(tiles: Tiles, empty):
    config, problem, block = tiles.config, tiles.problem, lax.axis_index("block")
    grid = _grid(config, problem)
    count = pl.cdiv(grid[0] * grid[1] - block, lax.axis_size("block"))

    def each(take):
        @pl.loop(0, count)
        def _(turn):
            m, n = plgpu.planar_snake(block + turn * lax.axis_size("block"), grid, 1, config.width)
            take(turn * tiles.steps, m, n * config.cluster + lax.axis_index("cluster"))

    _by_roles(tiles, empty, each, count * tiles.steps)


def _by_roles(tiles: Tiles, empty, each, total):
    """``each(take)``: take(first, m, n) for the block's tiles, whose steps are numbered on from first; total: of all."""
    config, me = tiles.config, lax.axis_index("warpgroup")

    def wait(i):
        plgpu.barrier_wait(empty.at[tiles.slot(i)])

    def produce(first, m, n):
        @pl.loop(0, tiles.steps)
        def _(step):
            i = first + step
            pl.when(i >= config.stages)(lambda: wait(i))
            tiles.fetch(m, n, step, i)

    def consume(first, m, n):
        @functools.partial(
            pl.run_scoped, acc=plgpu.ACC((config.tile_m, config.tile_n // config.consumers), jnp.float32)
        )
        def _(acc):
            tiles.accumulate(me, first, acc, lambda i: plgpu.barrier_arrive(empty.at[tiles.slot(i)]))
            tiles.store(me, m, n, acc[...])

    @pl.when(me == config.consumers)
    def _():
        if config.consumers == 2:
            plgpu.set_max_registers(FETCHING, action="decrease")
        each(produce)
        # Nobody leaves while the other block of the cluster still has to tell it something.
        pl.loop(jnp.maximum(total - config.stages, 0), total)(wait)

    @pl.when(me < config.consumers)
    def _():
        if config.consumers == 2:
            plgpu.set_max_registers(MULTIPLYING, action="increase")
        each(consume)
        plgpu.wait_smem_to_gmem(0)


def _grid(config: Config, problem: Problem) -> tuple[int, int]:
    """Tiles along M, and along N those of a cluster together."""
    return pl.cdiv(problem.m, config.tile_m), pl.cdiv(problem.n, config.tile_n * config.cluster)


def configure(kernel: str, m: int, n: int, itemsize: int, most: int) -> Config:
    """most: warpgroups a block can have; without two that multiply there are no clusters either."""
    if kernel == "plain":
        return Config("plain", 64, 64, 16, stages=3)
    if kernel == "pipelined":
        return Config("pipelined", 128, 128, 128 // itemsize, stages=4)
    fits = lambda c: (m > 64 or c.tile_m == 64) and pl.cdiv(m, c.tile_m) * pl.cdiv(n, c.tile_n) >= ENOUGH
    config = next(filter(fits, TABLE), TABLE[-1])
    few = config.consumers >= most
    return Config(
        kernel,
        config.tile_m,
        config.tile_n,
        128 // itemsize,
        config.stages,
        1 if few else config.consumers,
        1 if few or kernel == "specialised" else config.cluster,
        config.width,
    )


def _launch(a, b, bias, out, problem: Problem, config: Config, slots: Shared, interpret) -> None:
    """a, b and out: of fitting shapes; bias: as long as the tiles reach."""
    kernel = {"plain": _plain, "pipelined": _pipelined, "specialised": _specialised, "persistent": _persistent}
    scratch = slots.scratch(config, a.dtype, out.dtype)
    threads, (rows, cols) = 1, _grid(config, problem)
    if config.kernel in ("specialised", "persistent"):
        threads = 1 + config.consumers
        empty = {"num_arrivals": config.consumers, "num_barriers": config.stages}
        if config.cluster > 1:
            scratch.append(plgpu.ClusterBarrier(collective_axes=("cluster",), **empty))
        else:
            scratch.append(plgpu.Barrier(**empty))
    elif config.kernel == "plain":
        scratch.append(plgpu.SMEM((2, config.tile_k, config.tile_m), a.dtype))
    place = {"grid": (rows, cols), "grid_names": ("row", "col")}
    if config.kernel == "persistent":
        place = {"grid": (min(MULTIPROCESSORS // config.cluster, rows * cols),), "grid_names": ("block",)}
        place |= {"cluster": (config.cluster,), "cluster_names": ("cluster",)}
    given = [array for array in (a, b, bias, out) if array is not None]

    def body(*refs):
        a, b, *others = refs
        others = others if bias is not None else [None, *others]
        # bias, out, the slots of A, B and out, their barriers; and what else the kernel has
        kernel[config.kernel](Tiles(a, b, *others[:6], problem, config), *others[6:])

    plgpu.kernel(
        body,
        scratch_types=scratch,
        **place,
        num_threads=threads,
        thread_name="warpgroup",
        kernel_name="matmul",
        compiler_params=plgpu.CompilerParams(unsafe_no_auto_barriers=True, reduction_scratch_bytes=0),
        interpret=interpret,
    )(*given)


def _run(a, b, bias, out, problem: Problem, config: Config, interpret) -> None:
    """Write out, a ``jax.Ref``."""
    if bias is not None:
        reach = config.tile_n * config.cluster
        bias = jnp.pad(bias, (0, -problem.n % reach))
    size, out_size = a.dtype.itemsize, np.dtype(out.dtype).itemsize
    slots = Shared.of(config, problem, size, out_size)
    a = _padded(a, fitting(a.shape, size, slots.swizzle_a))
    b = _padded(b, fitting(b.shape, size, slots.swizzle_b))
    shape = fitting(out.shape, out_size, slots.swizzle_out)
    if shape == out.shape:
        _launch(a, b, bias, out, problem, config, slots, interpret)
        return
    other = jax.empty_ref(jax.ShapeDtypeStruct(shape, out.dtype))
    _launch(a, b, bias, other, problem, config, slots, interpret)
    out[...] = jax.freeze(other)[: problem.m, : problem.n]


def _padded(array, shape):
    """With zeros up to that shape."""
    return jnp.pad(array, [(0, wanted - length) for wanted, length in zip(shape, array.shape)])


@functools.partial(jax.jit, static_argnames=("out_dtype", "problem", "config", "interpret"))
def _new(a, b, bias, out_dtype, problem: Problem, config: Config, interpret):
    out = jax.empty_ref(jax.ShapeDtypeStruct((problem.m, problem.n), out_dtype))
    _run(a, b, bias, out, problem, config, interpret)
    return jax.freeze(out)


@functools.partial(jax.jit, static_argnames=("problem", "config", "interpret"))
def _into(a, b, bias, out, problem: Problem, config: Config, interpret):
    _run(a, b, bias, out, problem, config, interpret)


def _kernel(variant: str, precision: str, along: bool) -> str:
    """The kernel of a variant. along: K goes along the rows of a and of b."""
    if variant != "persistent_tf32":
        return variant
    if precision == "ieee":
        return "plain"
    if not along:
        raise Unsupported(
            "precision is 'tf32' and K goes down the rows of a or b; built here: transpose_a False and transpose_b "
            "True, or variant 'plain'"
        )
    return "persistent"


def matmul(
    a: jax.Array,
    b: jax.Array,
    transpose_a: bool = False,
    transpose_b: bool = False,
    bias: jax.Array | None = None,
    activation: str | None = None,
    out_dtype: str | None = None,
    precision: str = "ieee",
    *,
    out: jax.Ref | None = None,
    variant: str | None = None,
    interpret=None,
):
    """f(A B + bias): a (M, K), or (K, M) with transpose_a; b (K, N), or (N, K) with transpose_b; bias (N,); returns
    (M, N) of out_dtype, by default the inputs' dtype.

    out: a ``jax.Ref``, written and returned where given. variant: a name in VARIANTS. interpret: a
    ``plgpu.InterpretGPUParams`` runs the kernel on a CPU.
    Raises TypeError, ValueError and Unsupported as the contract says.
    """
    info, other = describe("a", a), describe("b", b)
    added = None if bias is None else describe("bias", bias)
    target = None if out is None else describe("out", out, ref=True)
    platform = "cpu" if interpret else "cuda"
    m, n, k = check(
        info, other, transpose_a, transpose_b, added, activation, out_dtype, precision, target, platform=platform
    )
    along = transpose_b and not transpose_a
    chosen = pick(VARIANTS["matmul"], variant, info.dtype, arrays.arch(a, interpret))
    config = configure(_kernel(chosen.name, precision, along), m, n, a.dtype.itemsize, most_warpgroups(interpret))
    problem = Problem(m, n, max(k, 1), bool(transpose_a), bool(transpose_b), activation)
    if out is None:
        return _new(a, b, bias, np.dtype(out_dtype or a.dtype), problem, config, interpret)
    _into(a, b, bias, out, problem, config, interpret)
    return out
