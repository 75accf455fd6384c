"""Attention, restricted forward: out = softmax(scale Q K^T) V, head by head, never more than a tile of the scores.

contract  reference/attention.py
mapping   a program owns some queries of a head and goes along the keys tile by tile; those that every query of it sees need
          no mask. Queries that see most come first, some heads at a time, whose keys and values stay in L2; persistent: a
          program takes one such piece after the other
traffic   q and out once, k and v once for every piece of queries, from L2 for most of them; 4 head_dim FLOPs and an
          exponential a score: the tensor cores decide
limits    online: any GPU from sm_80. The others: sm_90, arrays that begin at 16-byte addresses, others go online
"""

import functools
import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from reference.attention import DTYPES, check, outputs
from reference.contract import Variant, pick, row_major
from triton_impl import tensors
from triton_impl.tensors import describe

TMA = {"spill_bytes": 0, "HGMMA": ">0", "UTMALDG": ">0"}

VARIANTS = {
    "attention": (
        Variant("online", "tiles by pointers", DTYPES, ("sm_80",), {"spill_bytes": 0}),
        Variant("descriptors", "tiles by TMA", DTYPES, ("sm_90a",), TMA),
        Variant("persistent", "programs that stay, stores by TMA", DTYPES, ("sm_90a",), TMA | {"UTMASTG": ">0"}),
    )
}


@dataclass(frozen=True)
class Tile:
    """How a call is carried out.

    queries, keys: of a tile. warps: of a program. stages: tiles of keys and of values in shared memory or on their way
    there. group: heads whose programs come together.
    """

    queries: int
    keys: int
    warps: int
    stages: int
    group: int = 8

    @property
    def kernel(self) -> dict:
        """As the kernels take it."""
        return {"QUERIES": self.queries, "KEYS": self.keys, "GROUP": self.group}

    @property
    def options(self) -> dict:
        """As Triton takes it."""
        return {"num_warps": self.warps, "num_stages": self.stages}


@functools.cache
def online_tile(head_dim: int, causal: bool, sequence: int) -> Tile:
    return Tile(128, 64 if head_dim == 64 else 32, 8, 2)


@functools.cache
def descriptors_tile(head_dim: int, causal: bool, sequence: int) -> Tile:
    return Tile(128, 64, 4, 3) if head_dim == 64 else Tile(128, 128, 8, 2)


@functools.cache
def persistent_tile(head_dim: int, causal: bool, sequence: int) -> Tile:
    return Tile(128, 64, 4, 3) if head_dim == 64 else Tile(128, 128, 8, 2)


@triton.jit
def _piece(index, heads, sequence, QUERIES: tl.constexpr, GROUP: tl.constexpr):
    """A head and its first query of a piece: some heads at a time, their last queries, which see most, before the others."""
    pieces = tl.cdiv(sequence, QUERIES)
    first = index // (GROUP * pieces) * GROUP
    height = tl.minimum(heads - first, GROUP)
    within = index % (GROUP * pieces)
    return first + within % height, (pieces - 1 - within // height) * QUERIES


@triton.jit
def _load(source, head, start, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BY_TMA: tl.constexpr):
    """ROWS rows of a head from start on, (ROWS, HEAD_DIM); zeros past the end. head: as :func:`_attend` describes it."""
    if BY_TMA:
        rows = source.load([head[0], head[1], start, 0]).reshape(ROWS, HEAD_DIM)
    else:
        row = start + tl.arange(0, ROWS)
        rows = tl.load(source + _places(head, row, HEAD_DIM), mask=(row < head[2])[:, None], other=0)
    return rows


@triton.jit
def _places(head, row, HEAD_DIM: tl.constexpr):
    """Where rows (ROWS,) of a head lie, (ROWS, HEAD_DIM)."""
    return head[0] * head[3] + head[1] * head[4] + row[:, None] * head[5] + tl.arange(0, HEAD_DIM)[None, :]


@triton.jit
def _along(
    sums,
    m,
    l,
    query,
    q,
    k,
    v,
    head,
    start,
    stop,
    scale,
    KEYS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,
    BY_TMA: tl.constexpr,
):
    """The sums and the state after the keys from start to stop."""
    for at in tl.range(start, stop, KEYS):
        # --- scores
        keys = _load(k, head, at, KEYS, HEAD_DIM, BY_TMA)
        s = tl.dot(q, keys.T)  # (QUERIES, KEYS)
        # --- mask
        if MASKED:
            key = at + tl.arange(0, KEYS)
            seen = (key < head[2])[None, :]
            if CAUSAL:
                seen = seen & (key[None, :] <= query[:, None])
            s = tl.where(seen, s, float("-inf"))
        # --- merge the states
        top = tl.maximum(m, tl.max(s, axis=1))
        p = tl.exp2(s * scale - (top * scale)[:, None])
        factor = tl.exp2((m - top) * scale)
        m, l = top, l * factor + tl.sum(p, axis=1)
        sums = sums * factor[:, None]
        # --- times the values
        values = _load(v, head, at, KEYS, HEAD_DIM, BY_TMA)
        sums = tl.dot(p.to(values.dtype), values, sums)
    return sums, m, l


@triton.jit
def _attend(
    q_source,
    k,
    v,
    out,
    lse_ptr,
    index,
    batches,
    heads,
    sequence,
    strides,
    scale,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CAUSAL: tl.constexpr,
    LSE: tl.constexpr,
    BY_TMA: tl.constexpr,
    STORE_BY_TMA: tl.constexpr,
):
    """The index-th piece of queries: out, and with LSE lse. scale: times log2 e."""
    of_all, first = _piece(index, batches * heads, sequence, QUERIES, GROUP)
    # Batch, head, rows, and elements from one batch, head and row to the next.
    head = (of_all // heads, of_all % heads, sequence, strides[0], strides[1], strides[2])
    # --- load the queries
    q = _load(q_source, head, first, QUERIES, HEAD_DIM, BY_TMA)
    query = first + tl.arange(0, QUERIES)
    m = tl.full((QUERIES,), float("-inf"), tl.float32)
    l = tl.zeros((QUERIES,), tl.float32)
    sums = tl.zeros((QUERIES, HEAD_DIM), tl.float32)
    # --- tiles of keys
    # Every query sees all of those up to the first query, or to the last whole tile.
    whole = (tl.minimum(first + 1, sequence) if CAUSAL else sequence) // KEYS * KEYS
    stop = tl.minimum(first + QUERIES, sequence) if CAUSAL else sequence
    sums, m, l = _along(sums, m, l, query, q, k, v, head, 0, whole, scale, KEYS, HEAD_DIM, CAUSAL, False, BY_TMA)
    sums, m, l = _along(sums, m, l, query, q, k, v, head, whole, stop, scale, KEYS, HEAD_DIM, CAUSAL, True, BY_TMA)
    # --- divide and store
    found = sums / l[:, None]
    if STORE_BY_TMA:
        out.store([head[0], head[1], first, 0], found.to(out.dtype).reshape(1, 1, QUERIES, HEAD_DIM))
    else:
        inside = query < sequence
        tl.store(out + _places(head, query, HEAD_DIM), found.to(out.dtype.element_ty), mask=inside[:, None])
    if LSE:
        at = of_all.to(tl.int64) * sequence + query
        tl.store(lse_ptr + at, (m * scale + tl.log2(l)) * 0.6931471805599453, mask=query < sequence)


@triton.jit
def _pieces(
    q,
    k,
    v,
    out,
    lse_ptr,
    batches,
    heads,
    sequence,
    batch_stride,
    head_stride,
    row_stride,
    scale,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CAUSAL: tl.constexpr,
    LSE: tl.constexpr,
    BY_TMA: tl.constexpr,
):
    strides = (tl.cast(batch_stride, tl.int64), tl.cast(head_stride, tl.int64), tl.cast(row_stride, tl.int64))
    _attend(
        q, k, v, out, lse_ptr, tl.program_id(0), batches, heads, sequence, strides, scale,
        QUERIES, KEYS, GROUP, HEAD_DIM, CAUSAL, LSE, BY_TMA, False,
    )  # fmt: skip


@triton.jit
def _persistent(
    q,
    k,
    v,
    out,
    lse_ptr,
    batches,
    heads,
    sequence,
    scale,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CAUSAL: tl.constexpr,
    LSE: tl.constexpr,
):
    pieces = batches * heads * tl.cdiv(sequence, QUERIES)
    for index in tl.range(tl.program_id(0), pieces, tl.num_programs(0)):
        _attend(
            q, k, v, out, lse_ptr, index, batches, heads, sequence, (0, 0, 0), scale,
            QUERIES, KEYS, GROUP, HEAD_DIM, CAUSAL, LSE, True, True,
        )  # fmt: skip


@dataclass(frozen=True)
class Call:
    """What a kernel is launched for. lse: another array, which is not written, where it is not asked for."""

    arrays: tuple[torch.Tensor, ...]  # q, k, v, out
    lse: torch.Tensor
    lengths: dict[str, int]  # by the letters of the layout
    strides: dict[str, int]
    scale: float  # times log2 e
    shape: dict

    @property
    def axes(self) -> tuple[int, int, int]:
        return self.lengths["b"], self.lengths["h"], self.lengths["s"]

    def tile(self, choose) -> Tile:
        return choose(self.shape["HEAD_DIM"], self.shape["CAUSAL"], self.lengths["s"])

    def pieces(self, t: Tile) -> int:
        return self.lengths["b"] * self.lengths["h"] * triton.cdiv(self.lengths["s"], t.queries)

    def by_tma(self) -> bool:
        """Whether TMA takes all four."""
        return all(array.data_ptr() % 16 == 0 for array in self.arrays)

    def descriptor(self, array: torch.Tensor, rows: int) -> TensorDescriptor:
        """An array by tiles of so many rows of a head."""
        shape, strides = ([of[axis] for axis in "bhsd"] for of in (self.lengths, self.strides))
        return TensorDescriptor(array, shape, strides, [1, 1, rows, shape[3]])


def _launch(call: Call, t: Tile, given, by_tma: bool) -> None:
    """A program for each piece of queries."""
    strides = [call.strides[axis] for axis in "bhs"]
    _pieces[(call.pieces(t),)](
        *given, call.lse, *call.axes, *strides, call.scale, BY_TMA=by_tma, **t.kernel, **call.shape, **t.options
    )


def online(call: Call) -> None:
    """Launch the form that loads by pointers."""
    _launch(call, call.tile(online_tile), call.arrays, False)


def _described(call: Call, t: Tile) -> list[TensorDescriptor]:
    q, k, v, _ = call.arrays
    return [call.descriptor(q, t.queries), call.descriptor(k, t.keys), call.descriptor(v, t.keys)]


def descriptors(call: Call) -> None:
    """Launch the form that loads by TMA, or the one by pointers where TMA cannot."""
    if not call.by_tma():
        return online(call)
    t = call.tile(descriptors_tile)
    _launch(call, t, (*_described(call, t), call.arrays[3]), True)


def persistent(call: Call) -> None:
    """Launch the persistent form, or the one by pointers where TMA cannot load."""
    if not call.by_tma():
        return online(call)
    t = call.tile(persistent_tile)
    out = call.arrays[3]
    programs = min(call.pieces(t), tensors.multiprocessors(out))
    _persistent[(programs,)](
        *_described(call, t), call.descriptor(out, t.queries), call.lse, *call.axes, call.scale,
        **t.kernel, **call.shape, **t.options,
    )  # fmt: skip


LAUNCHERS = {"online": online, "descriptors": descriptors, "persistent": persistent}


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    scale: float | None = None,
    layout: str = "bhsd",
    return_lse: bool = False,
    out=None,
    variant: str | None = None,
):
    """``softmax(scale q k^T) v`` over each head's keys, on PyTorch's current stream; returns out[, lse].

    q, k, v, out: (batch, heads, sequence, head_dim), with layout ``"bshd"`` (batch, sequence, heads, head_dim),
    contiguous. lse: (batch, heads, sequence), float32, the natural logarithm of the sum of the exponentials. causal: a
    query sees the keys up to its own position. scale: by default 1 / sqrt(head_dim). out: out, or (out, lse), written
    and returned where given. variant: a name in VARIANTS.
    Raises TypeError, ValueError and Unsupported as the contract says.
    """
    infos = [describe(name, array) for name, array in zip("qkv", (q, k, v))]
    targets = None if out is None else tuple(out) if isinstance(out, (tuple, list)) else (out,)
    names = ("out", "lse")
    given = targets and [describe(names[i] if i < 2 else "out", array) for i, array in enumerate(targets)]
    check(
        *infos, causal=causal, scale=scale, layout=layout, return_lse=return_lse, out=given, platform=tensors.PLATFORM
    )
    chosen = pick(VARIANTS["attention"], variant, infos[0].dtype, tensors.arch(q))
    if targets is None:
        wanted = outputs(infos[0], layout, return_lse).values()
        targets = tuple(q.new_empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in wanted)
    lengths, strides = dict(zip(layout, q.shape)), dict(zip(layout, row_major(tuple(q.shape))))
    if q.numel():
        factor = (1 / math.sqrt(lengths["d"]) if scale is None else float(scale)) * math.log2(math.e)
        shape = {"HEAD_DIM": lengths["d"], "CAUSAL": bool(causal), "LSE": return_lse}
        call = Call((q, k, v, targets[0]), targets[-1], lengths, strides, factor, shape)
        with tensors.on_device(q):
            LAUNCHERS[chosen.name](call)
    return targets if len(targets) > 1 else targets[0]
