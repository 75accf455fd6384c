"""RMSNorm, y = x rstd w with rstd[r] = 1 / sqrt(mean of x[r]^2 + eps), and its gradients dx and dweight.

contract  reference/rmsnorm.py
mapping   resident: a program owns a tile of whole rows in registers; streamed: one row after the other, on its way through
          shared memory both ways; two_pass: a program owns a row and reads it twice. Backward, resident: a program takes
          every n-th tile and keeps what it adds to dweight in registers; shared: so, but programs share a row's columns
          and exchange their dots while the next row is loaded; split: a program owns columns of up to CHAIN rows. A last
          kernel adds the programs' parts of dweight, in order
traffic   forward reads x and writes y once (with a residual two of each), backward reads dy and x and writes dx; weight
          and the parts of dweight stay in L2: memory decides. A second reading, backwards in two_pass, comes from L1 as
          far as the row is still there; in split from memory: five arrays' traffic instead of three
limits    any GPU from sm_80; streamed and shared, by TMA, from sm_90, for rows of more than 8192 that are whole lines of
          128 bytes, streamed up to 64 KiB and without residual; other rows of more than 8192 go two_pass, of more than
          32768 split; 16-byte accesses where rows begin at such addresses
"""

import functools

import torch
import triton
import triton.language as tl

from reference.contract import CHAIN, Variant, pick
from reference.rmsnorm import DTYPES, check, check_backward, outputs
from triton_impl import tensors
from triton_impl.tensors import Tiles, describe

VARIANTS = {
    "rmsnorm": (
        Variant("two_pass", "a row in steps, read twice", DTYPES, ("sm_80",), {"spill_bytes": 0}),
        Variant("resident", "whole rows in registers, read once", DTYPES, ("sm_80",), {"spill_bytes": 0}),
        Variant(
            "streamed", "wide rows through shared memory both ways, by TMA", DTYPES, ("sm_90",), {"spill_bytes": 0}
        ),
    ),
    "rmsnorm_backward": (
        Variant(
            "split_backward", "means of the rows first, then dx by columns", DTYPES, ("sm_80",), {"spill_bytes": 0}
        ),
        Variant(
            "resident_backward", "all in one reading, dweight in registers", DTYPES, ("sm_80",), {"spill_bytes": 0}
        ),
        Variant(
            "shared_backward",
            "wide rows shared by programs that add up their dots",
            DTYPES,
            ("sm_90",),
            {"spill_bytes": 0},
        ),
    ),
}


@functools.cache
def resident_tiles(cols: int) -> Tiles | None:
    """By the width: 32 elements a thread, in a single warp up to 1024, 8 warps from 4096 on. None past 8192."""
    block = triton.next_power_of_2(cols)
    warps = 8 if block >= 4096 else max(1, block // 1024)
    return Tiles(block, rows=max(1, 1024 // block), warps=warps) if block <= 8192 else None


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
def streamed_tiles(cols: int, itemsize: int) -> Tiles | None:
    """By the width: 128 KiB on their way in. None where resident takes a row, or shared memory does not hold three."""
    block = triton.next_power_of_2(cols)
    if block <= 8192 or block * itemsize > 65536:
        return None
    return Tiles(block, rows=1, warps=32, stages=1 + (128 << 10) // (block * itemsize), programs=1)


@functools.cache
def resident_backward_tiles(cols: int, itemsize: int) -> Tiles | None:
    """By the width: 16 elements and sums a thread, 16 warps a multiprocessor. None where a row is too wide."""
    vectors = tensors.unit(cols) * itemsize >= 16
    block = triton.next_power_of_2(cols)
    if block <= (8192 if vectors else 1024):
        warps = max(2, block // 512)
        return Tiles(block, max(1, 1024 // block), warps, stages=3 if vectors else 1, programs=16 // warps)
    # Pieces: only the sums stay in registers. Accesses element by element take more of them.
    if vectors:
        return Tiles(4096, rows=1, warps=16, programs=1) if cols <= 32768 else None
    warps = 8 if cols <= 4096 else 16
    return Tiles(128 * warps, rows=1, warps=warps, programs=16 // warps) if cols <= 16384 else None


@functools.cache
def shared_backward_tiles(cols: int, itemsize: int) -> Tiles | None:
    """By the width: 4 KiB of a row a program, of dy and x three on their way in. None where resident takes a row.

    Many small programs: while one waits for the others' dots, three more have their multiprocessor.
    """
    if triton.next_power_of_2(cols) <= 8192:
        return None
    if tensors.INTERPRETED:  # one program after the other: none may wait for another one
        return Tiles(triton.next_power_of_2(cols), rows=1, warps=16, programs=1)
    return Tiles(4096 // itemsize, rows=1, warps=4, stages=4, programs=4)


@functools.cache
def split_backward_tiles(cols: int) -> Tiles:
    """By the width: 32 elements a thread in 4 rows or more, in 4 warps."""
    block = min(1024, triton.next_power_of_2(cols))
    return Tiles(block, rows=4096 // block, warps=4, programs=16)


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


@triton.jit
def _values(words, DTYPE: tl.constexpr):
    """What 32-bit words hold, one value or two of them, in float32."""
    if DTYPE.primitive_bitwidth == 32:
        values = words.to(tl.float32, bitcast=True)
    else:
        low = words.to(tl.int16).to(DTYPE, bitcast=True).to(tl.float32)
        high = (words >> 16).to(tl.int16).to(DTYPE, bitcast=True).to(tl.float32)
        values = tl.join(low, high).reshape(words.shape[0], words.shape[1], 2 * words.shape[2])
    return values


@triton.jit(do_not_specialize=["rows", "lines"])
def _streamed(
    x,
    weight_ptr,
    y,
    rstd_ptr,
    rows,
    lines,
    eps,
    RSTD: tl.constexpr,
    LINES: tl.constexpr,
    WHOLE: tl.constexpr,
    STAGES: tl.constexpr,
):
    # x and y are TMA's descriptors of lines of 128 bytes, the loop's stages are slots in shared memory. A store is only
    # begun here: it is waited for when the next one needs its slot.
    DTYPE: tl.constexpr = y.dtype
    cols = lines * (1024 // DTYPE.primitive_bitwidth)
    line = tl.arange(0, LINES)[None, :, None]
    at = line * 32 + tl.arange(0, 32)[None, None, :]  # (1, LINES, 32)
    weight = tl.load(weight_ptr.to(tl.pointer_type(tl.int32)) + at, mask=None if WHOLE else line < lines)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        # --- load the row
        words = x.load([row, 0, 0])  # (1, LINES, 32), of 32 bits

        # --- mean of the squares
        values = _values(words, DTYPE)
        rstd = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(values * values) / cols + eps))
        if RSTD:
            tl.store(rstd_ptr + row, rstd)

        # --- scale and store
        # 0, which the compiler can't know: what is unpacked before takes the room of the registers twice.
        zero = rstd.to(tl.int32, bitcast=True) >> 31
        out = _values(words ^ zero, DTYPE) * rstd * _values(weight ^ zero, DTYPE)
        y.store([row, 0, 0], out.to(DTYPE))


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


@triton.jit
def _load(ptr, at, inside, WHOLE: tl.constexpr):
    return tl.load(ptr + at, mask=None if WHOLE else inside, other=None if WHOLE else 0.0).to(tl.float32)


@triton.jit(do_not_specialize=["rows", "units"])
def _resident_backward(
    dy_ptr,
    x_ptr,
    weight_ptr,
    rstd_ptr,
    dx_ptr,
    parts_ptr,
    rows,
    units,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    PIECES: tl.constexpr,
    WHOLE: tl.constexpr,
    STAGES: tl.constexpr,
):
    cols = units * UNIT
    lane = tl.arange(0, BLOCK)[None, :]  # (1, BLOCK)
    sums = ()  # of dweight's terms, one (ROWS, BLOCK) for each piece of the row
    for piece in tl.static_range(PIECES):
        sums = sums + (tl.zeros((ROWS, BLOCK), tl.float32),)
    if PIECES == 1:
        weight = _load(weight_ptr, lane, lane < cols, WHOLE)  # (1, BLOCK)
    program = tl.program_id(0).to(tl.int64)
    for tile in tl.range(program, tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)[:, None]  # (ROWS, 1)
        rstd = tl.load(rstd_ptr + row, mask=row < rows, other=0)
        products = tl.zeros((ROWS, BLOCK), tl.float32)
        for piece in tl.range(0, PIECES, loop_unroll_factor=2 if PIECES > 1 else 1):
            # --- load the row
            col = piece * BLOCK + lane
            inside = row < rows if WHOLE else (row < rows) & (col < cols)  # (ROWS, BLOCK)
            dy = _load(dy_ptr, row * cols + col, inside, False)
            x = _load(x_ptr, row * cols + col, inside, False)

            # --- mean of g x
            if PIECES > 1:
                weight = _load(weight_ptr, col, col < cols, WHOLE)
            products += dy * weight * (x * rstd)
        mean = tl.sum(products, axis=1, keep_dims=True) / cols  # (ROWS, 1), times rstd

        grown = ()
        for piece in tl.static_range(PIECES):
            # The same loads again: of one piece the compiler keeps the values, of several L1 has them.
            col = piece * BLOCK + lane
            inside = row < rows if WHOLE else (row < rows) & (col < cols)
            dy = _load(dy_ptr, row * cols + col, inside, False)
            x = _load(x_ptr, row * cols + col, inside, False)
            if PIECES > 1:
                weight = _load(weight_ptr, col, col < cols, WHOLE)

            # --- dx
            normed = x * rstd
            dx = rstd * (dy * weight - normed * mean)
            tl.store(dx_ptr + row * cols + col, dx.to(dx_ptr.dtype.element_ty), mask=inside)

            # --- dweight
            grown = grown + (sums[piece] + dy * normed,)
        sums = grown

    for piece in tl.static_range(PIECES):
        col = piece * BLOCK + lane
        part = tl.sum(sums[piece], axis=0, keep_dims=True)  # (1, BLOCK)
        tl.store(parts_ptr + program * cols + col, part, mask=None if WHOLE else col < cols)


@triton.jit
def _published(words, wanted):
    """The float32 in the low halves of 64-bit words, waited for until the high halves are 1; not where none is wanted."""
    return tl.inline_asm_elementwise(
        """{
            .reg .pred missing;
            .reg .b32 mark;
            .reg .b64 word;
        again:
            ld.relaxed.gpu.global.b64 word, [$1];
            mov.b64 {$0, mark}, word;
            setp.lt.u32 missing, mark, $2;
            @missing bra again;
        }""",
        "=r,l,r",
        [words, wanted.to(tl.int32)],
        dtype=tl.float32,
        is_pure=False,
        pack=1,
    )


@triton.jit(do_not_specialize=["rows", "lines"])
def _shared_backward(
    dy,
    x,
    weight_ptr,
    rstd_ptr,
    words_ptr,
    dx,
    parts_ptr,
    rows,
    lines,
    SHARES: tl.constexpr,
    LANES: tl.constexpr,
    LINES: tl.constexpr,
    STAGES: tl.constexpr,
    CHAIN: tl.constexpr,
):
    # dy, x and dx are TMA's descriptors of lines of 128 bytes, the loop's stages are slots in shared memory.
    LINE: tl.constexpr = 1024 // dx.dtype.primitive_bitwidth
    cols = lines * LINE
    share = tl.program_id(0) % SHARES  # of the row's columns
    first, step = tl.program_id(0) // SHARES, tl.num_programs(0) // SHARES
    line = share * LINES + tl.arange(0, LINES)[:, None]
    col = line * LINE + tl.arange(0, LINE)[None, :]  # (LINES, LINE)
    weight = tl.load(weight_ptr + col, mask=line < lines, other=0).to(tl.float32)[None]  # (1, LINES, LINE)
    lane = tl.arange(0, LANES)
    for start in range(first, rows, step * CHAIN):
        stop = tl.minimum(start + step * CHAIN, rows)
        sums = tl.zeros((1, LINES, LINE), tl.float32)
        # A row is finished a turn after it was loaded: until then its other dots have come.
        dy_before, x_before = tl.zeros((1, LINES, LINE), dx.dtype), tl.zeros((1, LINES, LINE), dx.dtype)
        rstd_before, dot_before = 0.0, 0.0
        for row in tl.range(start, stop + step, step, num_stages=STAGES):
            # --- load the row
            dy_row = dy.load([row, share * LINES, 0])  # (1, LINES, LINE)
            x_row = x.load([row, share * LINES, 0])
            rstd = tl.load(rstd_ptr + row, mask=row < stop, other=0)

            # --- mean of g x
            dot = tl.sum(dy_row.to(tl.float32) * weight * (x_row.to(tl.float32) * rstd))  # times rstd
            before = row - step
            if SHARES > 1:
                word = dot.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF | 1 << 32
                tl.atomic_xchg(words_ptr + row * LANES + share, word, mask=row < stop, sem="relaxed")
                words = words_ptr + tl.maximum(before, start) * LANES + lane
                dot_before = tl.sum(_published(words, (lane < SHARES) & (before >= start)))
            mean = dot_before / cols

            # --- dx
            g, normed = dy_before.to(tl.float32), x_before.to(tl.float32) * rstd_before
            out = rstd_before * (g * weight - normed * mean)
            # TMA writes no row past the end; one of -1 is an illegal instruction.
            dx.store([tl.where(before >= start, before, rows), share * LINES, 0], out.to(dx.dtype))

            # --- dweight
            sums += g * normed
            dy_before, x_before, rstd_before, dot_before = dy_row, x_row, rstd, dot

        part = start // (step * CHAIN) * step + first
        tl.store(parts_ptr + part.to(tl.int64) * cols + col, tl.sum(sums, axis=0), mask=line < lines)


@triton.jit(do_not_specialize=["rows", "units"])
def _means(dy_ptr, x_ptr, weight_ptr, rstd_ptr, mean_ptr, rows, units, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    cols = units * UNIT
    for row in range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        rstd = tl.load(rstd_ptr + row)
        products = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, cols, BLOCK):
            # --- load the row
            col = start + tl.arange(0, BLOCK)  # (BLOCK,)
            dy = _load(dy_ptr, row * cols + col, col < cols, False)
            x = _load(x_ptr, row * cols + col, col < cols, False)

            # --- mean of g x
            products += dy * _load(weight_ptr, col, col < cols, False) * (x * rstd)
        tl.store(mean_ptr + row, tl.sum(products, axis=0) / cols)


@triton.jit(do_not_specialize=["rows", "units", "strip"])
def _split_backward(
    dy_ptr,
    x_ptr,
    weight_ptr,
    rstd_ptr,
    mean_ptr,
    dx_ptr,
    parts_ptr,
    rows,
    units,
    strip,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    cols = units * UNIT
    blocks = tl.cdiv(cols, BLOCK)
    part = tl.program_id(0) // blocks  # which strip of rows
    col = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)[None, :]  # (1, BLOCK)
    weight = _load(weight_ptr, col, col < cols, False)
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    first = part.to(tl.int64) * strip
    last = tl.minimum(first + strip, rows)
    for start in range(first, last, ROWS):
        # --- load the row
        row = start + tl.arange(0, ROWS)[:, None]  # (ROWS, 1)
        inside = (row < last) & (col < cols)  # (ROWS, BLOCK)
        rstd = _load(rstd_ptr, row, row < last, False)
        mean = _load(mean_ptr, row, row < last, False)
        dy = _load(dy_ptr, row * cols + col, inside, False)
        x = _load(x_ptr, row * cols + col, inside, False)

        # --- dx
        normed = x * rstd
        dx = rstd * (dy * weight - normed * mean)
        tl.store(dx_ptr + row * cols + col, dx.to(dx_ptr.dtype.element_ty), mask=inside)

        # --- dweight
        sums += dy * normed
    total = tl.sum(sums, axis=0, keep_dims=True)  # (1, BLOCK)
    tl.store(parts_ptr + part.to(tl.int64) * cols + col, total, mask=col < cols)


@triton.jit(do_not_specialize=["parts", "units"])
def _dweight(parts_ptr, dweight_ptr, parts, units, UNIT: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    # --- dweight
    cols = units * UNIT
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]  # (1, BLOCK)
    sums = tl.zeros((PARTS, BLOCK), tl.float32)
    for start in range(0, parts, PARTS):
        part = start + tl.arange(0, PARTS)[:, None].to(tl.int64)  # (PARTS, 1)
        sums += tl.load(parts_ptr + part * cols + col, mask=(part < parts) & (col < cols), other=0)
    total = tl.sum(sums, axis=0, keep_dims=True)
    tl.store(dweight_ptr + col, total.to(dweight_ptr.dtype.element_ty), mask=col < cols)


def resident(arrays, eps: float, flags: dict) -> None:
    """Launch the forward kernel that reads rows once, or the other one where they do not fit."""
    rows, cols = arrays[0].shape
    t = resident_tiles(cols)
    if t is None:
        return two_pass(arrays, eps, flags)
    unit, shape = tensors.unit(cols), {"ROWS": t.rows, "BLOCK": t.block, "WHOLE": cols == t.block, "STAGES": t.stages}
    # 32 warps on a multiprocessor; what is wider, a residual, or accesses element by element take more.
    x, _, weight = arrays[:3]
    registers = 64 if unit >= 8 and x.element_size() == weight.element_size() == 2 and not flags["RESIDUAL"] else None
    _resident[t.grid(rows, arrays[0])](
        *arrays, rows, cols // unit, eps, UNIT=unit, **flags, **shape, num_warps=t.warps, maxnreg=registers
    )


def streamed(arrays, eps: float, flags: dict) -> None:
    """Launch the streamed forward kernel, or another one where it is not for such arrays."""
    x, _, weight, y, _, rstd = arrays
    rows, cols = x.shape
    t = streamed_tiles(cols, x.element_size())
    # Neither shared memory nor registers have room for a residual, or for a weight of 32 bits to rows of 16.
    if t is None or flags["RESIDUAL"] or weight.dtype != x.dtype or not t.streams((x,), (weight, y)):
        return resident(arrays, eps, flags)
    words = tensors.descriptor(x.view(torch.int32), t.block * x.element_size() // 4)
    lines, line = words.block_shape[1], tensors.line(x)
    shape = {"RSTD": flags["RSTD"], "LINES": lines, "WHOLE": cols == t.block, "STAGES": t.stages}
    given = words, weight, tensors.descriptor(y, t.block), rstd, rows, cols // line, eps
    _streamed[t.grid(rows, x)](*given, **shape, num_warps=t.warps)


def two_pass(arrays, eps: float, flags: dict) -> None:
    """Launch the forward kernel that reads rows twice."""
    rows, cols = arrays[0].shape
    t = two_pass_tiles(cols, arrays[0].element_size())
    unit = tensors.unit(cols)
    _two_pass[t.grid(rows, arrays[0])](
        *arrays, rows, cols // unit, eps, UNIT=unit, **flags, BLOCK=t.block, num_warps=t.warps
    )


def resident_backward(dy, x, weight, rstd, dx, dweight) -> None:
    """Launch the backward kernel that keeps dweight in registers, or the split form where a row does not fit."""
    rows, cols = x.shape
    t = resident_backward_tiles(cols, x.element_size())
    if t is None:
        return split_backward(dy, x, weight, rstd, dx, dweight)
    # No program adds more than CHAIN tiles.
    programs = max(*t.grid(rows, x), triton.cdiv(rows, t.rows * CHAIN))
    parts = torch.empty((programs, cols), dtype=torch.float32, device=x.device)
    unit, shape = tensors.unit(cols), {"ROWS": t.rows, "BLOCK": t.block, "STAGES": t.prefetch(dy, x)}
    shape |= {"PIECES": triton.cdiv(cols, t.block), "WHOLE": cols % t.block == 0}
    _resident_backward[(programs,)](
        dy, x, weight, rstd, dx, parts, rows, cols // unit, UNIT=unit, **shape, num_warps=t.warps
    )
    add_parts(parts, dweight)


def shared_backward(dy, x, weight, rstd, dx, dweight) -> None:
    """Launch the backward kernel whose programs share rows, or another one where it is not for such arrays."""
    rows, cols = x.shape
    t = shared_backward_tiles(cols, x.element_size())
    shares = 0 if t is None else triton.cdiv(cols, t.block)
    # All programs have to run at once, as they wait for each other.
    room = t is not None and not (x.is_cuda and shares > t.programs * tensors.multiprocessors(x))
    if not room or not t.streams((dy, x), (dx,)):
        return resident_backward(dy, x, weight, rstd, dx, dweight)
    lanes, line = triton.next_power_of_2(shares), tensors.line(x)
    groups = min(rows, max(1, t.programs * tensors.multiprocessors(x) // shares))
    words = torch.zeros((rows, lanes) if shares > 1 else 1, dtype=torch.int64, device=x.device)
    parts = torch.empty((groups * triton.cdiv(rows, groups * CHAIN), cols), dtype=torch.float32, device=x.device)
    given = [tensors.descriptor(array, t.block) for array in (dy, x, dx)]
    shape = {"SHARES": shares, "LANES": lanes, "LINES": t.block // line, "STAGES": t.stages, "CHAIN": CHAIN}
    _shared_backward[(groups * shares,)](
        *given[:2],
        weight,
        rstd,
        words,
        given[2],
        parts,
        rows,
        cols // line,
        **shape,
        num_warps=t.warps,
        launch_cooperative_grid=True,
    )
    add_parts(parts, dweight)


def split_backward(dy, x, weight, rstd, dx, dweight) -> None:
    """Launch the two backward kernels, one by rows and one by columns."""
    rows, cols = x.shape
    unit = tensors.unit(cols)
    mean = torch.empty_like(rstd)
    t = two_pass_tiles(cols, x.element_size())
    _means[(rows,)](dy, x, weight, rstd, mean, rows, cols // unit, UNIT=unit, BLOCK=t.block, num_warps=t.warps)

    t = split_backward_tiles(cols)
    blocks, tiles = triton.cdiv(cols, t.block), triton.cdiv(rows, t.rows)
    # As many strips as fill the device, of no more than CHAIN tiles.
    strips = max(min(tiles, triton.cdiv(t.programs * tensors.multiprocessors(x), blocks)), triton.cdiv(tiles, CHAIN))
    strip = triton.cdiv(tiles, strips) * t.rows
    strips = triton.cdiv(rows, strip)
    parts = torch.empty((strips, cols), dtype=torch.float32, device=x.device)
    arrays = dy, x, weight, rstd, mean, dx, parts
    _split_backward[(strips * blocks,)](
        *arrays, rows, cols // unit, strip, UNIT=unit, ROWS=t.rows, BLOCK=t.block, num_warps=t.warps
    )
    add_parts(parts, dweight)


def add_parts(parts: torch.Tensor, dweight: torch.Tensor) -> None:
    """Launch the kernel that adds parts (parts, cols) up to dweight (cols,)."""
    cols = dweight.shape[0]
    unit = tensors.unit(cols)
    block = max(8, min(128, triton.next_power_of_2(cols // 128)))  # 32 bytes of a part or more, about 128 programs
    _dweight[(triton.cdiv(cols, block),)](
        parts, dweight, parts.shape[0], cols // unit, UNIT=unit, PARTS=8192 // block, BLOCK=block, num_warps=8
    )


LAUNCHERS = {
    "two_pass": two_pass,
    "resident": resident,
    "streamed": streamed,
    "split_backward": split_backward,
    "resident_backward": resident_backward,
    "shared_backward": shared_backward,
}


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
            LAUNCHERS[chosen.name](dy, x, weight, rstd, *out)
    else:
        out[1].zero_()
    return out
