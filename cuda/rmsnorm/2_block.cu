// RMSNorm, rung 2: a block a row, so that neighbouring threads read neighbouring elements; reduction in shared memory.
//
// contract  reference/rmsnorm.py, forward
// mapping   one block owns one row, a thread every BLOCK-th element of it
// traffic   2 rows x cols elements read (the second time from L2, where it holds the rows under way), one written; with
//           a residual 4 and 2
// limits    any GPU from sm_80, any width; a barrier for each of the log2(BLOCK) steps of the reduction
//
// Defines: SCALAR, WEIGHT (float, __half, __nv_bfloat16), RESIDUAL (0 or 1), BLOCK (threads, a power of 2).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "reduce.cuh"

extern "C" __global__ __launch_bounds__(BLOCK)
void rmsnorm(const SCALAR* __restrict__ x, const WEIGHT* __restrict__ weight, const SCALAR* __restrict__ residual,
             SCALAR* __restrict__ y, SCALAR* sum, float* __restrict__ rstd, float eps, long long rows, int cols)
{
    __shared__ float sums[BLOCK];

    // --- load the row
    const long long start = static_cast<long long>(blockIdx.x) * cols;
    const SCALAR* from = x + start;  // (cols,)

    // --- add the residual, round once
    if (RESIDUAL) {
        for (int col = threadIdx.x; col < cols; col += BLOCK) {
            const float both = static_cast<float>(from[col]) + static_cast<float>(residual[start + col]);
            sum[start + col] = static_cast<SCALAR>(both);
        }
        from = sum + start;  // a thread reads what it has written itself
    }

    // --- mean of the squares
    LongSum squares;
    for (int col = threadIdx.x; col < cols; col += BLOCK) {
        const float value = static_cast<float>(from[col]);
        squares.add(value * value);
    }
    sums[threadIdx.x] = squares.value();
    __syncthreads();
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            sums[threadIdx.x] += sums[threadIdx.x + half];
        }
        __syncthreads();
    }
    const float scale = rsqrtf(sums[0] / cols + eps);
    if (rstd && threadIdx.x == 0) {
        rstd[blockIdx.x] = scale;
    }

    // --- scale and store
    for (int col = threadIdx.x; col < cols; col += BLOCK) {
        const float normed = static_cast<float>(from[col]) * scale;
        y[start + col] = static_cast<SCALAR>(normed * static_cast<float>(weight[col]));
    }
}
