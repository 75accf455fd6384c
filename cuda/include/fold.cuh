// The last step of a sum over rows: partial sums of columns added up in a fixed order.
#pragma once

#include "reduce.cuh"

// out (cols,) from partials (count, cols): 8, 16 or 32 columns a block, as few as let every block do one set of them. As
// many threads take a part of the partial sums each; then part by part. What takes time is a chain of loads: 8 at once.
// scratch: a float for each thread, in shared memory.
template <int THREADS, typename T>
__device__ inline void fold_partials(const float* partials, T* out, int count, int cols, float* scratch)
{
    // --- dweight
    const int width = cols <= 8 * gridDim.x ? 8 : cols <= 16 * gridDim.x ? 16 : 32;
    const int parts = THREADS / width, lane = threadIdx.x % width, part = threadIdx.x / width;
    for (int first = blockIdx.x * width; first < cols; first += gridDim.x * width) {
        const int col = first + lane;
        LongSum total;
        if (col < cols) {
            for (int start = part; start < count; start += LongSum::CHAIN * parts) {
                const int stop = min(count, start + LongSum::CHAIN * parts);
                float sum = 0.0f;
#pragma unroll 8
                for (int i = start; i < stop; i += parts) {
                    sum += partials[static_cast<long long>(i) * cols + col];
                }
                total.add(sum);
            }
        }
        scratch[threadIdx.x] = total.value();
        __syncthreads();
        if (part == 0 && col < cols) {
            float all = 0.0f;
            for (int i = 0; i < parts; ++i) {
                all += scratch[i * width + lane];
            }
            out[col] = static_cast<T>(all);
        }
        __syncthreads();  // read before the next columns are written
    }
}
