// Softmax, rung 1: a thread a row.
//
// contract  reference/softmax.py
// mapping   one thread owns one row and goes along it three times
// traffic   3 rows x cols elements read, one written, and 32-byte sectors fetched for one element of each
// limits    any GPU from sm_80, any width; neighbouring threads are a row apart, so no load is coalesced
//
// Defines: SCALAR (float, __half, __nv_bfloat16), BLOCK (threads).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "exponential.cuh"
#include "reduce.cuh"

extern "C" __global__ __launch_bounds__(BLOCK)
void softmax(const SCALAR* __restrict__ x, SCALAR* __restrict__ out, long long rows, int cols)
{
    // --- load the row
    const long long row = static_cast<long long>(blockIdx.x) * BLOCK + threadIdx.x;
    if (row >= rows) {
        return;
    }
    const SCALAR* from = x + row * cols;  // (cols,)
    SCALAR* to = out + row * cols;        // (cols,)

    // --- maximum of the row
    float m = Max::neutral();
    for (int col = 0; col < cols; ++col) {
        m = fmaxf(m, static_cast<float>(from[col]));
    }

    // --- exponentials and their sum
    LongSum l;
    for (int col = 0; col < cols; ++col) {
        l.add(exponential(static_cast<float>(from[col]) - m));
    }

    // --- divide and store
    const float scale = 1.0f / l.value();
    for (int col = 0; col < cols; ++col) {
        to[col] = static_cast<SCALAR>(exponential(static_cast<float>(from[col]) - m) * scale);
    }
}
