// Softmax, rung 4: the row stays in registers, so that memory is read once and written once.
//
// contract  reference/softmax.py
// mapping   one block of TEAM threads owns one row, a thread VECTORS vectors of it, TEAM apart
// traffic   rows x cols elements read, as many written
// limits    any GPU from sm_80; rows of up to 1024 threads' 32 elements, wider ones take rung 3
//
// Defines: SCALAR (float, __half, __nv_bfloat16), VECTOR (elements), TEAM (threads, whole warps), VECTORS.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "exponential.cuh"
#include "reduce.cuh"
#include "vector.cuh"

extern "C" __global__ __launch_bounds__(TEAM)
void softmax(const SCALAR* __restrict__ x, SCALAR* __restrict__ out, long long rows, int cols)
{
    using Vec = Packed<SCALAR, VECTOR>;
    __shared__ float maxima[TEAM / 32], sums[TEAM / 32];
    const int vectors = cols / VECTOR;

    // --- load the row
    const Vec* from = reinterpret_cast<const Vec*>(x + static_cast<long long>(blockIdx.x) * cols);  // (cols / VECTOR,)
    Vec* to = reinterpret_cast<Vec*>(out + static_cast<long long>(blockIdx.x) * cols);              // (cols / VECTOR,)
    Vector<float, VECTOR> e[VECTORS];  // (VECTORS, VECTOR)
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int at = threadIdx.x + i * TEAM;
        Vec v = filled<SCALAR, VECTOR>(Max::neutral());
        if (at < vectors) {
            v = from[at];
        }
        e[i] = widen(v);
    }

    // --- maximum of the row
    float m = Max::neutral();
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
            m = fmaxf(m, e[i].values[j]);
        }
    }
    m = team_reduce<TEAM>(m, Max(), maxima);

    // --- exponentials and their sum
    float l = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        float part = 0.0f;
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
            e[i].values[j] = exponential(e[i].values[j] - m);
            part += e[i].values[j];
        }
        l += part;
    }
    l = team_reduce<TEAM>(l, Sum(), sums);

    // --- divide and store
    const float scale = 1.0f / l;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int at = threadIdx.x + i * TEAM;
        if (at < vectors) {
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                e[i].values[j] *= scale;
            }
            to[at] = narrow<SCALAR>(e[i]);
        }
    }
}
