// RMSNorm, rung 6: rows in registers as they lie in memory, as many threads as each needs, and a grid of all rows.
//
// contract  reference/rmsnorm.py
// mapping   TEAM threads of each of CLUSTER blocks own a row, a thread VECTORS vectors of it, the vectors of a warp side by
//           side; a block has TEAMS such teams. Two rows of 64 KiB are on a multiprocessor: while one is computed, the
//           other one is on its way. The weight is loaded when it is needed, from L1 or L2
// traffic   rows x cols elements read, as many written, with a residual twice that
// limits    GPUs from sm_90; rows of up to 8 blocks' 1024 threads' 128 bytes (with a residual 64), wider ones take rung 3
//
// Defines: SCALAR, WEIGHT (float, __half, __nv_bfloat16), RESIDUAL (0 or 1), VECTOR (elements), TEAM, TEAMS, VECTORS,
// CLUSTER.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cluster.cuh"
#include "forget.cuh"
#include "reduce.cuh"
#include "vector.cuh"

constexpr int BLOCK = TEAM * TEAMS;
constexpr int LANES = TEAM < 32 ? TEAM : 32;
constexpr int RESIDENT = RESIDUAL ? 640 : 1024;  // threads of a multiprocessor, which share its registers

extern "C" __global__ CLUSTER_DIMS __launch_bounds__(BLOCK, RESIDENT < BLOCK ? 1 : RESIDENT / BLOCK)
void rmsnorm(const SCALAR* __restrict__ x, const WEIGHT* __restrict__ weight, const SCALAR* __restrict__ residual,
             SCALAR* __restrict__ y, SCALAR* __restrict__ sum, float* __restrict__ rstd, float eps, long long rows,
             int cols)
{
    using Vec = Packed<SCALAR, VECTOR>;
    using Weights = Packed<WEIGHT, VECTOR>;
    __shared__ float sums[BLOCK / 32], parts[CLUSTER];

    const int vectors = cols / VECTOR;
    const int lane = threadIdx.x % LANES;
    // This thread's vectors are here and every LANES from here on.
    const int run = blockIdx.x % CLUSTER * (VECTORS * TEAM) + (threadIdx.x % TEAM - lane) * VECTORS + lane;
    const long long row = static_cast<long long>(blockIdx.x / CLUSTER) * TEAMS + threadIdx.x / TEAM;
    const bool there = TEAMS == 1 || row < rows;
    const long long start = row * cols;

    // --- load the row
    Vec v[VECTORS], r[VECTORS];  // (VECTORS, VECTOR)
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int at = run + i * LANES;
        const bool inside = there && at < vectors;
        v[i] = inside ? reinterpret_cast<const Vec*>(x + start)[at] : Vec();
        r[i] = inside && RESIDUAL ? reinterpret_cast<const Vec*>(residual + start)[at] : Vec();
    }
    cluster_sync();

    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        Vector<float, VECTOR> value = widen(v[i]);
        // --- add the residual, round once
        if (RESIDUAL) {
            const Vector<float, VECTOR> added = widen(r[i]);
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                value.values[j] += added.values[j];
            }
            v[i] = narrow<SCALAR>(value);
            value = widen(v[i]);
            if (there && run + i * LANES < vectors) {
                reinterpret_cast<Vec*>(sum + start)[run + i * LANES] = v[i];
            }
        }

        // --- mean of the squares
        float part = 0.0f;
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
            part += value.values[j] * value.values[j];
        }
        squares += part;
    }
    squares = cluster_reduce(team_reduce<TEAM>(squares, Sum(), sums), Sum(), parts);
    const float scale = rsqrtf(squares / cols + eps);

    // --- scale and store
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int at = run + i * LANES;
        if (there && at < vectors) {
            forget(v[i]);
            Vector<float, VECTOR> value = widen(v[i]);
            const Vector<float, VECTOR> factor = widen(reinterpret_cast<const Weights*>(weight)[at]);
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                value.values[j] = value.values[j] * scale * factor.values[j];
            }
            reinterpret_cast<Vec*>(y + start)[at] = narrow<SCALAR>(value);
        }
    }
    // Last, for the registers' sake.
    if (rstd && there && run == 0) {
        rstd[row] = scale;
    }
}
