// RMSNorm, rung 1: a thread a row.
//
// contract  reference/rmsnorm.py, forward
// mapping   one thread owns one row and goes along it twice, three times with a residual
// traffic   2 rows x cols elements read, one written (with a residual 4 and 2), 32-byte sectors fetched for one each
// limits    any GPU from sm_80, any width; neighbouring threads are a row apart, so no load is coalesced
//
// Defines: SCALAR, WEIGHT (float, __half, __nv_bfloat16), RESIDUAL (0 or 1), BLOCK (threads).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "reduce.cuh"

extern "C" __global__ __launch_bounds__(BLOCK)
void rmsnorm(const SCALAR* __restrict__ x, const WEIGHT* __restrict__ weight, const SCALAR* __restrict__ residual,
             SCALAR* __restrict__ y, SCALAR* sum, float* __restrict__ rstd, float eps, long long rows, int cols)
{
    // --- load the row
    const long long row = static_cast<long long>(blockIdx.x) * BLOCK + threadIdx.x;
    if (row >= rows) {
        return;
    }
    const SCALAR* from = x + row * cols;  // (cols,)

    // --- add the residual, round once
    if (RESIDUAL) {
        for (int col = 0; col < cols; ++col) {
            const float both = static_cast<float>(from[col]) + static_cast<float>(residual[row * cols + col]);
            sum[row * cols + col] = static_cast<SCALAR>(both);
        }
        from = sum + row * cols;
    }

    // --- mean of the squares
    LongSum squares;
    for (int col = 0; col < cols; ++col) {
        const float value = static_cast<float>(from[col]);
        squares.add(value * value);
    }
    const float scale = rsqrtf(squares.value() / cols + eps);
    if (rstd) {
        rstd[row] = scale;
    }

    // --- scale and store
    for (int col = 0; col < cols; ++col) {
        const float normed = static_cast<float>(from[col]) * scale;
        y[row * cols + col] = static_cast<SCALAR>(normed * static_cast<float>(weight[col]));
    }
}
