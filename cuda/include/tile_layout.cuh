// How Hopper's TMA and wgmma lay out tiles, as plain arithmetic: PTX ISA, "tensor swizzling modes" and "asynchronous
// warpgroup level matrix" (shared memory layout, descriptor, register fragments).
#pragma once

// Where byte `byte` of row `row` lies in a box of 128-byte rows: the 128-byte swizzle, in which 16-byte pieces change places
// within their row, so that 8 rows of one column lie in 8 different bank groups. The box starts at a multiple of 1024.
__device__ inline int swizzled(int row, int byte) { return row * 128 + (byte ^ (row % 8 * 16)); }

// What wgmma's 64-bit descriptor says of a tile: bits 0-13 where it starts, 16-29 the leading and 32-45 the stride offset,
// all in units of 16 bytes, 62-63 the swizzle, 1 for that of 128 bytes. A tile whose rows run along K is a column of (8, 128
// byte) atoms, a stride of 1024 bytes apart. One whose rows run along M or N is, for every 128 bytes of M or N, such a
// column along K, and the next column lies the leading offset away.
constexpr int COLUMN_BYTES = 64 * 128;

template <bool K_MAJOR>
__device__ inline unsigned long long wgmma_descriptor(unsigned shared_address, int column_bytes = COLUMN_BYTES)
{
    const unsigned long long start = (shared_address & 0x3ffff) >> 4;
    const unsigned long long leading = K_MAJOR ? 1 : column_bytes >> 4;  // along K it has no meaning
    return start | leading << 16 | 1024ull >> 4 << 32 | 1ull << 62;
}

// From one instruction's 32 bytes of K to the next's, for a descriptor of T.
template <typename T, bool K_MAJOR>
constexpr int WGMMA_STEP = (K_MAJOR ? 32 : 32 / sizeof(T) * 128) >> 4;

// Where thread `thread` of the warpgroup has sum i; those of i and i + 1, i even, are neighbours in a row.
__device__ inline int wgmma_row(int thread, int i) { return thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8; }
__device__ inline int wgmma_col(int thread, int i) { return i / 4 * 8 + thread % 4 * 2 + i % 2; }
