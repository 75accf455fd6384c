// RMSNorm, rung 3: 16-byte vectors, reduction by warp shuffles.
//
// contract  reference/rmsnorm.py, forward
// mapping   one block owns one row, a thread every BLOCK-th vector of it
// traffic   2 rows x cols elements read (the second time from L2, where it holds the rows under way), one written; with
//           a residual 3 and 2
// limits    any GPU from sm_80, any width; rows that start off a 16-byte boundary take shorter vectors
//
// Defines: SCALAR, WEIGHT (float, __half, __nv_bfloat16), RESIDUAL (0 or 1), VECTOR (elements), BLOCK (whole warps).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "reduce.cuh"
#include "vector.cuh"

extern "C" __global__ __launch_bounds__(BLOCK)
void rmsnorm(const SCALAR* __restrict__ x, const WEIGHT* __restrict__ weight, const SCALAR* __restrict__ residual,
             SCALAR* __restrict__ y, SCALAR* sum, float* __restrict__ rstd, float eps, long long rows, int cols)
{
    using Vec = Packed<SCALAR, VECTOR>;
    using Weights = Packed<WEIGHT, VECTOR>;
    __shared__ float sums[BLOCK / 32];
    const int vectors = cols / VECTOR;

    // --- load the row
    const long long start = static_cast<long long>(blockIdx.x) * cols;
    const Vec* from = reinterpret_cast<const Vec*>(x + start);          // (cols / VECTOR,)
    const Vec* added = reinterpret_cast<const Vec*>(residual + start);  // (cols / VECTOR,)
    Vec* kept = reinterpret_cast<Vec*>(sum + start);                    // (cols / VECTOR,)
    LongSum squares;
    for (int i = threadIdx.x; i < vectors; i += BLOCK) {
        Vector<float, VECTOR> v = widen(from[i]);

        // --- add the residual, round once
        if (RESIDUAL) {
            const Vector<float, VECTOR> r = widen(added[i]);
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                v.values[j] += r.values[j];
            }
            kept[i] = narrow<SCALAR>(v);
            v = widen(kept[i]);
        }

        // --- mean of the squares
        float part = 0.0f;
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
            part += v.values[j] * v.values[j];
        }
        squares.add(part);
    }
    const float scale = rsqrtf(team_reduce<BLOCK>(squares.value(), Sum(), sums) / cols + eps);
    if (rstd && threadIdx.x == 0) {
        rstd[blockIdx.x] = scale;
    }

    // --- scale and store
    if (RESIDUAL) {
        from = kept;  // a thread reads what it has written itself
    }
    for (int i = threadIdx.x; i < vectors; i += BLOCK) {
        Vector<float, VECTOR> v = widen(from[i]);
        const Vector<float, VECTOR> w = widen(reinterpret_cast<const Weights*>(weight)[i]);
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
            v.values[j] = v.values[j] * scale * w.values[j];
        }
        reinterpret_cast<Vec*>(y + start)[i] = narrow<SCALAR>(v);
    }
}
