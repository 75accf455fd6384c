// Matmul, rung 2: tiles of A and B go through shared memory, so that each element is read once a tile of out.
//
// contract  reference/matmul.py
// mapping   a block owns a (TILE, TILE) tile of out, a thread one element; the block goes along K by TILE. Tiles are loaded
//           along whichever axis is contiguous
// traffic   2 M N K / TILE elements read, M N written
// limits    any GPU; any strides
//
// Defines: SCALAR, OUT (float, __half, __nv_bfloat16), BIAS (0 or 1), ACTIVATION, TILE, A_ALONG_K, B_ALONG_K (0 or 1: which
// axis is contiguous).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "epilogue.cuh"

extern "C" __global__ __launch_bounds__(TILE * TILE)
void matmul(const SCALAR* __restrict__ a, const SCALAR* __restrict__ b, const SCALAR* __restrict__ bias,
            OUT* __restrict__ out, int m, int n, int k, long long a_row, long long a_col, long long b_row, long long b_col)
{
    __shared__ float left[TILE][TILE + 1], right[TILE][TILE + 1];  // (row, k), (k, col); a column more spreads the banks
    const int x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    const int tiles = (n + TILE - 1) / TILE;  // in a row of them
    const int first_row = blockIdx.x / tiles * TILE, first_col = blockIdx.x % tiles * TILE;
    const int left_row = A_ALONG_K ? y : x, left_k = A_ALONG_K ? x : y;
    const int right_k = B_ALONG_K ? x : y, right_col = B_ALONG_K ? y : x;
    float z = 0.0f;
    for (int start = 0; start < k; start += TILE) {
        // --- load A and B
        const bool a_inside = first_row + left_row < m && start + left_k < k;
        const bool b_inside = first_col + right_col < n && start + right_k < k;
        left[left_row][left_k] =
            a_inside ? static_cast<float>(a[(first_row + left_row) * a_row + (start + left_k) * a_col]) : 0.0f;
        right[right_k][right_col] =
            b_inside ? static_cast<float>(b[(start + right_k) * b_row + (first_col + right_col) * b_col]) : 0.0f;
        __syncthreads();

        // --- multiply and accumulate
#pragma unroll
        for (int i = 0; i < TILE; ++i) {
            z += left[y][i] * right[i][x];
        }
        __syncthreads();
    }
    const int row = first_row + y, col = first_col + x;
    if (row < m && col < n) {
        // --- bias
        if (BIAS) {
            z += static_cast<float>(bias[col]);
        }

        // --- activation, --- store
        out[static_cast<long long>(row) * n + col] = static_cast<OUT>(activate(z));
    }
}
