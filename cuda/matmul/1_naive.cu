// Matmul, rung 1: a thread an element of out.
//
// contract  reference/matmul.py
// mapping   a thread owns one element and goes along K; neighbours own neighbours of a row, so that they read B side by side
//           and the same element of A
// traffic   2 M N K elements asked for, of which the caches keep what they can
// limits    any GPU; any strides
//
// Defines: SCALAR, OUT (float, __half, __nv_bfloat16), BIAS (0 or 1), ACTIVATION, BLOCK.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "epilogue.cuh"

extern "C" __global__ __launch_bounds__(BLOCK)
void matmul(const SCALAR* __restrict__ a, const SCALAR* __restrict__ b, const SCALAR* __restrict__ bias,
            OUT* __restrict__ out, int m, int n, int k, long long a_row, long long a_col, long long b_row, long long b_col)
{
    const long long index = static_cast<long long>(blockIdx.x) * BLOCK + threadIdx.x;
    if (index >= static_cast<long long>(m) * n) {
        return;
    }
    const int row = index / n, col = index % n;

    // --- load A and B
    const SCALAR* left = a + row * a_row;
    const SCALAR* right = b + col * b_col;

    // --- multiply and accumulate
    float z = 0.0f;
    for (int i = 0; i < k; ++i) {
        z += static_cast<float>(left[i * a_col]) * static_cast<float>(right[i * b_row]);
    }

    // --- bias
    if (BIAS) {
        z += static_cast<float>(bias[col]);
    }

    // --- activation, --- store
    out[index] = static_cast<OUT>(activate(z));
}
