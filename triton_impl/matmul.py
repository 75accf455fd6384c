"""Matmul with an epilogue: out = f(A B + bias), A (M, K), B (K, N).

contract  reference/matmul.py
mapping   a program owns a tile of out and walks along K, its tiles of A and B some steps ahead in shared memory;
          persistent: a program a multiprocessor, one tile after the other, the next one's first steps on their way while
          this one is stored. Tiles are dealt in groups of rows, so that neighbours find A and B in L2. Where there are
          too few tiles for the GPU K is split, the parts lie in memory in float32 and are added in order
traffic   a tile of M x N elements reads (M + N) K and does M N K multiplications: the tensor cores decide from about 128
          rows on, memory below. Split, out goes twice through memory in float32 a part
limits    tiled: any GPU from sm_80, everything of the contract. The others: sm_90, rows that begin at 16-byte addresses,
          in persistent_tf32 K along the rows of both; what else there is goes to tiled, small problems to descriptors
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from reference.contract import Variant, pick
from reference.matmul import DTYPES, check
from triton_impl import tensors
from triton_impl.matmul_tiles import Rows, Tile, descriptors_tile, persistent_tile, tiled_tile
from triton_impl.tensors import describe

HALVES = ("float16", "bfloat16")
TMA = {"spill_bytes": 0, "HGMMA": ">0", "UTMALDG": ">0"}

VARIANTS = {
    "matmul": (
        Variant("tiled", "tiles by pointers, any strides, the tails masked", DTYPES, ("sm_80",), {"spill_bytes": 0}),
        Variant("persistent_tf32", "TF32 by TMA, persistent", ("float32",), ("sm_90a",), {"spill_bytes": 0}),
        Variant("descriptors", "tiles by TMA", HALVES, ("sm_90a",), TMA),
        Variant(
            "persistent", "a program a multiprocessor, stores by TMA", HALVES, ("sm_90a",), TMA | {"UTMASTG": ">0"}
        ),
    )
}


@triton.jit
def _place(tile, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    """The first row and column of a tile: down the rows of a group, then on to its next column."""
    rows, cols = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    first = tile // (GROUP * cols) * GROUP
    height = tl.minimum(rows - first, GROUP)
    within = tile % (GROUP * cols)
    return (first + within % height) * BLOCK_M, within // height * BLOCK_N


@triton.jit
def _finish(z, bias_ptr, col, n, BIAS: tl.constexpr, ACTIVATION: tl.constexpr):
    # --- bias
    if BIAS:
        z += tl.load(bias_ptr + col, mask=col < n, other=0).to(tl.float32)[None, :]
    # --- activation
    if ACTIVATION == "gelu":
        z = 0.5 * z * (1 + tl.erf(z * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        # z / (1 + exp(-2t)): nothing cancels below 0. The factors are -2 sqrt(2/pi) log2(e), the second times 0.044715.
        z = z / (1 + tl.exp2(z * (-2.302208198144325 + -0.10294323958002349 * (z * z))))
    return z


@triton.jit
def _tiled(
    a_ptr,
    b_ptr,
    bias_ptr,
    out_ptr,
    m,
    n,
    k,
    lda,
    ldb,
    A_DOWN: tl.constexpr,
    B_DOWN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    SPLITS: tl.constexpr,
    WHOLE: tl.constexpr,
    BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
):
    first_row, first_col = _place(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP)
    row, col = first_row + tl.arange(0, BLOCK_M), first_col + tl.arange(0, BLOCK_N)
    along = tl.arange(0, BLOCK_K)
    steps = tl.cdiv(tl.cdiv(k, BLOCK_K), SPLITS)
    start = tl.program_id(1) * steps * BLOCK_K
    # K goes along the rows of A and of B, or DOWN them.
    lda, ldb = tl.cast(lda, tl.int64), tl.cast(ldb, tl.int64)
    a_row, a_step = (1, lda) if A_DOWN else (lda, 1)
    b_col, b_step = (1, ldb) if B_DOWN else (ldb, 1)
    a_at = a_ptr + row[:, None] * a_row + (start + along)[None, :] * a_step  # (BLOCK_M, BLOCK_K)
    b_at = b_ptr + (start + along)[:, None] * b_step + col[None, :] * b_col  # (BLOCK_K, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for at in tl.range(start, tl.minimum(start + steps * BLOCK_K, k), BLOCK_K):
        # --- load A and B
        # Zeros past the end in both: one alone would make a NaN of the other's neighbour.
        a_inside, b_inside = (row < m)[:, None], (col < n)[None, :]
        if not WHOLE:
            a_inside, b_inside = a_inside & (at + along < k)[None, :], b_inside & (at + along < k)[:, None]
        a = tl.load(a_at, mask=a_inside, other=0)
        b = tl.load(b_at, mask=b_inside, other=0)
        # --- multiply and accumulate
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        a_at += BLOCK_K * a_step
        b_at += BLOCK_K * b_step
    _put(acc, bias_ptr, out_ptr, row, col, m, n, SPLITS, BIAS, ACTIVATION)


@triton.jit
def _put(z, bias_ptr, out_ptr, row, col, m, n, SPLITS: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr):
    # A part of a split sum goes out as it is.
    if SPLITS == 1:
        z = _finish(z, bias_ptr, col, n, BIAS, ACTIVATION)
    # --- store
    at = (tl.program_id(1) * tl.cast(m, tl.int64) + row)[:, None] * n + col[None, :]
    tl.store(out_ptr + at, z.to(out_ptr.dtype.element_ty), mask=(row < m)[:, None] & (col < n)[None, :])


@triton.jit
def _multiply(
    a,
    b,
    row,
    col,
    start,
    stop,
    A_DOWN: tl.constexpr,
    B_DOWN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The sum of A B over K from start to stop, by TMA's descriptors of both; past their ends those read zeros."""
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for at in tl.range(start, stop, BLOCK_K):
        # --- load A and B
        if A_DOWN:
            left = a.load([at, row]).T  # (BLOCK_M, BLOCK_K)
        else:
            left = a.load([row, at])
        if B_DOWN:
            right = b.load([at, col])  # (BLOCK_K, BLOCK_N)
        else:
            right = b.load([col, at]).T
        # --- multiply and accumulate
        acc = tl.dot(left, right, acc, input_precision=PRECISION)
    return acc


@triton.jit
def _descriptors(
    a,
    b,
    bias_ptr,
    out_ptr,
    m,
    n,
    k,
    A_DOWN: tl.constexpr,
    B_DOWN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    SPLITS: tl.constexpr,
    BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
):
    row, col = _place(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP)
    steps = tl.cdiv(tl.cdiv(k, BLOCK_K), SPLITS)
    start = tl.program_id(1) * steps * BLOCK_K
    stop = tl.minimum(start + steps * BLOCK_K, k)
    acc = _multiply(a, b, row, col, start, stop, A_DOWN, B_DOWN, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION)
    row, col = row + tl.arange(0, BLOCK_M), col + tl.arange(0, BLOCK_N)
    _put(acc, bias_ptr, out_ptr, row, col, m, n, SPLITS, BIAS, ACTIVATION)


@triton.jit
def _persistent(
    a,
    b,
    bias_ptr,
    out,
    m,
    n,
    k,
    A_DOWN: tl.constexpr,
    B_DOWN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        row, col = _place(tile, m, n, BLOCK_M, BLOCK_N, GROUP)
        acc = _multiply(a, b, row, col, 0, k, A_DOWN, B_DOWN, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION)
        # In halves: a whole tile on its way out would take the room of a stage.
        HALF: tl.constexpr = BLOCK_N // 2
        left, right = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, HALF)), (0, 2, 1)))
        left = _finish(left, bias_ptr, col + tl.arange(0, HALF), n, BIAS, ACTIVATION)
        # --- store
        out.store([row, col], left.to(out.dtype))
        right = _finish(right, bias_ptr, col + HALF + tl.arange(0, HALF), n, BIAS, ACTIVATION)
        out.store([row, col + HALF], right.to(out.dtype))


@triton.jit
def _fold(
    parts_ptr,
    bias_ptr,
    out_ptr,
    m,
    n,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    z = tl.zeros((1, BLOCK), tl.float32)
    for split in tl.static_range(SPLITS):
        z += tl.load(parts_ptr + (split * tl.cast(m, tl.int64) + row) * n + col, mask=col < n)[None, :]
    z = _finish(z, bias_ptr, col, n, BIAS, ACTIVATION)
    # --- store
    tl.store(out_ptr + row * n + col[None, :], z.to(out_ptr.dtype.element_ty), mask=(col < n)[None, :])


@dataclass(frozen=True)
class Call:
    """What a kernel is launched for: out (M, N) of a and b, sizes M, N and K. bias: an array even where there is none."""

    a: Rows
    b: Rows
    bias: torch.Tensor
    out: torch.Tensor
    sizes: tuple[int, int, int]
    precision: str
    epilogue: dict

    @property
    def shape(self) -> dict:
        """What all kernels are told of it."""
        return {"A_DOWN": self.a.down, "B_DOWN": self.b.down, "PRECISION": self.precision} | self.epilogue

    def descriptors(self, t: Tile) -> tuple[TensorDescriptor, TensorDescriptor]:
        """Of a and b by a tile's shares."""
        return self.a.descriptor(t.block_m, t.block_k), self.b.descriptor(t.block_n, t.block_k)


def _launch(kernel, call: Call, t: Tile, *given, **shape) -> None:
    """A program for each tile of out, or several that share its K, and then the sum of their parts."""
    m, n, k = call.sizes
    splits = t.splits(m, n, k)
    out = call.out if splits == 1 else call.out.new_empty((splits, m, n), dtype=torch.float32)
    kernel[(t.tiles(m, n), splits)](
        *given[:2], call.bias, out, m, n, k, *given[2:], SPLITS=splits, **t.kernel, **call.shape, **shape, **t.options
    )
    if splits > 1:
        block = min(1024, triton.next_power_of_2(n))
        grid = (m, triton.cdiv(n, block))
        _fold[grid](out, call.bias, call.out, m, n, SPLITS=splits, BLOCK=block, **call.epilogue, num_warps=4)


def tiled(call: Call) -> None:
    """Launch the form that loads by pointers."""
    vectors = call.a.in_vectors() and call.b.in_vectors()
    t = tiled_tile(call.sizes[0], call.a.array.dtype, call.precision, vectors, tensors.shared_bytes(call.out))
    whole = call.sizes[2] % t.block_k == 0
    _launch(_tiled, call, t, call.a.array, call.b.array, call.a.stride, call.b.stride, WHOLE=whole)


def descriptors(call: Call) -> None:
    """Launch the form that loads by TMA, or the one by pointers where TMA cannot."""
    if not (call.a.by_tma() and call.b.by_tma()):
        return tiled(call)
    t = descriptors_tile(*call.sizes[:2], call.a.array.dtype)
    _launch(_descriptors, call, t, *call.descriptors(t))


def persistent(call: Call) -> None:
    """Launch the persistent form, or another one where out is too small for it or not for TMA."""
    m, n, _ = call.sizes
    t = persistent_tile(m, n, call.a.array.dtype, call.out.dtype, tensors.multiprocessors(call.out))
    out = Rows(call.out, False)
    if t is None or not (call.a.by_tma() and call.b.by_tma() and out.by_tma()):
        return descriptors(call)
    programs = min(t.tiles(m, n), tensors.multiprocessors(call.out))
    store = out.descriptor(t.block_m, t.block_n // 2)
    _persistent[(programs,)](*call.descriptors(t), call.bias, store, *call.sizes, **t.kernel, **call.shape, **t.options)


def persistent_tf32(call: Call) -> None:
    """Launch the persistent form where the tensor cores take float32 as it lies, which is along K, else the tiled one."""
    along = not call.a.down and not call.b.down
    return persistent(call) if call.precision == "tf32" and along else tiled(call)


LAUNCHERS = {"tiled": tiled, "persistent_tf32": persistent_tf32, "descriptors": descriptors, "persistent": persistent}


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    transpose_a: bool = False,
    transpose_b: bool = False,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    out_dtype: str | None = None,
    precision: str = "ieee",
    *,
    out: torch.Tensor | None = None,
    variant: str | None = None,
) -> torch.Tensor:
    """``f(A B + bias)`` on PyTorch's current stream; returns out, (M, N).

    a: (M, K), with transpose_a (K, M). b: (K, N), with transpose_b (N, K). bias: (N,). activation: ``"gelu"``,
    ``"gelu_tanh"`` or None. out_dtype: a dtype's name, by default the inputs' own. precision: ``"ieee"``, or
    ``"tf32"`` for float32. out: written and returned where given. variant: a name in VARIANTS.
    Raises TypeError, ValueError and Unsupported as the contract says.
    """
    infos = describe("a", a), describe("b", b)
    added = None if bias is None else describe("bias", bias)
    given = None if out is None else describe("out", out)
    sizes = check(
        *infos, transpose_a, transpose_b, added, activation, out_dtype, precision, given, platform=tensors.PLATFORM
    )
    chosen = pick(VARIANTS["matmul"], variant, infos[0].dtype, tensors.arch(a))
    if out is None:
        out = a.new_empty(sizes[:2], dtype=getattr(torch, out_dtype or infos[0].dtype))
    epilogue = {"BIAS": bias is not None, "ACTIVATION": activation}
    # A kernel without a bias is handed another array, which it does not read.
    given = out if bias is None else bias
    call = Call(Rows(a, transpose_a), Rows(b, not transpose_b), given, out, sizes, precision, epilogue)
    with tensors.on_device(a):
        LAUNCHERS[chosen.name](call)
    return out
