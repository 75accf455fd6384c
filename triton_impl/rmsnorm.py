"""RMSNorm, and its gradients by rmsnorm_backward.py: y = x rstd w, rstd[r] = 1 / sqrt(mean of x[r]^2 + eps).

contract  reference/rmsnorm.py
mapping   resident: a program owns a tile of whole rows in registers; packed: a row as it lies in memory, so that a
          multiprocessor has twice as many; two_pass: a program owns a row and reads it twice
traffic   reads x and writes y once (with a residual two of each); weight stays in L2, packed and resident have it in L1:
          memory decides. The second reading in two_pass, backwards, comes from L1 as far as the row is still there
limits    any GPU from sm_80; without residual, rows that begin at 16-byte addresses are read once up to 32768, in 16 bits
          with a weight of their dtype; other rows of more than 8192 go two_pass; 16-byte accesses in these where rows
          begin at such addresses
"""

import functools

import torch
import triton
import triton.language as tl

from reference.contract import CHAIN, Variant, pick
from reference.rmsnorm import DTYPES, check, check_backward, outputs
from triton_impl import rmsnorm_backward as backward
from triton_impl import tensors
from triton_impl.tensors import Tiles, describe
from triton_impl.words import high, low, pack, zero

VARIANTS = {
    "rmsnorm": (
        Variant("two_pass", "a row in steps, read twice", DTYPES, ("sm_80",), {"spill_bytes": 0}),
        Variant("resident", "whole rows in registers, read once", DTYPES, ("sm_80",), {"spill_bytes": 0}),
        Variant("packed", "wide rows in registers as they lie in memory", DTYPES, ("sm_80",), {"spill_bytes": 0}),
    ),
    "rmsnorm_backward": backward.VARIANTS,
}


@functools.cache
def resident_tiles(cols: int, itemsize: int) -> Tiles | None:
    """By the width: 32 elements a thread, in a single warp up to 1024. None past 8192, in float32 past 32768."""
    block = triton.next_power_of_2(cols)
    warps = 8 if block == 4096 else max(1, block // 1024)
    return (
        Tiles(block, rows=max(1, 1024 // block), warps=warps) if block <= (8192 if itemsize == 2 else 32768) else None
    )


@functools.cache
def two_pass_tiles(cols: int, itemsize: int) -> Tiles:
    """By the width: 32 bytes a thread and step; CHAIN steps at most."""
    # Beside the weight, the rows of a multiprocessor are to stay in its L1 until they are read again: so many fit.
    fit = (208 << 10) // (cols * itemsize) - 1
    warps = 16 if fit >= 2 else 32
    block = min(1024 // itemsize * warps, triton.next_power_of_2(cols))
    warps = max(1, block * itemsize // 1024)
    block = max(block, triton.next_power_of_2(triton.cdiv(cols, CHAIN)))
    return Tiles(block, rows=1, warps=warps, programs=0 if fit > 2 else max(1, fit))


@functools.cache
def packed_tiles(cols: int, itemsize: int) -> Tiles | None:
    """By the width: 32 elements a thread. None where resident is as fast or packed is not possible."""
    block = triton.next_power_of_2(cols)
    return Tiles(block, rows=1, warps=block // 1024) if 2048 < block <= 32768 and itemsize == 2 else None


@triton.jit
def _rows(x_ptr, residual_ptr, at, inside, RESIDUAL: tl.constexpr):
    # --- load the row
    x = tl.load(x_ptr + at, mask=inside, other=0)
    if RESIDUAL:
        # --- add the residual, round once
        residual = tl.load(residual_ptr + at, mask=inside, other=0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(x.dtype)
    return x


@triton.jit(do_not_specialize=["rows", "units"])
def _resident(
    x_ptr,
    residual_ptr,
    weight_ptr,
    y_ptr,
    sum_ptr,
    rstd_ptr,
    rows,
    units,
    eps,
    RESIDUAL: tl.constexpr,
    RSTD: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    STAGES: tl.constexpr,
):
    cols = units * UNIT  # so that the compiler knows what divides it
    col = tl.arange(0, BLOCK)[None, :]  # (1, BLOCK)
    first = tl.program_id(0).to(tl.int64)
    for tile in tl.range(first, tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)[:, None]  # (ROWS, 1)
        # A width that is a block needs no mask of columns.
        inside = row < rows if WHOLE else (row < rows) & (col < cols)  # (ROWS, BLOCK)
        at = row * cols + col
        x = _rows(x_ptr, residual_ptr, at, inside, RESIDUAL)  # (ROWS, BLOCK)
        if RESIDUAL:
            tl.store(sum_ptr + at, x, mask=inside)
        x = x.to(tl.float32)

        # --- mean of the squares
        mean = tl.sum(x * x, axis=1, keep_dims=True) / cols  # (ROWS, 1)
        rstd = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
        if RSTD:
            tl.store(rstd_ptr + row, rstd, mask=row < rows)

        # --- scale and store
        # Loaded here, for the registers' sake; the multiprocessor's other programs have it in L1 already.
        weight = tl.load(weight_ptr + col, mask=None if WHOLE else col < cols).to(tl.float32)  # (1, BLOCK)
        tl.store(y_ptr + at, (x * rstd * weight).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["units"])
def _packed(
    x_ptr,
    weight_ptr,
    y_ptr,
    rstd_ptr,
    units,
    eps,
    RSTD: tl.constexpr,
    UNIT: tl.constexpr,
    PIECE: tl.constexpr,
    PIECES: tl.constexpr,
    WHOLE: tl.constexpr,
    DTYPE: tl.constexpr,
):
    # x, weight and y are words of two numbers.
    words = units * UNIT
    row = tl.program_id(0).to(tl.int64) * words
    lane = tl.arange(0, PIECE)

    # --- load the row
    x = ()  # PIECES of (PIECE,)
    for piece in tl.static_range(PIECES):
        at = piece * PIECE + lane
        x += (tl.load(x_ptr + row + at, mask=None if WHOLE else at < words, other=None if WHOLE else 0),)

    # --- mean of the squares
    squares = tl.zeros((PIECE,), tl.float32)
    for piece in tl.static_range(PIECES):
        pair = x[piece] ^ zero(squares)
        first, second = low(pair, DTYPE), high(pair, DTYPE)
        squares += first * first + second * second
    rstd = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(squares, axis=0) / (2 * words) + eps))
    if RSTD:
        tl.store(rstd_ptr + tl.program_id(0), rstd)

    # --- scale and store
    for piece in tl.static_range(PIECES):
        at = piece * PIECE + lane
        # Loaded here, for the registers' sake; the multiprocessor's other program has it in L1 already.
        weight = tl.load(weight_ptr + at, mask=None if WHOLE else at < words)
        pair = x[piece] ^ zero(rstd)
        first, second = low(pair, DTYPE) * rstd * low(weight, DTYPE), high(pair, DTYPE) * rstd * high(weight, DTYPE)
        tl.store(y_ptr + row + at, pack(first, second, DTYPE), mask=None if WHOLE else at < words)


@triton.jit(do_not_specialize=["rows", "units"])
def _two_pass(
    x_ptr,
    residual_ptr,
    weight_ptr,
    y_ptr,
    sum_ptr,
    rstd_ptr,
    rows,
    units,
    eps,
    RESIDUAL: tl.constexpr,
    RSTD: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    cols = units * UNIT
    steps = tl.cdiv(cols, BLOCK)
    for row in range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        squares = tl.zeros((BLOCK,), tl.float32)
        for step in tl.range(0, steps, loop_unroll_factor=2):
            col = step * BLOCK + tl.arange(0, BLOCK)  # (BLOCK,)
            x = _rows(x_ptr, residual_ptr, row * cols + col, col < cols, RESIDUAL).to(tl.float32)
            squares += x * x

        # --- mean of the squares
        rstd = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(squares, axis=0) / cols + eps))
        if RSTD:
            tl.store(rstd_ptr + row, rstd)

        for step in tl.range(0, steps, loop_unroll_factor=2):
            # --- scale and store
            col = (steps - 1 - step) * BLOCK + tl.arange(0, BLOCK)
            at = row * cols + col
            x = _rows(x_ptr, residual_ptr, at, col < cols, RESIDUAL)
            weight = tl.load(weight_ptr + col, mask=col < cols).to(tl.float32)
            if RESIDUAL:
                tl.store(sum_ptr + at, x, mask=col < cols)
            tl.store(y_ptr + at, (x.to(tl.float32) * rstd * weight).to(y_ptr.dtype.element_ty), mask=col < cols)


def resident(arrays, eps: float, flags: dict) -> None:
    """Launch the forward kernel that reads rows once, or the other one where they do not fit."""
    x, _, weight = arrays[:3]
    rows, cols = x.shape
    unit, t = tensors.unit(cols), resident_tiles(cols, x.element_size())
    if t is None or t.block > 8192 and (flags["RESIDUAL"] or unit < 4):
        return two_pass(arrays, eps, flags)
    shape = {"ROWS": t.rows, "BLOCK": t.block, "WHOLE": cols == t.block, "STAGES": t.stages}
    # 32 warps on a multiprocessor; what is wider, a residual, or accesses element by element take more.
    narrow = unit >= 8 and x.element_size() == weight.element_size() == 2 and not flags["RESIDUAL"]
    registers = 64 if narrow or t.block > 8192 else None
    _resident[t.grid(rows, x)](
        *arrays, rows, cols // unit, eps, UNIT=unit, **flags, **shape, num_warps=t.warps, maxnreg=registers
    )


def packed(arrays, eps: float, flags: dict) -> None:
    """Launch the forward kernel that holds rows as they lie in memory, or another one where it is not for such arrays."""
    x, _, weight, y, _, rstd = arrays
    rows, cols = x.shape
    t = packed_tiles(cols, x.element_size())
    # Registers have no room for a residual.
    if t is None or flags["RESIDUAL"] or weight.dtype != x.dtype or not tensors.in_words(x, weight, y):
        return resident(arrays, eps, flags)
    words, unit = cols // 2, tensors.unit(cols // 2)
    piece = 4 * 32 * t.warps  # 16 bytes a thread
    shape = {"PIECE": piece, "PIECES": t.block // 2 // piece, "WHOLE": cols == t.block, "DTYPE": tensors.TYPES[x.dtype]}
    given = [array.view(torch.int32) for array in (x, weight, y)]
    # 64 warps on a multiprocessor.
    _packed[(rows,)](
        *given, rstd, words // unit, eps, RSTD=flags["RSTD"], UNIT=unit, **shape, num_warps=t.warps, maxnreg=32
    )


def two_pass(arrays, eps: float, flags: dict) -> None:
    """Launch the forward kernel that reads rows twice."""
    rows, cols = arrays[0].shape
    t = two_pass_tiles(cols, arrays[0].element_size())
    unit = tensors.unit(cols)
    _two_pass[t.grid(rows, arrays[0])](
        *arrays, rows, cols // unit, eps, UNIT=unit, **flags, BLOCK=t.block, num_warps=t.warps
    )


LAUNCHERS = {"two_pass": two_pass, "resident": resident, "packed": packed}


def rmsnorm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
    return_rstd: bool = False,
    *,
    out: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
    variant: str | None = None,
):
    """RMSNorm of x, or of x + residual, (rows, cols), on PyTorch's current stream.

    weight: (cols,). Returns y (rows, cols); with a residual or return_rstd the tuple y[, sum][, rstd], sum (rows, cols)
    of x's dtype, rstd (rows,) float32. out: that, written and returned where given. variant: a name in VARIANTS.
    Raises TypeError, ValueError and Unsupported as the contract says.
    """
    info = describe("x", x)
    added = None if residual is None else describe("residual", residual)
    wanted = outputs(info, added, return_rstd)
    written = (out,) if out is not None and len(wanted) == 1 else out
    given = None if out is None else [describe("out", array) for array in written]
    check(info, describe("weight", weight), eps, added, return_rstd, given, platform=tensors.PLATFORM)
    chosen = pick(VARIANTS["rmsnorm"], variant, info.dtype, tensors.arch(x))
    if out is None:
        written = [x.new_empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in wanted.values()]
        out = written[0] if len(wanted) == 1 else tuple(written)
    if x.shape[0]:
        named = dict(zip(wanted, written))
        # Where there is no such array another one stands in, which is neither read nor written for it.
        y = named["y"]
        arrays = x, x if residual is None else residual, weight, y, named.get("sum", y), named.get("rstd", y)
        with tensors.on_device(x):
            LAUNCHERS[chosen.name](arrays, float(eps), {"RESIDUAL": residual is not None, "RSTD": bool(return_rstd)})
    return out


def rmsnorm_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    rstd: torch.Tensor,
    *,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    variant: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of RMSNorm on PyTorch's current stream: (dx, dweight).

    dy, x (rows, cols), weight (cols,), rstd (rows,); dx (rows, cols) of x's dtype, dweight (cols,) of weight's. out:
    that pair, written and returned where given. variant: a name in VARIANTS.
    Raises TypeError, ValueError and Unsupported as the contract says.
    """
    infos = [describe(*named) for named in (("dy", dy), ("x", x), ("weight", weight), ("rstd", rstd))]
    given = None if out is None else [describe(*named) for named in zip(("dx", "dweight"), out)]
    check_backward(*infos, given, platform=tensors.PLATFORM)
    chosen = pick(VARIANTS["rmsnorm_backward"], variant, infos[1].dtype, tensors.arch(x))
    if out is None:
        out = torch.empty_like(x), torch.empty_like(weight)
    if x.shape[0]:
        with tensors.on_device(x):
            backward.LAUNCHERS[chosen.name](dy, x, weight, rstd, *out)
    else:
        out[1].zero_()
    return out
