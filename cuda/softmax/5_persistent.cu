// Softmax, rung 5: wide rows come and go through shared memory while another one is computed.
//
// contract  reference/softmax.py
// mapping   TEAM threads of each of CLUSTER blocks own a row, a thread VECTORS vectors of it in registers, the vectors of a
//           warp side by side. A grid of what is resident takes rows in turn, STAGES of them in shared memory, on their way
//           there or on their way out. Each warp copies its own part, so that copies need no barrier
// traffic   rows x cols elements read, as many written
// limits    GPUs from sm_90; rows of more than 32 KiB, up to 8 blocks' 1024 threads' 32 elements. Narrower ones take rung 4,
//           wider ones rung 3
//
// Defines: SCALAR (float, __half, __nv_bfloat16), VECTOR (elements), TEAM, TEAMS (1), VECTORS, CLUSTER, STAGES.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "async_copy.cuh"
#include "bulk_store.cuh"
#include "cluster.cuh"
#include "exponential.cuh"
#include "reduce.cuh"
#include "vector.cuh"

constexpr bool BULK = VECTOR * sizeof(SCALAR) == 16;
static_assert(STAGES > 1 && TEAMS == 1 && TEAM % 32 == 0, "one place to compute in, others to copy to");

// The state of two parts of a row, (maximum, sum of exponentials relative to it).
struct Merge {
    __device__ float2 operator()(float2 a, float2 b) const
    {
        const float m = fmaxf(a.x, b.x);
        return float2{m, a.y * exponential(a.x - finite(m)) + b.y * exponential(b.x - finite(m))};
    }
};

extern "C" __global__ CLUSTER_DIMS __launch_bounds__(TEAM, 1)
void softmax(const SCALAR* __restrict__ x, SCALAR* __restrict__ out, long long rows, int cols)
{
    using Vec = Packed<SCALAR, VECTOR>;
    __shared__ float maxima[TEAM / 32], sums[TEAM / 32];
    __shared__ float2 parts[2][CLUSTER];
    extern __shared__ __align__(16) unsigned char memory[];
    Vec* ring = reinterpret_cast<Vec*>(memory);  // (STAGES, VECTORS, TEAM)

    const int vectors = cols / VECTOR;
    const int lane = threadIdx.x % 32;
    const int run = blockIdx.x % CLUSTER * (VECTORS * TEAM) + (threadIdx.x - lane) * VECTORS;  // the warp's vectors
    const int step = gridDim.x / CLUSTER;
    long long row = blockIdx.x / CLUSTER;
    const auto place = [&](int stage, int i) {
        return ring + stage * (VECTORS * TEAM) + (threadIdx.x - lane) * VECTORS + i * 32 + lane;
    };
    const auto fetch = [&](long long next, int stage) {
        const Vec* from = reinterpret_cast<const Vec*>(x + next * cols);
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int at = run + i * 32 + lane;
            if (next < rows && at < vectors) {
                async_copy(place(stage, i), from + at);
            }
        }
        async_copy_commit();
    };
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        fetch(row + static_cast<long long>(stage) * step, stage);
    }
    cluster_sync();

    for (int turn = 0; row < rows; ++turn, row += step) {
        // --- load the row
        Vec v[VECTORS];  // (VECTORS, VECTOR)
        async_copy_wait<STAGES - 2>();
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int at = run + i * 32 + lane;
            v[i] = at < vectors ? *place(turn % STAGES, i) : filled<SCALAR, VECTOR>(Max::neutral());
        }

        // --- maximum of the row
        float m = Max::neutral();
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const Vector<float, VECTOR> value = widen(v[i]);
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                m = fmaxf(m, value.values[j]);
            }
        }
        m = team_reduce<TEAM>(m, Max(), maxima);
        if (BULK) {
            bulk_store_wait();  // the last turn's row has left its place
        }
        fetch(row + static_cast<long long>(STAGES - 1) * step, (turn + STAGES - 1) % STAGES);

        // --- exponentials and their sum
        Vector<float, VECTOR> e[VECTORS];  // (VECTORS, VECTOR)
        float l = 0.0f;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            e[i] = widen(v[i]);
            float part = 0.0f;
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                e[i].values[j] = exponential(e[i].values[j] - finite(m));
                part += e[i].values[j];
            }
            l += part;
        }
        l = team_reduce<TEAM>(l, Sum(), sums);
        const float2 all = cluster_reduce(float2{m, l}, Merge(), parts[turn % 2]);

        // --- divide and store
        const float scale = exponential(m - finite(all.x)) / all.y;
        Vec* to = reinterpret_cast<Vec*>(out + row * cols);  // (cols / VECTOR,)
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int at = run + i * 32 + lane;
            if (at < vectors) {
#pragma unroll
                for (int j = 0; j < VECTOR; ++j) {
                    e[i].values[j] *= scale;
                }
                *(BULK ? place(turn % STAGES, i) : to + at) = narrow<SCALAR>(e[i]);
            }
        }
        if constexpr (BULK) {
            bulk_store(to + run, place(turn % STAGES, 0), min(vectors - run, VECTORS * 32));
        }
    }
    if (BULK) {
        bulk_store_wait();
    }
}
