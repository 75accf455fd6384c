"""RMSNorm's gradients: dx = rstd (g - x rstd^2 mean(g x)), g = dy w; dweight = sum over rows of dy x rstd.

contract  reference/rmsnorm.py
mapping   resident: a program takes every n-th tile of rows and keeps what it adds to dweight in registers; shared: so, but
          programs share a row's columns and exchange their dots while the next row is loaded; split: a program owns columns
          of up to CHAIN rows. A last kernel adds the programs' parts of dweight, in order
traffic   reads dy and x and writes dx; weight and the parts of dweight stay in L2: memory decides. A second reading of a row
          in pieces comes from L1 as far as the row is still there; in split from memory: five arrays' traffic instead of
          three
limits    any GPU from sm_80; shared, by TMA, from sm_90, for rows of more than 8192 that are whole lines of 128 bytes; other
          rows of more than 32768 go split; 16-byte accesses where rows begin at such addresses
"""

import functools

import torch
import triton
import triton.language as tl

from reference.contract import CHAIN, Variant
from reference.rmsnorm import DTYPES
from triton_impl import tensors
from triton_impl.tensors import Tiles

VARIANTS = (
    Variant("split_backward", "means of the rows first, then dx by columns", DTYPES, ("sm_80",), {"spill_bytes": 0}),
    Variant("resident_backward", "all in one reading, dweight in registers", DTYPES, ("sm_80",), {"spill_bytes": 0}),
    Variant(
        "shared_backward",
        "wide rows shared by programs that add up their dots",
        DTYPES,
        ("sm_90",),
        {"spill_bytes": 0},
    ),
)


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
    return Tiles(4096 // itemsize, rows=1, warps=4, stages=4, programs=4 if itemsize == 2 else 6)


@functools.cache
def split_backward_tiles(cols: int) -> Tiles:
    """By the width: 32 elements a thread in 4 rows or more, in 4 warps."""
    block = min(1024, triton.next_power_of_2(cols))
    return Tiles(block, rows=4096 // block, warps=4, programs=16)


@functools.cache
def means_tiles(cols: int, itemsize: int) -> Tiles:
    """By the width: 32 bytes a thread and step; CHAIN steps at most."""
    block = min(16384 // itemsize, triton.next_power_of_2(cols))
    warps = max(1, block * itemsize // 1024)
    return Tiles(max(block, triton.next_power_of_2(triton.cdiv(cols, CHAIN))), rows=1, warps=warps)


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
        maxnreg=65536 // (t.programs * t.warps * 32),
        launch_cooperative_grid=True,
    )
    add_parts(parts, dweight)


def split_backward(dy, x, weight, rstd, dx, dweight) -> None:
    """Launch the two backward kernels, one by rows and one by columns."""
    rows, cols = x.shape
    unit = tensors.unit(cols)
    mean = torch.empty_like(rstd)
    t = means_tiles(cols, x.element_size())
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
    "split_backward": split_backward,
    "resident_backward": resident_backward,
    "shared_backward": shared_backward,
}
