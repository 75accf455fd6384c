// Softmax, rung 3: 16-byte vectors, reductions by warp shuffles, and the online form, which goes along a row twice.
//
// contract  reference/softmax.py
// mapping   one block owns one row, a thread every BLOCK-th vector of it
// traffic   2 rows x cols elements read (the second time from L2, where it holds the rows under way), one written
// limits    any GPU from sm_80, any width; rows that start off a 16-byte boundary take shorter vectors
//
// Defines: SCALAR (float, __half, __nv_bfloat16), VECTOR (elements), BLOCK (threads, whole warps).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "exponential.cuh"
#include "reduce.cuh"
#include "vector.cuh"

extern "C" __global__ __launch_bounds__(BLOCK)
void softmax(const SCALAR* __restrict__ x, SCALAR* __restrict__ out, long long rows, int cols)
{
    using Vec = Packed<SCALAR, VECTOR>;
    __shared__ float maxima[BLOCK / 32], sums[BLOCK / 32];

    // --- load the row
    const Vec* from = reinterpret_cast<const Vec*>(x + static_cast<long long>(blockIdx.x) * cols);  // (cols / VECTOR,)
    Vec* to = reinterpret_cast<Vec*>(out + static_cast<long long>(blockIdx.x) * cols);              // (cols / VECTOR,)
    const int vectors = cols / VECTOR;

    // --- maximum of the row
    float own = Max::neutral();  // of what this thread has seen
    LongSum sum;                 // of its exponentials, relative to own
    for (int i = threadIdx.x; i < vectors; i += BLOCK) {
        const Vector<float, VECTOR> v = widen(from[i]);
        float higher = own;
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
            higher = fmaxf(higher, v.values[j]);
        }
        sum.scale(exponential(own - finite(higher)));
        own = higher;
        float part = 0.0f;
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
            part += exponential(v.values[j] - finite(own));
        }
        sum.add(part);
    }
    const float m = team_reduce<BLOCK>(own, Max(), maxima);

    // --- exponentials and their sum
    const float l = team_reduce<BLOCK>(sum.value() * exponential(own - finite(m)), Sum(), sums);

    // --- divide and store
    const float scale = 1.0f / l;
    for (int i = threadIdx.x; i < vectors; i += BLOCK) {
        Vector<float, VECTOR> v = widen(from[i]);
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
            v.values[j] = exponential(v.values[j] - m) * scale;
        }
        to[i] = narrow<SCALAR>(v);
    }
}
