// RMSNorm's backward pass over rows: dx, and partial sums of dweight, dy and x being read once.
//
// contract  reference/rmsnorm.py, backward
// mapping   TEAM threads of each of CLUSTER blocks own a row at a time, a thread VECTORS vectors of it, TEAM apart, and
//           the sums of dweight's columns there, in registers; a block has TEAMS such teams. A grid of what is resident
//           takes rows in turn, the STAGES next ones on their way into shared memory, where the weight stays; each
//           vector of theirs has a place that only its own thread reads, so that copies need no barrier
// traffic   2 rows x cols elements read, one written, and a cols of float32 for every block of a cluster
// limits    GPUs from sm_90; rows whose dy, x and weight 8 blocks' shared memory holds
//
// Defines: SCALAR, WEIGHT (float, __half, __nv_bfloat16), VECTOR (elements), TEAM, TEAMS, VECTORS, STAGES, CLUSTER.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "async_copy.cuh"
#include "cluster.cuh"
#include "reduce.cuh"
#include "vector.cuh"

constexpr int BLOCK = TEAM * TEAMS;
constexpr int RESIDENT = BLOCK < 512 ? 512 / BLOCK : 1;  // blocks of a multiprocessor

// partials (count, cols): of every 256 rows that a cluster has taken.
__device__ inline void backward_rows(const SCALAR* __restrict__ dy, const SCALAR* __restrict__ x,
                                     const WEIGHT* __restrict__ weight, const float* __restrict__ rstd,
                                     SCALAR* __restrict__ dx, float* partials, long long rows, int cols)
{
    using Vec = Packed<SCALAR, VECTOR>;
    using Weights = Packed<WEIGHT, VECTOR>;
    using Sums = Vector<float, VECTOR>;
    __shared__ float dots[2][BLOCK / 32], parts[2][CLUSTER];
    extern __shared__ __align__(16) unsigned char memory[];
    Vec* ring = reinterpret_cast<Vec*>(memory);                                 // (STAGES, 2, VECTORS, BLOCK)
    Sums* totals = reinterpret_cast<Sums*>(ring + STAGES * 2 * VECTORS * BLOCK);  // (VECTORS, BLOCK), if TEAMS > 1
    Weights* held = reinterpret_cast<Weights*>(totals + (TEAMS > 1 ? VECTORS * BLOCK : 0));  // (VECTORS, TEAM)

    const int vectors = cols / VECTOR;
    const int first = blockIdx.x % CLUSTER * (VECTORS * TEAM) + threadIdx.x % TEAM;  // of this thread's vectors
    const int clusters = gridDim.x / CLUSTER, cluster = blockIdx.x / CLUSTER;
    const long long step = static_cast<long long>(clusters) * TEAMS;
    long long row = static_cast<long long>(cluster) * TEAMS + threadIdx.x / TEAM;
    const auto place = [&](int stage, int array, int i) {
        return ring + ((stage * 2 + array) * VECTORS + i) * BLOCK + threadIdx.x;
    };
    const auto fetch = [&](long long next, int stage) {
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int at = first + i * TEAM;
            if (next < rows && at < vectors) {
                async_copy(place(stage, 0, i), reinterpret_cast<const Vec*>(dy + next * cols) + at);
                async_copy(place(stage, 1, i), reinterpret_cast<const Vec*>(x + next * cols) + at);
            }
        }
        async_copy_commit();
    };
#pragma unroll 1
    for (int stage = 0; stage < STAGES; ++stage) {
        fetch(row + stage * step, stage);
    }
    Sums sums[VECTORS] = {};  // (VECTORS, VECTOR)
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (threadIdx.x < TEAM && first + i * TEAM < vectors) {
            held[i * TEAM + threadIdx.x] = reinterpret_cast<const Weights*>(weight)[first + i * TEAM];
        }
    }
    float next_scale = row < rows ? rstd[row] : 0.0f;
    __syncthreads();
    cluster_sync();

    // All teams take as many turns, the last ones perhaps without a row.
    const int turns = (rows + step - 1) / step;
    for (int turn = 0; turn < turns; ++turn, row += step) {
        // --- load the row
        const float scale = next_scale;
        next_scale = row + step < rows ? rstd[row + step] : 0.0f;
        async_copy_wait<STAGES - 1>();

        // --- mean of g x
        float dot = 0.0f;  // of g and x rstd, which is of moderate size
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (row < rows && first + i * TEAM < vectors) {
                const Vector<float, VECTOR> up = widen(*place(turn % STAGES, 0, i));
                const Vector<float, VECTOR> v = widen(*place(turn % STAGES, 1, i));
                const Vector<float, VECTOR> w = widen(held[i * TEAM + threadIdx.x % TEAM]);
                float part = 0.0f;
#pragma unroll
                for (int j = 0; j < VECTOR; ++j) {
                    part += up.values[j] * w.values[j] * (v.values[j] * scale);
                }
                dot += part;
            }
        }
        dot = team_reduce<TEAM>(dot, Sum(), dots[turn % 2]);
        const float mean = cluster_reduce(dot, Sum(), parts[turn % 2]) / cols;

#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int at = first + i * TEAM;
            if (row < rows && at < vectors) {
                const Vector<float, VECTOR> up = widen(*place(turn % STAGES, 0, i));
                const Vector<float, VECTOR> w = widen(held[i * TEAM + threadIdx.x % TEAM]);
                Vector<float, VECTOR> v = widen(*place(turn % STAGES, 1, i));
#pragma unroll
                for (int j = 0; j < VECTOR; ++j) {
                    const float normed = v.values[j] * scale;
                    // --- dx
                    v.values[j] = scale * (up.values[j] * w.values[j] - normed * mean);
                    // --- dweight
                    sums[i].values[j] += up.values[j] * normed;
                }
                reinterpret_cast<Vec*>(dx + row * cols)[at] = narrow<SCALAR>(v);
            }
        }
        fetch(row + STAGES * step, turn % STAGES);

        if (turn % LongSum::CHAIN == LongSum::CHAIN - 1 || turn == turns - 1) {
            Sums* to = reinterpret_cast<Sums*>(
                partials + (static_cast<long long>(turn / LongSum::CHAIN) * clusters + cluster) * cols);
            if (TEAMS > 1) {  // the block's teams first
#pragma unroll
                for (int i = 0; i < VECTORS; ++i) {
                    totals[i * BLOCK + threadIdx.x] = sums[i];
                }
                __syncthreads();
            }
#pragma unroll
            for (int i = 0; i < VECTORS; ++i) {
                if (threadIdx.x < TEAM && first + i * TEAM < vectors) {
                    for (int team = 1; team < TEAMS; ++team) {
#pragma unroll
                        for (int j = 0; j < VECTOR; ++j) {
                            sums[i].values[j] += totals[i * BLOCK + team * TEAM + threadIdx.x].values[j];
                        }
                    }
                    to[first + i * TEAM] = sums[i];
                }
                sums[i] = {};
            }
            if (TEAMS > 1) {
                __syncthreads();
            }
        }
    }
}
