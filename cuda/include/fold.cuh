// The last step of a sum over rows: partial sums of columns added up in a fixed order.
#pragma once

#include "reduce.cuh"

// out (cols,) from partials (count, cols): COLS columns a block, every COLS threads a part of the partial sums, then part
// by part. What waits here is a chain of loads, so it is short: few columns a block, and 8 loads at once.
// scratch: a float for each thread, in shared memory.
template <int THREADS, typename T>
__device__ inline void fold_partials(const float* partials, T* out, int count, int cols, float* scratch)
{
    constexpr int COLS = 8, PARTS = THREADS / COLS;  // 32 bytes, the least that memory moves
    const int lane = threadIdx.x % COLS, part = threadIdx.x / COLS;
    for (int first = blockIdx.x * COLS; first < cols; first += gridDim.x * COLS) {
        const int col = first + lane;
        LongSum total;
        if (col < cols) {
            for (int start = part; start < count; start += LongSum::CHAIN * PARTS) {
                const int stop = min(count, start + LongSum::CHAIN * PARTS);
                float sum = 0.0f;
#pragma unroll 8
                for (int i = start; i < stop; i += PARTS) {
                    sum += partials[static_cast<long long>(i) * cols + col];
                }
                total.add(sum);
            }
        }
        scratch[threadIdx.x] = total.value();
        __syncthreads();
        if (part == 0 && col < cols) {
            float all = 0.0f;
            for (int i = 0; i < PARTS; ++i) {
                all += scratch[i * COLS + lane];
            }
            out[col] = static_cast<T>(all);
        }
        __syncthreads();  // read before the next columns are written
    }
}
