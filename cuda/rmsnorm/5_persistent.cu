// RMSNorm, rung 5: as many threads as a row needs, and for wide rows the next ones in flight while this one is computed.
//
// contract  reference/rmsnorm.py, forward
// mapping   TEAM threads of each of CLUSTER blocks own a row, a thread VECTORS vectors of it in registers, the vectors of
//           a warp side by side; a block has TEAMS such teams. Rows of up to 64 KiB, the residual's counted: a
//           grid of all rows, loads straight into registers (STAGES 0). Wider rows: a grid of what is resident takes rows
//           in turn, STAGES of them in shared memory, on their way there or on their way out, the weight in registers.
//           Each warp copies its own part, so that copies need no barrier
// traffic   rows x cols elements read, as many written; twice that with a residual
// limits    GPUs from sm_90; rows of up to 8 blocks' 1024 threads' 64 bytes, or 16 elements where they load one by one; wider
//           ones take rung 3
//
// Defines: SCALAR, WEIGHT (float, __half, __nv_bfloat16), RESIDUAL (0 or 1), VECTOR (elements), TEAM, TEAMS, VECTORS,
// STAGES, CLUSTER.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "async_copy.cuh"
#include "bulk_store.cuh"
#include "cluster.cuh"
#include "forget.cuh"
#include "reduce.cuh"
#include "vector.cuh"

constexpr int BLOCK = TEAM * TEAMS;
constexpr int PLACES = STAGES > 0 ? STAGES : 1;
constexpr int LANES = TEAM < 32 ? TEAM : 32;
// No registers for the weight beside a row.
constexpr bool TIGHT = STAGES == 0 && VECTORS * VECTOR * (sizeof(SCALAR) + sizeof(WEIGHT)) > 192;
constexpr bool BULK = STAGES > 0 && VECTOR * sizeof(SCALAR) == 16;
static_assert(STAGES == 0 || (STAGES > 1 && TEAMS == 1 && TEAM % 32 == 0), "one place to compute in, others to copy to");
constexpr int RESIDENT = RESIDUAL ? 640 : 1024;  // threads of a multiprocessor, which share its registers

extern "C" __global__ CLUSTER_DIMS __launch_bounds__(BLOCK, STAGES > 0 || RESIDENT < BLOCK ? 1 : RESIDENT / BLOCK)
void rmsnorm(const SCALAR* __restrict__ x, const WEIGHT* __restrict__ weight, const SCALAR* __restrict__ residual,
             SCALAR* __restrict__ y, SCALAR* __restrict__ sum, float* __restrict__ rstd, float eps, long long rows,
             int cols)
{
    using Vec = Packed<SCALAR, VECTOR>;
    using Weights = Packed<WEIGHT, VECTOR>;
    __shared__ float sums[2][BLOCK / 32], parts[2][CLUSTER];
    extern __shared__ __align__(16) unsigned char memory[];
    Vec* ring = reinterpret_cast<Vec*>(memory);  // (STAGES, 1 + RESIDUAL, BLOCK, VECTORS)

    const int vectors = cols / VECTOR;
    const int lane = threadIdx.x % LANES;
    const int run = blockIdx.x % CLUSTER * (VECTORS * TEAM) + (threadIdx.x % TEAM - lane) * VECTORS;  // the warp's vectors
    const long long step = static_cast<long long>(gridDim.x / CLUSTER) * TEAMS;
    long long row = static_cast<long long>(blockIdx.x / CLUSTER) * TEAMS + threadIdx.x / TEAM;
    const auto place = [&](int stage, int array, int i) {
        return ring + (stage * (1 + RESIDUAL) + array) * (VECTORS * BLOCK) + (threadIdx.x - lane) * VECTORS + i * LANES +
               lane;
    };
    const auto fetch = [&](long long next, int stage) {
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int at = run + i * LANES + lane;
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
        fetch(row + stage * step, stage);
    }
    Weights w[VECTORS];  // (VECTORS, VECTOR)
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int at = run + i * LANES + lane;
        if (!TIGHT) {
            w[i] = at < vectors ? reinterpret_cast<const Weights*>(weight)[at] : Weights();
        }
    }
    cluster_sync();

    // Teams of a block go on together, as long as the first has a row; a grid of all rows takes one turn.
    for (int turn = 0; row - threadIdx.x / TEAM < rows && (STAGES > 0 || turn == 0); ++turn, row += step) {
        // --- load the row
        const long long start = row * cols;
        Vec v[VECTORS], r[VECTORS];  // (VECTORS, VECTOR)
        if constexpr (STAGES > 0) {
            async_copy_wait<STAGES - 2>();
        }
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int at = run + i * LANES + lane;
            const bool inside = row < rows && at < vectors;
            if (STAGES > 0) {
                v[i] = inside ? *place(turn % PLACES, 0, i) : Vec();
            } else {  // all that is needed later is on its way at once
                v[i] = inside ? reinterpret_cast<const Vec*>(x + start)[at] : Vec();
                r[i] = inside && RESIDUAL ? reinterpret_cast<const Vec*>(residual + start)[at] : Vec();
            }
        }

        // --- add the residual, round once
        if (RESIDUAL) {
#pragma unroll
            for (int i = 0; i < VECTORS; ++i) {
                const int at = run + i * LANES + lane;
                if (row < rows && at < vectors) {
                    Vector<float, VECTOR> both = widen(v[i]);
                    const Vector<float, VECTOR> added = widen(STAGES > 0 ? *place(turn % PLACES, RESIDUAL, i) : r[i]);
#pragma unroll
                    for (int j = 0; j < VECTOR; ++j) {
                        both.values[j] += added.values[j];
                    }
                    v[i] = narrow<SCALAR>(both);
                    if (STAGES > 0) {
                        *place(turn % PLACES, 0, i) = v[i];
                    }
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
        if (STAGES > 0) {
            if (BULK) {
                bulk_store_wait();  // the last turn's row has left its place
            }
            fetch(row + (STAGES - 1) * step, (turn + PLACES - 1) % PLACES);
        }
        squares = cluster_reduce(squares, Sum(), parts[turn % 2]);
        const float scale = rsqrtf(squares / cols + eps);
        if (rstd && row < rows && run + lane == 0) {
            rstd[row] = scale;
        }

        // --- scale and store
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int at = run + i * LANES + lane;
            if (row < rows && at < vectors) {
                if (TIGHT) {
                    forget(v[i]);
                    w[i] = reinterpret_cast<const Weights*>(weight)[at];
                }
                // Read again: to keep it takes registers that there are not.
                Vector<float, VECTOR> value = widen(STAGES > 0 ? *place(turn % PLACES, 0, i) : v[i]);
                const Vector<float, VECTOR> factor = widen(w[i]);
#pragma unroll
                for (int j = 0; j < VECTOR; ++j) {
                    value.values[j] = value.values[j] * scale * factor.values[j];
                }
                *(BULK ? place(turn % PLACES, RESIDUAL, i) : reinterpret_cast<Vec*>(y + start) + at) =
                    narrow<SCALAR>(value);
            }
        }
        if constexpr (BULK) {
            const int count = min(vectors - run, VECTORS * LANES);
            if (RESIDUAL) {
                bulk_store(reinterpret_cast<Vec*>(sum + start) + run, place(turn % PLACES, 0, 0), count);
            }
            bulk_store(reinterpret_cast<Vec*>(y + start) + run, place(turn % PLACES, RESIDUAL, 0), count);
        }
    }
    if (BULK) {
        bulk_store_wait();
    }
}
