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
    using Vec = Vector<SCALAR, VECTOR>;
    using Weights = Vector<WEIGHT, VECTOR>;
    __shared__ float sums[TEAM / 32];
    const int vectors = cols / VECTOR;

    // --- load the row
    const long long start = static_cast<long long>(blockIdx.x) * cols;
    Vec v[VECTORS];  // (VECTORS, VECTOR)
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int at = threadIdx.x + i * TEAM;
        v[i] = at < vectors ? reinterpret_cast<const Vec*>(x + start)[at] : Vec();
    }

    // --- add the residual, round once
    if (RESIDUAL) {
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int at = threadIdx.x + i * TEAM;
            if (at < vectors) {
                const Vec r = reinterpret_cast<const Vec*>(residual + start)[at];
#pragma unroll
                for (int j = 0; j < VECTOR; ++j) {
                    const float both = static_cast<float>(v[i].values[j]) + static_cast<float>(r.values[j]);
                    v[i].values[j] = static_cast<SCALAR>(both);
                }
                reinterpret_cast<Vec*>(sum + start)[at] = v[i];
            }
        }
    }

    // --- mean of the squares
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        float part = 0.0f;
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
            part += static_cast<float>(v[i].values[j]) * static_cast<float>(v[i].values[j]);
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
            const Weights w = reinterpret_cast<const Weights*>(weight)[at];
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                const float normed = static_cast<float>(v[i].values[j]) * scale;
                v[i].values[j] = static_cast<SCALAR>(normed * static_cast<float>(w.values[j]));
            }
            reinterpret_cast<Vec*>(y + start)[at] = v[i];
        }
    }
}
