// RMSNorm, rung 5: wide rows come and go through shared memory while another one is computed.
//
// contract  reference/rmsnorm.py
// mapping   TEAM threads of each of CLUSTER blocks own a row, a thread VECTORS vectors of it and of the weight in registers,
//           the vectors of a warp side by side. A grid of what is resident takes rows in turn, STAGES of them in shared
//           memory, on their way there or on their way out. Each warp copies its own part, so that copies need no barrier
// traffic   rows x cols elements read, as many written, with a residual twice that
// limits    GPUs from sm_90; rows of more than 32 KiB, up to 8 blocks' 1024 threads' 64 bytes. Narrower ones take rung 4, wider
//           ones rung 3
//
// Defines: SCALAR, WEIGHT (float, __half, __nv_bfloat16), RESIDUAL (0 or 1), VECTOR (elements), TEAM, TEAMS (1), VECTORS,
// CLUSTER, STAGES.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "async_copy.cuh"
#include "bulk_store.cuh"
#include "cluster.cuh"
#include "reduce.cuh"
#include "vector.cuh"

constexpr bool BULK = VECTOR * sizeof(SCALAR) == 16;
static_assert(STAGES > 1 && TEAMS == 1 && TEAM % 32 == 0, "one place to compute in, others to copy to");

extern "C" __global__ CLUSTER_DIMS __launch_bounds__(TEAM, 1)
void rmsnorm(const SCALAR* __restrict__ x, const WEIGHT* __restrict__ weight, const SCALAR* __restrict__ residual,
             SCALAR* __restrict__ y, SCALAR* __restrict__ sum, float* __restrict__ rstd, float eps, long long rows,
             int cols)
{
    using Vec = Packed<SCALAR, VECTOR>;
    using Weights = Packed<WEIGHT, VECTOR>;
    __shared__ float sums[2][TEAM / 32], parts[2][CLUSTER];
    extern __shared__ __align__(16) unsigned char memory[];
    Vec* ring = reinterpret_cast<Vec*>(memory);  // (STAGES, 1 + RESIDUAL, TEAM, VECTORS)

    const int vectors = cols / VECTOR;
    const int lane = threadIdx.x % 32;
    const int run = blockIdx.x % CLUSTER * (VECTORS * TEAM) + (threadIdx.x - lane) * VECTORS;  // the warp's vectors
    const int step = gridDim.x / CLUSTER;
    long long row = blockIdx.x / CLUSTER;
    const auto place = [&](int stage, int array, int i) {
        return ring + (stage * (1 + RESIDUAL) + array) * (VECTORS * TEAM) + (threadIdx.x - lane) * VECTORS + i * 32 + lane;
    };
    const auto fetch = [&](long long next, int stage) {
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int at = run + i * 32 + lane;
            if (next < rows && at < vectors) {
                async_copy(place(stage, 0, i), reinterpret_cast<const Vec*>(x + next * cols) + at);
                if (RESIDUAL) {
                    async_copy(place(stage, 1, i), reinterpret_cast<const Vec*>(residual + next * cols) + at);
                }
            }
        }
        async_copy_commit();
    };
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        fetch(row + static_cast<long long>(stage) * step, stage);
    }
    Weights w[VECTORS];  // (VECTORS, VECTOR)
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int at = run + i * 32 + lane;
        w[i] = at < vectors ? reinterpret_cast<const Weights*>(weight)[at] : Weights();
    }
    cluster_sync();

    for (int turn = 0; row < rows; ++turn, row += step) {
        // --- load the row
        const long long start = row * cols;
        Vec v[VECTORS];  // (VECTORS, VECTOR)
        async_copy_wait<STAGES - 2>();
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int at = run + i * 32 + lane;
            v[i] = at < vectors ? *place(turn % STAGES, 0, i) : Vec();
        }

        // --- add the residual, round once
        if (RESIDUAL) {
#pragma unroll
            for (int i = 0; i < VECTORS; ++i) {
                const int at = run + i * 32 + lane;
                if (at < vectors) {
                    Vector<float, VECTOR> both = widen(v[i]);
                    const Vector<float, VECTOR> added = widen(*place(turn % STAGES, RESIDUAL, i));
#pragma unroll
                    for (int j = 0; j < VECTOR; ++j) {
                        both.values[j] += added.values[j];
                    }
                    v[i] = narrow<SCALAR>(both);
                    *place(turn % STAGES, 0, i) = v[i];
                    if (!BULK) {
                        reinterpret_cast<Vec*>(sum + start)[at] = v[i];
                    }
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
        squares = team_reduce<TEAM>(squares, Sum(), sums[turn % 2]);
        if (BULK) {
            bulk_store_wait();  // the last turn's row has left its place
        }
        fetch(row + static_cast<long long>(STAGES - 1) * step, (turn + STAGES - 1) % STAGES);
        squares = cluster_reduce(squares, Sum(), parts[turn % 2]);
        const float scale = rsqrtf(squares / cols + eps);
        if (rstd && run + lane == 0) {
            rstd[row] = scale;
        }

        // --- scale and store
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int at = run + i * 32 + lane;
            if (at < vectors) {
                // Read again: to keep it takes registers that there are not.
                Vector<float, VECTOR> value = widen(*place(turn % STAGES, 0, i));
                const Vector<float, VECTOR> factor = widen(w[i]);
#pragma unroll
                for (int j = 0; j < VECTOR; ++j) {
                    value.values[j] = value.values[j] * scale * factor.values[j];
                }
                *(BULK ? place(turn % STAGES, RESIDUAL, i) : reinterpret_cast<Vec*>(y + start) + at) =
                    narrow<SCALAR>(value);
            }
        }
        if constexpr (BULK) {
            const int count = min(vectors - run, VECTORS * 32);
            if (RESIDUAL) {
                bulk_store(reinterpret_cast<Vec*>(sum + start) + run, place(turn % STAGES, 0, 0), count);
            }
            bulk_store(reinterpret_cast<Vec*>(y + start) + run, place(turn % STAGES, RESIDUAL, 0), count);
        }
    }
    if (BULK) {
        bulk_store_wait();
    }
}
