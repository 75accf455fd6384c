// RMSNorm, rung 4: the row stays in registers, so that memory is read once and written once.
//
// contract  reference/rmsnorm.py, forward
// mapping   one block of TEAM threads owns one row, a thread VECTORS vectors of it, TEAM apart
// traffic   rows x cols elements read, as many written; twice that with a residual. The weight stays in caches
// limits    any GPU from sm_80; rows of up to 1024 threads' 32 elements, wider ones take rung 3
//
// Defines: SCALAR, WEIGHT (float, __half, __nv_bfloat16), RESIDUAL (0 or 1), VECTOR (elements), TEAM (threads, whole
// warps), VECTORS.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "reduce.cuh"
#include "vector.cuh"

extern "C" __global__ __launch_bounds__(TEAM)
void rmsnorm(const SCALAR* __restrict__ x, const WEIGHT* __restrict__ weight, const SCALAR* __restrict__ residual,
             SCALAR* __restrict__ y, SCALAR* __restrict__ sum, float* __restrict__ rstd, float eps, long long rows,
             int cols)
{
    using Vec = Packed<SCALAR, VECTOR>;
    using Weights = Packed<WEIGHT, VECTOR>;
    __shared__ float sums[TEAM / 32];
    const int vectors = cols / VECTOR;

    // --- load the row
    const long long start = static_cast<long long>(blockIdx.x) * cols;
    Vec v[VECTORS], r[VECTORS];  // (VECTORS, VECTOR)
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int at = threadIdx.x + i * TEAM;
        v[i] = at < vectors ? reinterpret_cast<const Vec*>(x + start)[at] : Vec();
        r[i] = RESIDUAL && at < vectors ? reinterpret_cast<const Vec*>(residual + start)[at] : Vec();
    }

    // --- add the residual, round once
    if (RESIDUAL) {
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            Vector<float, VECTOR> both = widen(v[i]);
            const Vector<float, VECTOR> added = widen(r[i]);
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                both.values[j] += added.values[j];
            }
            v[i] = narrow<SCALAR>(both);
            if (threadIdx.x + i * TEAM < vectors) {
                reinterpret_cast<Vec*>(sum + start)[threadIdx.x + i * TEAM] = v[i];
            }
        }
    }

    // --- mean of the squares
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const Vector<float, VECTOR> value = widen(v[i]);
        float part = 0.0f;
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
            part += value.values[j] * value.values[j];
        }
        squares += part;
    }
    const float scale = rsqrtf(team_reduce<TEAM>(squares, Sum(), sums) / cols + eps);
    if (rstd && threadIdx.x == 0) {
        rstd[blockIdx.x] = scale;
    }

    // --- scale and store
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int at = threadIdx.x + i * TEAM;
        if (at < vectors) {
            Vector<float, VECTOR> value = widen(v[i]);
            const Vector<float, VECTOR> w = widen(reinterpret_cast<const Weights*>(weight)[at]);
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                value.values[j] = value.values[j] * scale * w.values[j];
            }
            reinterpret_cast<Vec*>(y + start)[at] = narrow<SCALAR>(value);
        }
    }
}
