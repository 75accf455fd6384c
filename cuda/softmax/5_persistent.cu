// Softmax, rung 5: as many threads as a row needs, and for wide rows the next ones in flight while this one is computed.
//
// contract  reference/softmax.py
// mapping   TEAM threads of each of CLUSTER blocks own a row, a thread VECTORS vectors of it in registers, the vectors of
//           a warp side by side; a block has TEAMS such teams. Rows of up to 64 KiB: a grid of all rows, loads
//           straight into registers (STAGES 0), from 32 KiB on as they lie in memory, exponentials computed twice. Wider
//           rows: a grid of what is resident takes rows in turn, STAGES of them in shared memory, on their way there or on
//           their way out. Each warp copies its own part, so that copies need no barrier
// traffic   rows x cols elements read, as many written
// limits    GPUs from sm_90; rows of up to 8 blocks' 1024 threads' 32 elements, wider ones take rung 3
//
// Defines: SCALAR (float, __half, __nv_bfloat16), VECTOR (elements), TEAM, TEAMS, VECTORS, STAGES, CLUSTER.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "async_copy.cuh"
#include "bulk_store.cuh"
#include "cluster.cuh"
#include "exponential.cuh"
#include "forget.cuh"
#include "reduce.cuh"
#include "vector.cuh"

constexpr int BLOCK = TEAM * TEAMS;
constexpr int PLACES = STAGES > 0 ? STAGES : 1;
constexpr int LANES = TEAM < 32 ? TEAM : 32;
constexpr bool TIGHT = STAGES == 0 && VECTORS * VECTOR > 32;  // in float32 a row does not fit into the registers
constexpr bool BULK = STAGES > 0 && VECTOR * sizeof(SCALAR) == 16;
static_assert(STAGES == 0 || (STAGES > 1 && TEAMS == 1 && TEAM % 32 == 0), "one place to compute in, others to copy to");

// The state of two parts of a row, (maximum, sum of exponentials relative to it).
struct Merge {
    __device__ float2 operator()(float2 a, float2 b) const
    {
        const float m = fmaxf(a.x, b.x);
        return float2{m, a.y * exponential(a.x - finite(m)) + b.y * exponential(b.x - finite(m))};
    }
};

extern "C" __global__ CLUSTER_DIMS __launch_bounds__(BLOCK, STAGES > 0 ? 1 : 1024 / BLOCK)
void softmax(const SCALAR* __restrict__ x, SCALAR* __restrict__ out, long long rows, int cols)
{
    using Vec = Packed<SCALAR, VECTOR>;
    __shared__ float maxima[BLOCK / 32], sums[BLOCK / 32];
    __shared__ float2 parts[2][CLUSTER];
    extern __shared__ __align__(16) unsigned char memory[];
    Vec* ring = reinterpret_cast<Vec*>(memory);  // (STAGES, VECTORS, BLOCK)

    const int vectors = cols / VECTOR;
    const int lane = threadIdx.x % LANES;
    const int run = blockIdx.x % CLUSTER * (VECTORS * TEAM) + (threadIdx.x % TEAM - lane) * VECTORS;  // the warp's vectors
    const long long step = static_cast<long long>(gridDim.x / CLUSTER) * TEAMS;
    long long row = static_cast<long long>(blockIdx.x / CLUSTER) * TEAMS + threadIdx.x / TEAM;
    const auto place = [&](int stage, int i) {
        return ring + stage * (VECTORS * BLOCK) + (threadIdx.x - lane) * VECTORS + i * LANES + lane;
    };
    const auto fetch = [&](long long next, int stage) {
        const Vec* from = reinterpret_cast<const Vec*>(x + next * cols);
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int at = run + i * LANES + lane;
            if (next < rows && at < vectors) {
                async_copy(place(stage, i), from + at);
            }
        }
        async_copy_commit();
    };
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        fetch(row + stage * step, stage);
    }
    cluster_sync();

    // Teams of a block go on together, as long as the first has a row; a grid of all rows takes one turn.
    for (int turn = 0; row - threadIdx.x / TEAM < rows && (STAGES > 0 || turn == 0); ++turn, row += step) {
        // --- load the row
        const Vec* from = reinterpret_cast<const Vec*>(x + row * cols);  // (cols / VECTOR,)
        Vec* to = reinterpret_cast<Vec*>(out + row * cols);              // (cols / VECTOR,)
        Vec v[VECTORS];  // (VECTORS, VECTOR)
        if constexpr (STAGES > 0) {
            async_copy_wait<STAGES - 2>();
        }
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int at = run + i * LANES + lane;
            const bool inside = row < rows && at < vectors;
            v[i] = filled<SCALAR, VECTOR>(Max::neutral());
            if (inside) {
                v[i] = STAGES > 0 ? *place(turn % PLACES, i) : from[at];
            }
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
        if (STAGES > 0) {
            if (BULK) {
                bulk_store_wait();  // the last turn's row has left its place
            }
            fetch(row + (STAGES - 1) * step, (turn + PLACES - 1) % PLACES);
        }

        // --- exponentials and their sum
        const auto exponentials = [&](const Vec& packed) {
            Vector<float, VECTOR> value = widen(packed);
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                value.values[j] = exponential(value.values[j] - finite(m));
            }
            return value;
        };
        Vector<float, VECTOR> e[TIGHT ? 1 : VECTORS];  // (VECTORS, VECTOR), or a vector at a time, twice
        float l = 0.0f;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (TIGHT) {
                forget(v[i]);
            }
            Vector<float, VECTOR>& terms = e[TIGHT ? 0 : i];
            terms = exponentials(v[i]);
            float part = 0.0f;
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                part += terms.values[j];
            }
            l += part;
        }
        l = team_reduce<TEAM>(l, Sum(), sums);
        const float2 all = cluster_reduce(float2{m, l}, Merge(), parts[turn % 2]);

        // --- divide and store
        const float scale = exponential(m - finite(all.x)) / all.y;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int at = run + i * LANES + lane;
            if (row < rows && at < vectors) {
                Vector<float, VECTOR>& terms = e[TIGHT ? 0 : i];
                if (TIGHT) {
                    forget(v[i]);
                    terms = exponentials(v[i]);
                }
#pragma unroll
                for (int j = 0; j < VECTOR; ++j) {
                    terms.values[j] *= scale;
                }
                *(BULK ? place(turn % PLACES, i) : to + at) = narrow<SCALAR>(terms);
            }
        }
        if constexpr (BULK) {
            bulk_store(to + run, place(turn % PLACES, 0), min(vectors - run, VECTORS * LANES));
        }
    }
    if (BULK) {
        bulk_store_wait();
    }
}
