// RMSNorm's backward pass, rung 1: dx by rows, dweight by columns, each in a kernel of its own.
//
// contract  reference/rmsnorm.py, backward
// mapping   rmsnorm_backward: one block owns one row. dweight_partials: one thread owns a column of ROWS rows; its sums
//           are added up by fold.cu
// traffic   dy and x read three times, dx written once: 7 rows x cols elements, of which caches hold what they can
// limits    any GPU from sm_80, any width
//
// Defines: SCALAR, WEIGHT (float, __half, __nv_bfloat16), BLOCK (threads, whole warps), ROWS (at most 256).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "reduce.cuh"

extern "C" __global__ __launch_bounds__(BLOCK)
void rmsnorm_backward(const SCALAR* __restrict__ dy, const SCALAR* __restrict__ x, const WEIGHT* __restrict__ weight,
                      const float* __restrict__ rstd, SCALAR* __restrict__ dx, long long rows, int cols)
{
    __shared__ float sums[BLOCK / 32];

    // --- load the row
    const long long start = static_cast<long long>(blockIdx.x) * cols;
    const float scale = rstd[blockIdx.x];

    // --- mean of g x
    LongSum dot;  // of g and x rstd, which is of moderate size
    for (int col = threadIdx.x; col < cols; col += BLOCK) {
        const float g = static_cast<float>(dy[start + col]) * static_cast<float>(weight[col]);
        dot.add(g * (static_cast<float>(x[start + col]) * scale));
    }
    const float mean = team_reduce<BLOCK>(dot.value(), Sum(), sums) / cols;

    // --- dx
    for (int col = threadIdx.x; col < cols; col += BLOCK) {
        const float g = static_cast<float>(dy[start + col]) * static_cast<float>(weight[col]);
        const float normed = static_cast<float>(x[start + col]) * scale;
        dx[start + col] = static_cast<SCALAR>(scale * (g - normed * mean));
    }
}

extern "C" __global__ __launch_bounds__(BLOCK)
void dweight_partials(const SCALAR* __restrict__ dy, const SCALAR* __restrict__ x, const float* __restrict__ rstd,
                      float* __restrict__ partials, long long rows, int cols)
{
    // --- dweight
    const int col = blockIdx.y * BLOCK + threadIdx.x;
    if (col >= cols) {
        return;
    }
    const long long first = static_cast<long long>(blockIdx.x) * ROWS;
    float sum = 0.0f;
    for (long long row = first; row < rows && row < first + ROWS; ++row) {
        sum += static_cast<float>(dy[row * cols + col]) * (static_cast<float>(x[row * cols + col]) * rstd[row]);
    }
    partials[static_cast<long long>(blockIdx.x) * cols + col] = sum;
}
