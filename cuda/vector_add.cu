// Vector add: out[i] = x[i] + y[i].
//
// contract  reference/vector_add.py; out may be x or y itself, so no pointer is __restrict__
// mapping   one thread owns one vector of VECTOR elements, one block BLOCK vectors, the last thread the tail
// traffic   reads 2 n and writes n elements, n additions: memory decides
// limits    any GPU from sm_80; 16-byte vectors need 16-byte alignment, otherwise VECTOR is 1
//
// Defines: SCALAR (float, __half, __nv_bfloat16), VECTOR (elements), BLOCK (threads).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "vector.cuh"

__device__ inline SCALAR add(SCALAR x, SCALAR y)
{
    // Through float32 for all dtypes: 16-bit adders round alike, but this is the step all backends share.
    return static_cast<SCALAR>(static_cast<float>(x) + static_cast<float>(y));
}

extern "C" __global__ __launch_bounds__(BLOCK)
void vector_add(const SCALAR* x, const SCALAR* y, SCALAR* out, long long n)
{
    using Vec = Vector<SCALAR, VECTOR>;

    // --- find the elements
    const long long first = (static_cast<long long>(blockIdx.x) * BLOCK + threadIdx.x) * VECTOR;

    if (first + VECTOR <= n) {
        // --- load x and y
        const Vec a = *reinterpret_cast<const Vec*>(x + first);
        const Vec b = *reinterpret_cast<const Vec*>(y + first);

        // --- add in float32, round once
        Vec sum;
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) {
            sum.values[i] = add(a.values[i], b.values[i]);
        }

        // --- store
        *reinterpret_cast<Vec*>(out + first) = sum;
    } else {
        // --- the tail
        for (long long i = first; i < n; ++i) {
            out[i] = add(x[i], y[i]);
        }
    }
}
