// RMSNorm, rung 5: as many threads as a row needs, and for wide rows the next ones in flight while this one is computed.
//
// contract  reference/rmsnorm.py, forward
// mapping   TEAM threads of each of CLUSTER blocks own a row, a thread VECTORS vectors of it, TEAM apart, in registers;
//           a block has TEAMS such teams. Short rows: a grid of all rows, loads straight into registers (STAGES 0).
//           Wide rows: a grid of what is resident takes rows in turn, the STAGES next ones on their way into shared
//           memory, where the weight stays; each vector has a place that only its own thread reads, so that copies
//           need no barrier
// traffic   rows x cols elements read, as many written; twice that with a residual
// limits    GPUs from sm_90; rows that 8 blocks' shared memory holds (262,144 16-bit elements, with a residual fewer),
//           wider ones take rung 3
//
// Defines: SCALAR, WEIGHT (float, __half, __nv_bfloat16), RESIDUAL (0 or 1), VECTOR (elements), TEAM, TEAMS, VECTORS,
// STAGES, CLUSTER.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "async_copy.cuh"
#include "cluster.cuh"
#include "reduce.cuh"
#include "vector.cuh"

constexpr int BLOCK = TEAM * TEAMS;
constexpr int PLACES = STAGES > 0 ? STAGES : 1;
constexpr int RESIDENT = RESIDUAL ? 640 : 1024;  // threads of a multiprocessor, which share its registers

extern "C" __global__ CLUSTER_DIMS __launch_bounds__(BLOCK, STAGES > 0 ? 1 : RESIDENT / BLOCK)
void rmsnorm(const SCALAR* __restrict__ x, const WEIGHT* __restrict__ weight, const SCALAR* __restrict__ residual,
             SCALAR* __restrict__ y, SCALAR* __restrict__ sum, float* __restrict__ rstd, float eps, long long rows,
             int cols)
{
    using Vec = Packed<SCALAR, VECTOR>;
    using Weights = Packed<WEIGHT, VECTOR>;
    __shared__ float sums[2][BLOCK / 32], parts[2][CLUSTER];
    extern __shared__ __align__(16) unsigned char memory[];
    Vec* ring = reinterpret_cast<Vec*>(memory);                                                   // (STAGES, 1 + RESIDUAL, VECTORS, BLOCK)
    Weights* held = reinterpret_cast<Weights*>(ring + STAGES * (1 + RESIDUAL) * VECTORS * BLOCK);  // (VECTORS, BLOCK)

    const int vectors = cols / VECTOR;
    const int first = blockIdx.x % CLUSTER * (VECTORS * TEAM) + threadIdx.x % TEAM;  // of this thread's vectors
    const long long step = static_cast<long long>(gridDim.x / CLUSTER) * TEAMS;
    long long row = static_cast<long long>(blockIdx.x / CLUSTER) * TEAMS + threadIdx.x / TEAM;
    const auto place = [&](int stage, int array, int i) {
        return ring + ((stage * (1 + RESIDUAL) + array) * VECTORS + i) * BLOCK + threadIdx.x;
    };
    const auto fetch = [&](long long next, int stage) {
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int at = first + i * TEAM;
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
    for (int stage = 0; stage < STAGES; ++stage) {
        fetch(row + stage * step, stage);
    }
    if (STAGES > 0) {
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (first + i * TEAM < vectors) {
                held[i * BLOCK + threadIdx.x] = reinterpret_cast<const Weights*>(weight)[first + i * TEAM];
            }
        }
    }
    cluster_sync();

    // Teams of a block go on together, as long as the first has a row; a grid of all rows takes one turn.
    for (int turn = 0; row - threadIdx.x / TEAM < rows && (STAGES > 0 || turn == 0); ++turn, row += step) {
        // --- load the row
        const long long start = row * cols;
        Vec v[VECTORS], r[VECTORS];  // (VECTORS, VECTOR)
        Weights w[VECTORS];          // (VECTORS, VECTOR)
        if (STAGES > 0) {
            async_copy_wait<PLACES - 1>();
        }
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int at = first + i * TEAM;
            const bool inside = row < rows && at < vectors;
            if (STAGES > 0) {
                v[i] = inside ? *place(turn % PLACES, 0, i) : Vec();
            } else {  // all that is needed later is on its way at once
                v[i] = inside ? reinterpret_cast<const Vec*>(x + start)[at] : Vec();
                r[i] = inside && RESIDUAL ? reinterpret_cast<const Vec*>(residual + start)[at] : Vec();
                w[i] = inside ? reinterpret_cast<const Weights*>(weight)[at] : Weights();
            }
        }

        // --- add the residual, round once
        if (RESIDUAL) {
#pragma unroll
            for (int i = 0; i < VECTORS; ++i) {
                const int at = first + i * TEAM;
                if (row < rows && at < vectors) {
                    Vector<float, VECTOR> both = widen(v[i]);
                    const Vector<float, VECTOR> added = widen(STAGES > 0 ? *place(turn % PLACES, RESIDUAL, i) : r[i]);
#pragma unroll
                    for (int j = 0; j < VECTOR; ++j) {
                        both.values[j] += added.values[j];
                    }
                    v[i] = narrow<SCALAR>(both);
                    reinterpret_cast<Vec*>(sum + start)[at] = v[i];
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
        if (STAGES > 0) {
            fetch(row + STAGES * step, turn % PLACES);  // the place's row is in registers
        }
        squares = cluster_reduce(squares, Sum(), parts[turn % 2]);
        const float scale = rsqrtf(squares / cols + eps);
        if (rstd && row < rows && first == 0) {
            rstd[row] = scale;
        }

        // --- scale and store
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int at = first + i * TEAM;
            if (row < rows && at < vectors) {
                Vector<float, VECTOR> value = widen(v[i]);
                const Vector<float, VECTOR> factor = widen(STAGES > 0 ? held[i * BLOCK + threadIdx.x] : w[i]);
#pragma unroll
                for (int j = 0; j < VECTOR; ++j) {
                    value.values[j] = value.values[j] * scale * factor.values[j];
                }
                reinterpret_cast<Vec*>(y + start)[at] = narrow<SCALAR>(value);
            }
        }
    }
}
