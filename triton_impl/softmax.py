"""Softmax over the last axis: out[r, c] = exp(x[r, c] - m[r]) / l[r].

contract  reference/softmax.py
mapping   resident: a program owns a tile of whole rows in registers, or one such tile after the other, the next on its
          way through shared memory; packed: a row as it lies in memory, so that a multiprocessor has two; online: a
          program owns a row, and each lane a state (m, l) of every eighth of it
traffic   reads and writes rows x cols once, one exponential an element, packed two: memory decides. online reads twice,
          the second time backwards, from L1 as far as the row is still there, and takes two exponentials an element
limits    any GPU from sm_80; rows of more than 32768 go online; packed: 16-bit rows of more than 16384 that begin at
          16-byte addresses; 16-byte accesses in the others where rows begin at such addresses
"""

import functools

import torch
import triton
import triton.language as tl

from reference.contract import CHAIN, Variant, pick
from reference.softmax import DTYPES, check
from triton_impl import tensors
from triton_impl.tensors import Tiles, describe
from triton_impl.words import high, low, pack, zero

VARIANTS = {
    "softmax": (
        Variant("online", "a row in steps, read twice; every lane has a state", DTYPES, ("sm_80",), {"spill_bytes": 0}),
        Variant("resident", "whole rows in registers, read once", DTYPES, ("sm_80",), {"spill_bytes": 0}),
        Variant("packed", "wide rows in registers as they lie in memory", DTYPES, ("sm_80",), {"spill_bytes": 0}),
    )
}

LOG2E = tl.constexpr(1.4426950408889634)  # exp2 is one instruction, exp is five


@functools.cache
def resident_tiles(cols: int, itemsize: int) -> Tiles | None:
    """By the width: 32 elements a thread, in a single warp up to 1024. None where a row is too wide."""
    block = triton.next_power_of_2(cols)
    if block > 32768:
        return None
    if block == 32768 and itemsize == 2:
        # One such program fills a multiprocessor: while it computes, the next rows have to be on their way.
        return Tiles(block, rows=1, warps=32, stages=3, programs=1)
    return Tiles(block, rows=max(1, 1024 // block), warps=max(1, block // 1024))


@functools.cache
def packed_tiles(cols: int, itemsize: int) -> Tiles | None:
    """By the width: 128 elements a thread. None where resident takes a row, or does not need to."""
    block = triton.next_power_of_2(cols)
    return Tiles(block, rows=1, warps=8) if block == 32768 and itemsize == 2 else None


@functools.cache
def online_tiles(cols: int, itemsize: int) -> Tiles:
    """By the width: 32 bytes a thread and step; CHAIN steps at most, as many terms has a state's sum."""
    # The rows of a multiprocessor are to stay in its L1 until they are read again: so many fit.
    fit = (192 << 10) // (cols * itemsize)
    block = min(1024 // itemsize * (16 if fit >= 2 else 32), triton.next_power_of_2(cols))
    warps = max(1, block * itemsize // 1024)
    block = max(block, 512 // itemsize, triton.next_power_of_2(triton.cdiv(cols, CHAIN)))
    return Tiles(block, rows=1, warps=warps, programs=0 if fit >= 2 else 1)


@triton.jit(do_not_specialize=["rows", "units"])
def _resident(
    x_ptr,
    out_ptr,
    rows,
    units,
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
        # --- load the row
        row = tile * ROWS + tl.arange(0, ROWS)[:, None]  # (ROWS, 1)
        # A width that is a block needs no mask of columns.
        inside = row < rows if WHOLE else (row < rows) & (col < cols)  # (ROWS, BLOCK)
        x = tl.load(x_ptr + row * cols + col, mask=inside, other=float("-inf")).to(tl.float32)  # (ROWS, BLOCK)

        # --- maximum of the row
        m = tl.max(x, axis=1, keep_dims=True)  # (ROWS, 1)

        # --- exponentials and their sum
        e = tl.exp2((x - m) * LOG2E)  # (ROWS, BLOCK)
        l = tl.sum(e, axis=1, keep_dims=True)  # (ROWS, 1)

        # --- divide and store
        out = e * tl.div_rn(1.0, l)
        tl.store(out_ptr + row * cols + col, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["units"])
def _packed(
    x_ptr,
    out_ptr,
    units,
    UNIT: tl.constexpr,
    PIECE: tl.constexpr,
    PIECES: tl.constexpr,
    FILL: tl.constexpr,
    DTYPE: tl.constexpr,
):
    # x and out are words of two numbers.
    words = units * UNIT
    row = tl.program_id(0).to(tl.int64) * words
    lane = tl.arange(0, PIECE)

    # --- load the row
    x = ()  # PIECES of (PIECE,)
    for piece in tl.static_range(PIECES):
        at = piece * PIECE + lane
        x += (tl.load(x_ptr + row + at, mask=at < words, other=FILL),)

    # --- maximum of the row
    highest = tl.full((PIECE,), float("-inf"), tl.float32)
    for piece in tl.static_range(PIECES):
        highest = tl.maximum(highest, tl.maximum(low(x[piece], DTYPE), high(x[piece], DTYPE)))
    m = tl.max(highest, axis=0)

    # --- exponentials and their sum
    sums = tl.zeros((PIECE,), tl.float32)
    for piece in tl.static_range(PIECES):
        pair = x[piece] ^ zero(sums)
        sums += tl.exp2((low(pair, DTYPE) - m) * LOG2E) + tl.exp2((high(pair, DTYPE) - m) * LOG2E)
    l = tl.sum(sums, axis=0)

    # --- divide and store
    scale = tl.div_rn(1.0, l)
    for piece in tl.static_range(PIECES):
        at = piece * PIECE + lane
        pair = x[piece] ^ zero(l)
        first, second = tl.exp2((low(pair, DTYPE) - m) * LOG2E), tl.exp2((high(pair, DTYPE) - m) * LOG2E)
        tl.store(out_ptr + row + at, pack(first * scale, second * scale, DTYPE), mask=at < words)


@triton.jit(do_not_specialize=["rows", "units"])
def _online(x_ptr, out_ptr, rows, units, UNIT: tl.constexpr, STATES: tl.constexpr, VECTOR: tl.constexpr):
    cols = units * UNIT
    steps = tl.cdiv(cols, STATES * VECTOR)
    state, i = tl.arange(0, STATES)[:, None], tl.arange(0, VECTOR)[None, :]
    # A thread is to hold a state's elements alone: side by side where they are loaded at once, else far apart.
    taken = state * VECTOR + i if UNIT % VECTOR == 0 else state + i * STATES  # (STATES, VECTOR)
    for row in range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        m = tl.full((STATES,), float("-inf"), tl.float32)
        l = tl.zeros((STATES,), tl.float32)
        for step in tl.range(0, steps, loop_unroll_factor=2):
            # --- load the row
            col = step * (STATES * VECTOR) + taken
            x = tl.load(x_ptr + row * cols + col, mask=col < cols, other=float("-inf")).to(tl.float32)

            # --- maximum of the row
            higher = tl.maximum(m, tl.max(x, axis=1))  # (STATES,)
            base = tl.where(higher == float("-inf"), 0.0, higher)  # what has seen nothing yet keeps a sum of 0

            # --- exponentials and their sum
            e = tl.exp2((x - base[:, None]) * LOG2E)  # (STATES, VECTOR)
            l = l * tl.exp2((m - base) * LOG2E) + tl.sum(e, axis=1)
            m = higher

        highest = tl.max(m, axis=0)
        scale = tl.div_rn(1.0, tl.sum(l * tl.exp2((m - highest) * LOG2E), axis=0))
        for step in tl.range(0, steps, loop_unroll_factor=2):
            # --- divide and store
            col = (steps - 1 - step) * (STATES * VECTOR) + taken
            x = tl.load(x_ptr + row * cols + col, mask=col < cols).to(tl.float32)
            out = tl.exp2((x - highest) * LOG2E) * scale
            tl.store(out_ptr + row * cols + col, out.to(out_ptr.dtype.element_ty), mask=col < cols)


def resident(x: torch.Tensor, out: torch.Tensor) -> None:
    """Launch the resident form, or the online one where rows do not fit."""
    rows, cols = x.shape
    t = resident_tiles(cols, x.element_size())
    if t is None:
        return online(x, out)
    unit = tensors.unit(cols)
    shape = {"UNIT": unit, "ROWS": t.rows, "BLOCK": t.block, "WHOLE": cols == t.block, "STAGES": t.prefetch(x)}
    registers = 64 if unit >= 8 else None  # 32 warps on a multiprocessor; accesses element by element take more
    _resident[t.grid(rows, x)](x, out, rows, cols // unit, **shape, num_warps=t.warps, maxnreg=registers)


def packed(x: torch.Tensor, out: torch.Tensor) -> None:
    """Launch the packed form, or another one where it is not for such rows."""
    rows, cols = x.shape
    t = packed_tiles(cols, x.element_size())
    if t is None or not tensors.in_words(x, out):
        return resident(x, out)
    words, unit = cols // 2, tensors.unit(cols // 2)
    piece = 4 * 32 * t.warps  # 16 bytes a thread
    shape = {"PIECE": piece, "PIECES": t.block // 2 // piece}
    shape |= {"FILL": tensors.word_of(float("-inf"), x.dtype), "DTYPE": tensors.TYPES[x.dtype]}
    # Two such programs on a multiprocessor.
    _packed[(rows,)](
        x.view(torch.int32), out.view(torch.int32), words // unit, UNIT=unit, **shape, num_warps=t.warps, maxnreg=128
    )


def online(x: torch.Tensor, out: torch.Tensor) -> None:
    """Launch the online form."""
    rows, cols = x.shape
    t = online_tiles(cols, x.element_size())
    unit, vector = tensors.unit(cols), 16 // x.element_size()
    _online[t.grid(rows, x)](
        x, out, rows, cols // unit, UNIT=unit, STATES=t.block // vector, VECTOR=vector, num_warps=t.warps
    )


LAUNCHERS = {"online": online, "resident": resident, "packed": packed}


def softmax(x: torch.Tensor, *, out: torch.Tensor | None = None, variant: str | None = None) -> torch.Tensor:
    """``softmax(x, axis=1)``, x (rows, cols), on PyTorch's current stream; returns out, (rows, cols), of x's dtype.

    out: written and returned where given. variant: a name in VARIANTS.
    Raises TypeError, ValueError and Unsupported as the contract says.
    """
    info = describe("x", x)
    check(info, None if out is None else describe("out", out), platform=tensors.PLATFORM)
    chosen = pick(VARIANTS["softmax"], variant, info.dtype, tensors.arch(x))
    if out is None:
        out = torch.empty_like(x)
    if x.shape[0]:
        with tensors.on_device(x):
            LAUNCHERS[chosen.name](x, out)
    return out
