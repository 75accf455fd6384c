// What matmul's portable rungs share: which tile is a block's, and how a run of sums leaves.
//
// Defines: OUT (float, __half, __nv_bfloat16), STORE (elements of out that store as one; rows of out are made of whole
// ones), GROUP (rows of tiles that are taken together), BIAS (0 or 1), ACTIVATION (epilogue.cuh).
#pragma once

#include "epilogue.cuh"
#include "tile_order.cuh"
#include "vector.cuh"

// The first element of the block's tile, (HEIGHT, WIDTH).
template <int HEIGHT, int WIDTH>
__device__ inline Place block_tile(int rows, int cols)
{
    const Place tile = tile_place<GROUP>(blockIdx.x, (rows + HEIGHT - 1) / HEIGHT, (cols + WIDTH - 1) / WIDTH);
    return {tile.row * HEIGHT, tile.col * WIDTH};
}

// Bias and activation of N sums of a row, and those inside out (rows, cols) stored.
template <int N, typename Scalar>
__device__ inline void store_run(const float (&sums)[N], const Scalar* bias, OUT* out, int row, int col, int rows, int cols)
{
    constexpr int WIDTH = STORE < N ? STORE : N;
#pragma unroll
    for (int j = 0; j < N; j += WIDTH) {
        if (row < rows && col + j < cols) {
            // --- bias, --- activation
            Vector<float, WIDTH> wide;
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) {
                wide.values[i] = activate(BIAS ? sums[j + i] + static_cast<float>(bias[col + j + i]) : sums[j + i]);
            }

            // --- store
            *reinterpret_cast<Packed<OUT, WIDTH>*>(out + static_cast<long long>(row) * cols + col + j) = narrow<OUT>(wide);
        }
    }
}
