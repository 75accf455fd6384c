// What matmul's rungs that multiply in registers share: a thread's (8, COLS) sums of a (TILE_M, TILE_N) tile of out.
//
// A warp owns (32, 8 COLS): 4 by 8 threads, each with two runs of 4 rows, 16 apart, and COLS / 4 of 4 columns, 32 apart. So its
// 16-byte reads of a row of shared memory are neighbours, and lanes are dealt so that every half of a warp reads both operands
// as whole runs of banks.
//
// Defines: WARPS_M, WARPS_N (warps of a block), COLS (a multiple of 4), and those of portable_tile.cuh.
#pragma once

#include "portable_tile.cuh"

constexpr int TILE_M = 32 * WARPS_M, TILE_N = 8 * COLS * WARPS_N, TILE_K = 16;
constexpr int THREADS = WARPS_M * WARPS_N * 32;
constexpr int RESIDENT = COLS > 8 ? 256 : 512;  // threads of a multiprocessor, which share its registers

// A stage of ROWS rows of A, or columns of B: (k, row). 4 more floats spread a row's elements over the banks.
template <int ROWS>
using Slices = float[TILE_K][ROWS + 4];

struct RegisterTile {
    int row, col;  // of the thread's first sum in the tile
    float sums[8][COLS] = {};

    __device__ RegisterTile()
    {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        row = warp / WARPS_N * 32 + (lane / 16 * 2 + lane % 2) * 4;
        col = warp % WARPS_N * (8 * COLS) + lane / 2 % 8 * 4;
    }

    __device__ void multiply(const Slices<TILE_M>& left, const Slices<TILE_N>& right)
    {
        // --- multiply and accumulate
#pragma unroll
        for (int k = 0; k < TILE_K; ++k) {
            Vector<float, 4> a[2], b[COLS / 4];
#pragma unroll
            for (int run = 0; run < 2; ++run) {
                a[run] = *reinterpret_cast<const Vector<float, 4>*>(&left[k][row + run * 16]);
            }
#pragma unroll
            for (int run = 0; run < COLS / 4; ++run) {
                b[run] = *reinterpret_cast<const Vector<float, 4>*>(&right[k][col + run * 32]);
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) {
#pragma unroll
                for (int j = 0; j < COLS; ++j) {
                    sums[i][j] += a[i / 4].values[i % 4] * b[j / 4].values[j % 4];
                }
            }
        }
    }

    // To out (rows, cols), the tile's first element at `tile`.
    template <typename Scalar>
    __device__ void store(const Scalar* bias, OUT* out, Place tile, int rows, int cols) const
    {
        // --- bias, --- activation, --- store
#pragma unroll
        for (int i = 0; i < 8; ++i) {
#pragma unroll
            for (int run = 0; run < COLS / 4; ++run) {
                float four[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    four[j] = sums[i][run * 4 + j];
                }
                store_run(four, bias, out, tile.row + row + i / 4 * 16 + i % 4, tile.col + col + run * 32, rows, cols);
            }
        }
    }
};
