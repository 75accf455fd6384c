// Softmax, rung 2: a block a row, so that neighbouring threads read neighbouring elements; reductions in shared memory.
//
// contract  reference/softmax.py
// mapping   one block owns one row, a thread every BLOCK-th element of it
// traffic   3 rows x cols elements read (the last two times from L2, where it holds the rows under way), one written
// limits    any GPU from sm_80, any width; a barrier for each of the log2(BLOCK) steps of a reduction
//
// Defines: SCALAR (float, __half, __nv_bfloat16), BLOCK (threads, a power of 2).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "exponential.cuh"
#include "reduce.cuh"

// Halves are folded onto halves until one value is left, for all threads.
template <typename Op>
__device__ float tree_reduce(float value, Op op)
{
    __shared__ float values[BLOCK];
    values[threadIdx.x] = value;
    __syncthreads();
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            values[threadIdx.x] = op(values[threadIdx.x], values[threadIdx.x + half]);
        }
        __syncthreads();
    }
    const float result = values[0];
    __syncthreads();  // read by all before the next reduction writes
    return result;
}

extern "C" __global__ __launch_bounds__(BLOCK)
void softmax(const SCALAR* __restrict__ x, SCALAR* __restrict__ out, long long rows, int cols)
{
    // --- load the row
    const SCALAR* from = x + static_cast<long long>(blockIdx.x) * cols;  // (cols,)
    SCALAR* to = out + static_cast<long long>(blockIdx.x) * cols;        // (cols,)

    // --- maximum of the row
    float m = Max::neutral();
    for (int col = threadIdx.x; col < cols; col += BLOCK) {
        m = fmaxf(m, static_cast<float>(from[col]));
    }
    m = tree_reduce(m, Max());

    // --- exponentials and their sum
    LongSum sum;
    for (int col = threadIdx.x; col < cols; col += BLOCK) {
        sum.add(exponential(static_cast<float>(from[col]) - m));
    }
    const float l = tree_reduce(sum.value(), Sum());

    // --- divide and store
    const float scale = 1.0f / l;
    for (int col = threadIdx.x; col < cols; col += BLOCK) {
        to[col] = static_cast<SCALAR>(exponential(static_cast<float>(from[col]) - m) * scale);
    }
}
