// The last step of a sum over rows: partial sums of columns added up in a fixed order.
#pragma once

#include "reduce.cuh"

// out (cols,) from partials (count, cols): 32 columns a block, every warp a part of the partial sums, then warp by warp.
// scratch: a float for each thread, in shared memory.
template <int THREADS, typename T>
__device__ inline void fold_partials(const float* partials, T* out, int count, int cols, float* scratch)
{
    // --- dweight
    constexpr int WARPS = THREADS / 32;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int first = blockIdx.x * 32; first < cols; first += gridDim.x * 32) {
        const int col = first + lane;
        LongSum sum;
        if (col < cols) {
#pragma unroll 4
            for (int i = warp; i < count; i += WARPS) {
                sum.add(partials[static_cast<long long>(i) * cols + col]);
            }
        }
        scratch[threadIdx.x] = sum.value();
        __syncthreads();
        if (warp == 0 && col < cols) {
            float total = 0.0f;
            for (int i = 0; i < WARPS; ++i) {
                total += scratch[i * 32 + lane];
            }
            out[col] = static_cast<T>(total);
        }
        __syncthreads();  // read before the next columns are written
    }
}
