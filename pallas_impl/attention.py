"""Attention, restricted forward: out = softmax(scale Q K^T) V, head by head, never more than a tile of the scores.

contract  reference/attention.py; ``out=`` takes a ``jax.Ref``, or a tuple of them
mapping   a warpgroup owns 64 queries of a head and goes along the keys tile by tile, tiles of keys and values ahead in
          shared memory, by TMA; those that every query of the block sees need no mask. specialised: two such warpgroups
          share a block's tiles, one in its softmax while the other has the tensor cores, and a third one fetches.
          Queries that see most come first, some heads at a time, whose keys and values stay in L2
traffic   q and out once, k and v once for every block of queries, from L2 for most of them; 4 head_dim FLOPs and an
          exponential a score: the tensor cores decide
limits    Hopper; a sequence of no multiple of 8 is padded by the wrapper, with a copy of every array: Mosaic has no TMA of
          ends within its pieces of 8 rows
"""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_impl import arrays
from pallas_impl.arrays import describe
from pallas_impl.rows import most_warpgroups
from reference.attention import DTYPES, check, outputs
from reference.contract import ArrayInfo, Variant, pick

TENSOR = {"spill_bytes": 0, "HGMMA": ">0", "UTMALDG": ">0", "UTMASTG": ">0"}

VARIANTS = {
    "attention": (
        Variant("pipelined", "a warpgroup fetches by TMA and multiplies by wgmma", DTYPES, ("sm_90a",), TENSOR),
        Variant("specialised", "one fetches, two take turns at the tensor cores", DTYPES, ("sm_90a",), TENSOR),
    )
}

QUERIES = 64  # of a warpgroup, the rows of a wgmma
PIECE = 8  # rows of what TMA copies swizzled
# Registers of a thread: of the warpgroup that fetches, and of two that compute. 128 times (40 + 2 * 232) is all.
FETCHING, COMPUTING = 40, 232

ROW = plgpu.Layout.WGMMA.reduce(1)  # a number for each query
PARAMETERS = plgpu.CompilerParams(
    unsafe_no_auto_barriers=True, approx_math=True, reduction_scratch_bytes=0
)  # 2^x in one instruction


@dataclass(frozen=True)
class Config:
    """How a call is carried out.

    keys: of a tile. stages: tiles of keys and of values in shared memory. consumers: warpgroups that compute. group: heads
    whose blocks come together.
    """

    kernel: str
    keys: int
    stages: int
    consumers: int = 1
    group: int = 8

    @property
    def queries(self) -> int:
        """Of a block."""
        return QUERIES * self.consumers


class Problem(NamedTuple):
    """What is computed. scale: times log2 e. interpreted: by Mosaic's interpreter."""

    batches: int
    heads: int
    sequence: int
    head_dim: int
    layout: str
    causal: bool
    scale: float
    interpreted: bool


def configure(kernel: str, head_dim: int, sequence: int, causal: bool, most: int) -> Config:
    """most: warpgroups a block can have."""
    if kernel == "pipelined":
        return Config("pipelined", 64, 2)
    return Config("specialised", 128, 2, consumers=min(2, most - 1))


class Block(NamedTuple):
    """A block's arrays and shared memory; lse and its slot are None where it is not asked for."""

    q: object
    k: object
    v: object
    out: object
    lse: object
    own: object  # (consumers, QUERIES, head_dim): the queries, and in their place out
    keys: object  # (stages, keys, head_dim)
    values: object
    own_lse: object  # (consumers, QUERIES)
    own_filled: object
    keys_filled: object
    values_filled: object
    problem: Problem
    config: Config
    batch: object
    head: object
    first: object  # query of the block

    def rows(self, ref, start, count: int):
        """So many rows of this block's head."""
        return ref.at[self.batch, self.head, pl.ds(start, count)] if self.problem.layout == "bhsd" else ref.at[
            self.batch, pl.ds(start, count), self.head
        ]  # fmt: skip

    @property
    def whole(self):
        """How many tiles every query of the block sees all keys of."""
        seen = jnp.minimum(self.first + 1, self.problem.sequence) if self.problem.causal else self.problem.sequence
        return seen // self.config.keys

    @property
    def steps(self):
        """How many tiles any query sees a key of."""
        seen = self.problem.sequence
        if self.problem.causal:
            seen = jnp.minimum(self.first + self.config.queries, seen)
        return pl.cdiv(seen, self.config.keys)

    def fetch(self, step, ref, slots, filled) -> None:
        """Start the copy of a tile."""
        slot = lax.rem(step, self.config.stages)
        rows = self.rows(ref, step * self.config.keys, self.config.keys)
        plgpu.copy_gmem_to_smem(rows, slots.at[slot], filled.at[slot])

    def load_queries(self, me) -> None:
        # --- load the queries
        start = self.first + me * QUERIES
        plgpu.copy_gmem_to_smem(self.rows(self.q, start, QUERIES), self.own.at[me], self.own_filled.at[me])
        plgpu.barrier_wait(self.own_filled.at[me])

    def empty(self):
        """The sums of the values and the state, m and l, of no keys."""
        full = lambda shape, value, layout: plgpu.layout_cast(jnp.full(shape, value, jnp.float32), layout)
        sums = full((QUERIES, self.problem.head_dim), 0.0, plgpu.Layout.WGMMA)
        return sums, full((QUERIES,), -jnp.inf, ROW), full((QUERIES,), 0.0, ROW)

    def take(self, step, carry, me, masked: bool, between=lambda: None, read=lambda what, slot: None):
        """Sums and state after a tile.

        between: called when the tensor cores are to be another's, and when they are to be this one's again. read: called
        with "keys" and with "values", and their slot, when they have been read.
        """
        sums, m, l = carry
        problem, config = self.problem, self.config
        slot = lax.rem(step, config.stages)
        # --- scores
        plgpu.barrier_wait(self.keys_filled.at[slot])

        @functools.partial(pl.run_scoped, acc=plgpu.ACC((QUERIES, config.keys), jnp.float32))
        def s(acc):
            plgpu.wgmma(acc, self.own.at[me], self.keys.at[slot].T)
            between()
            return acc[...]  # (QUERIES, keys)

        read("keys", slot)
        # --- mask
        if masked:
            place = lambda axis: plgpu.broadcasted_iota(jnp.int32, s.shape, axis, layout=plgpu.Layout.WGMMA)
            key = step * config.keys + place(1)
            seen = key < problem.sequence
            if problem.causal:
                seen &= key <= self.first + me * QUERIES + place(0)
            s = jnp.where(seen, s, -jnp.inf)
        # --- merge the states
        along = lambda row, shape: lax.broadcast_in_dim(row, shape, (0,))
        top = jnp.maximum(m, jnp.max(s, axis=1))
        p = jnp.exp2(s * problem.scale - along(top * problem.scale, s.shape))
        factor = jnp.exp2((m - top) * problem.scale)
        l = l * factor + jnp.sum(p, axis=1)
        sums *= along(factor, sums.shape)
        weights = p.astype(self.values.dtype)
        if not problem.interpreted:
            # All of it before this one's turn, or the compiler puts some off until after it.
            sums, top, l, weights = lax.optimization_barrier((sums, top, l, weights))
        # --- times the values
        plgpu.barrier_wait(self.values_filled.at[slot])
        between()
        values = self.values.at[slot]
        if problem.interpreted:  # without products of what is in registers
            sums += jnp.dot(weights.astype(jnp.float32), values[...].astype(jnp.float32))
            plgpu.commit_smem()  # all have read
        else:
            sums = pl.run_state(lambda acc: plgpu.wgmma(acc, weights, values))(plgpu.ACC.init(sums))
        read("values", slot)
        return sums, top, l

    def along_keys(self, me, take):
        """``take(step, carry, masked)`` for all tiles."""
        # --- tiles of keys
        carry = lax.fori_loop(0, self.whole, functools.partial(take, masked=False), self.empty())
        return lax.fori_loop(self.whole, self.steps, functools.partial(take, masked=True), carry)

    def store(self, me, carry) -> None:
        """Start the stores of out and lse, and wait until they are done."""
        sums, m, l = carry
        # --- divide and store
        self.own.at[me][...] = (sums / lax.broadcast_in_dim(l, sums.shape, (0,))).astype(self.out.dtype)
        if self.lse is not None:
            self.own_lse.at[me][...] = m * (self.problem.scale * math.log(2)) + jnp.log(l)
        plgpu.commit_smem()
        start = self.first + me * QUERIES
        plgpu.copy_smem_to_gmem(self.own.at[me], self.rows(self.out, start, QUERIES))
        if self.lse is not None:
            plgpu.copy_smem_to_gmem(self.own_lse.at[me], self.lse.at[self.batch, self.head, pl.ds(start, QUERIES)])
        plgpu.wait_smem_to_gmem(0)


def _pipelined(block: Block):
    sources = {"keys": (block.k, block.keys, block.keys_filled), "values": (block.v, block.values, block.values_filled)}

    @pl.loop(0, jnp.minimum(block.config.stages, block.steps))
    def _(step):
        for source in sources.values():
            block.fetch(step, *source)

    block.load_queries(0)

    def take(step, carry, masked):
        def refill(what, slot):
            plgpu.commit_smem()  # every warp has read it
            then = step + block.config.stages
            pl.when(then < block.steps)(lambda: block.fetch(then, *sources[what]))

        return block.take(step, carry, 0, masked, read=refill)

    block.store(0, block.along_keys(0, take))


def _specialised(block: Block, keys_read, values_read, turn):
    config, me = block.config, lax.axis_index("warpgroup")
    many = config.consumers > 1

    def change():
        """The warpgroups that compute meet: whose turn it was to multiply is now in its softmax, and the other way round."""
        if many:
            plgpu.barrier_arrive(turn)
            plgpu.barrier_wait(turn)

    @pl.when(me == config.consumers)
    def _():
        if many:
            plgpu.set_max_registers(FETCHING, action="decrease")

        sources = (block.k, block.keys, block.keys_filled), (block.v, block.values, block.values_filled)
        emptied = keys_read, values_read

        @pl.loop(0, block.steps)
        def _(step):
            for source, empty in zip(sources, emptied):
                pl.when(step >= config.stages)(lambda: plgpu.barrier_wait(empty.at[lax.rem(step, config.stages)]))
                block.fetch(step, *source)

        # A barrier has to be seen as often as it is passed.
        @pl.loop(jnp.maximum(block.steps - config.stages, 0), block.steps)
        def _(step):
            for empty in emptied:
                plgpu.barrier_wait(empty.at[lax.rem(step, config.stages)])

    @pl.when(me < config.consumers)
    def _():
        if many:
            plgpu.set_max_registers(COMPUTING, action="increase")
        block.load_queries(me)
        empty = {"keys": keys_read, "values": values_read}

        def take(step, carry, masked):
            read = lambda what, slot: plgpu.barrier_arrive(empty[what].at[slot])
            return block.take(step, carry, me, masked, change, read)

        pl.when(me == 1)(change)
        carry = block.along_keys(me, take)
        pl.when(me == 0)(change)
        block.store(me, carry)


def _place(index, problem: Problem, config: Config):
    """Batch, head and first query of a block: some heads at a time, their last queries, which see most, before the others."""
    blocks, heads = pl.cdiv(problem.sequence, config.queries), problem.batches * problem.heads
    first = lax.div(index, config.group * blocks) * config.group
    height = jnp.minimum(heads - first, config.group)
    within = lax.rem(index, config.group * blocks)
    head, query = first + lax.rem(within, height), (blocks - 1 - lax.div(within, height)) * config.queries
    return lax.div(head, problem.heads), lax.rem(head, problem.heads), query


def _launch(q, k, v, out, lse, problem: Problem, config: Config, interpret) -> None:
    """Write out and lse, ``jax.Ref``, lse None where it is not asked for; sequences of a multiple of PIECE."""
    dtype, consumers, stages = q.dtype, config.consumers, config.stages
    swizzled = (plgpu.TilingTransform((PIECE, 64)), plgpu.SwizzleTransform(128))
    slots = lambda *shape: plgpu.SMEM((*shape, problem.head_dim), dtype, transforms=swizzled)
    barriers = lambda count, arrivals=1: plgpu.Barrier(num_arrivals=arrivals, num_barriers=count)
    scratch = [slots(consumers, QUERIES), slots(stages, config.keys), slots(stages, config.keys)]
    scratch += [plgpu.SMEM((consumers, QUERIES), jnp.float32)] if lse is not None else []
    scratch += [barriers(consumers), barriers(stages), barriers(stages)]
    kernel, threads = _pipelined, consumers
    if config.kernel == "specialised":
        kernel, threads = _specialised, consumers + 1
        scratch += [barriers(stages, consumers), barriers(stages, consumers), plgpu.Barrier(num_arrivals=consumers)]

    def body(q, k, v, out, *refs):
        refs = list(refs)
        lse_ref = refs.pop(0) if lse is not None else None
        if lse is None:
            refs.insert(3, None)
        place = _place(lax.axis_index("block"), problem, config)
        kernel(Block(q, k, v, out, lse_ref, *refs[:7], problem, config, *place), *refs[7:])

    plgpu.kernel(
        body,
        scratch_types=scratch,
        grid=(problem.batches * problem.heads * pl.cdiv(problem.sequence, config.queries),),
        grid_names=("block",),
        num_threads=threads,
        thread_name="warpgroup",
        kernel_name="attention",
        compiler_params=PARAMETERS,
        interpret=interpret,
    )(q, k, v, out, *(() if lse is None else (lse,)))


def _run(q, k, v, refs, problem: Problem, config: Config, interpret) -> None:
    """Write refs, out[, lse]."""
    missing, axis = -problem.sequence % PIECE, problem.layout.index("s")
    if missing == 0:
        _launch(q, k, v, *refs, *[None] * (2 - len(refs)), problem, config, interpret)
        return
    end = lambda axis, ndim, value: [(0, value if i == axis else 0) for i in range(ndim)]
    q, k, v = (jnp.pad(array, end(axis, 4, missing)) for array in (q, k, v))
    axes = (axis, 2)
    wide = [
        jax.empty_ref(jax.ShapeDtypeStruct([n + missing * (i == own) for i, n in enumerate(ref.shape)], ref.dtype))
        for ref, own in zip(refs, axes)
    ]
    _launch(q, k, v, *wide, *[None] * (2 - len(refs)), problem, config, interpret)
    for ref, own, padded in zip(refs, axes, wide):
        ref[...] = lax.slice_in_dim(jax.freeze(padded), 0, problem.sequence, axis=own)


@functools.partial(jax.jit, static_argnames=("specs", "problem", "config", "interpret"))
def _new(q, k, v, specs, problem: Problem, config: Config, interpret):
    refs = [jax.empty_ref(jax.ShapeDtypeStruct(shape, dtype)) for shape, dtype in specs]
    if q.size:
        _run(q, k, v, refs, problem, config, interpret)
    return tuple(jax.freeze(ref) for ref in refs)


@functools.partial(jax.jit, static_argnames=("problem", "config", "interpret"))
def _into(q, k, v, refs, problem: Problem, config: Config, interpret):
    if q.size:
        _run(q, k, v, refs, problem, config, interpret)


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool,
    scale: float | None = None,
    layout: str = "bhsd",
    return_lse: bool = False,
    out=None,
    variant: str | None = None,
    interpret=None,
):
    """``softmax(scale q k^T) v`` over each head's keys; returns out[, lse].

    q, k, v, out: (batch, heads, sequence, head_dim), with layout ``"bshd"`` (batch, sequence, heads, head_dim). lse:
    (batch, heads, sequence), float32, the natural logarithm of the sum of the exponentials. causal: a query sees the
    keys up to its own position. scale: by default 1 / sqrt(head_dim). out: a ``jax.Ref``, or (out, lse), written and
    returned where given. variant: a name in VARIANTS. interpret: a ``plgpu.InterpretGPUParams`` runs the kernel on a CPU.
    Raises TypeError, ValueError and Unsupported as the contract says.
    """
    infos = [describe(name, array) for name, array in zip("qkv", (q, k, v))]
    refs = None if out is None else tuple(out) if isinstance(out, (tuple, list)) else (out,)
    names = ("out", "lse")
    given = refs and [describe(names[i] if i < 2 else "out", ref, ref=True) for i, ref in enumerate(refs)]
    platform = "cpu" if interpret else "cuda"
    check(*infos, causal=causal, scale=scale, layout=layout, return_lse=return_lse, out=given, platform=platform)
    chosen = pick(VARIANTS["attention"], variant, infos[0].dtype, arrays.arch(q, interpret))
    length = dict(zip(layout, q.shape))
    factor = (1 / math.sqrt(length["d"]) if scale is None else float(scale)) * math.log2(math.e)
    problem = Problem(*(length[axis] for axis in "bhsd"), layout, bool(causal), factor, interpret is not None)
    config = configure(chosen.name, length["d"], length["s"], bool(causal), most_warpgroups(interpret))
    if refs is None:
        specs = tuple(outputs(ArrayInfo(q.shape, infos[0].dtype), layout, return_lse).values())
        refs = _new(q, k, v, specs, problem, config, interpret)
    else:
        _into(q, k, v, refs, problem, config, interpret)
    return refs if len(refs) > 1 else refs[0]
