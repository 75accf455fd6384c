// RMSNorm's backward pass over rows: dx, and partial sums of dweight, dy and x being read once.
//
// contract  reference/rmsnorm.py, backward
// mapping   TEAM threads of each of SHARES blocks own a row at a time, a thread VECTORS vectors of it, the vectors of a
//           warp side by side, and in registers the weight and the sums of dweight there; a block has TEAMS such teams.
//           A grid of what is resident takes rows in turn, STAGES of them in shared memory, on their way there or on
//           their way out. Each warp copies its own part, so that copies need no barrier. A row's mean is on its way
//           from the other threads while dx of the row before is computed, or of two rows before where it comes from
//           other blocks, through global memory
// traffic   2 rows x cols elements read, one written, and a cols of float32 for every block that shares no row
// limits    GPUs from sm_90; rows that all resident blocks' registers hold
//
// Defines: SCALAR, WEIGHT (float, __half, __nv_bfloat16), VECTOR (elements), TEAM, TEAMS, VECTORS, STAGES, SHARES, BLOCKS
// (of a multiprocessor).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "async_copy.cuh"
#include "bulk_store.cuh"
#include "exchange.cuh"
#include "reduce.cuh"
#include "rmsnorm_gradients.cuh"
#include "vector.cuh"

constexpr int BLOCK = TEAM * TEAMS;
constexpr int LANES = TEAM < 32 ? TEAM : 32;
constexpr bool BULK = VECTOR * sizeof(SCALAR) == 16 && TEAM % 32 == 0;
constexpr int LEAD = SHARES > 1 ? 2 : 1;  // rows by which a mean is ahead of dx
static_assert(STAGES > LEAD + 1, "a place for the row, others for those ahead, and to copy to");
static_assert(SHARES == 1 || TEAMS == 1, "blocks share a row, or have several");

// partials (count, cols): of every 256 rows that the blocks which share them have taken. words (rows, SHARES), zeros at
// first, if SHARES > 1: see exchange.cuh.
__device__ inline void backward_rows(const SCALAR* __restrict__ dy, const SCALAR* __restrict__ x,
                                     const WEIGHT* __restrict__ weight, const float* __restrict__ rstd,
                                     SCALAR* __restrict__ dx, float* partials, unsigned long long* words, long long rows,
                                     int cols)
{
    using Vec = Packed<SCALAR, VECTOR>;
    using Weights = Packed<WEIGHT, VECTOR>;
    using Sums = Vector<float, VECTOR>;
    __shared__ float dots[2][(BLOCK + 31) / 32];
    extern __shared__ __align__(16) unsigned char memory[];
    Vec* ring = reinterpret_cast<Vec*>(memory);                                  // (STAGES, 2, BLOCK, VECTORS)
    Sums* totals = reinterpret_cast<Sums*>(ring + STAGES * 2 * VECTORS * BLOCK);  // (VECTORS, BLOCK), if TEAMS > 1

    const int vectors = cols / VECTOR;
    const int lane = threadIdx.x % LANES;
    const int run = blockIdx.x % SHARES * (VECTORS * TEAM) + (threadIdx.x % TEAM - lane) * VECTORS;  // the warp's vectors
    const int groups = gridDim.x / SHARES, group = blockIdx.x / SHARES;
    const long long step = static_cast<long long>(groups) * TEAMS;
    long long row = static_cast<long long>(group) * TEAMS + threadIdx.x / TEAM;
    const auto place = [&](int turn, int array, int i) {
        return ring + (turn % STAGES * 2 + array) * (VECTORS * BLOCK) + (threadIdx.x - lane) * VECTORS + i * LANES + lane;
    };
    const auto fetch = [&](long long next, int turn) {
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int at = run + i * LANES + lane;
            if (next < rows && at < vectors) {
                async_copy(place(turn, 0, i), reinterpret_cast<const Vec*>(dy + next * cols) + at);
                async_copy(place(turn, 1, i), reinterpret_cast<const Vec*>(x + next * cols) + at);
            }
        }
        async_copy_commit();
    };
#pragma unroll 1
    for (int turn = 0; turn < STAGES - 1; ++turn) {
        fetch(row + turn * step, turn);
    }
    Sums sums[VECTORS] = {};  // (VECTORS, VECTOR)
    Weights w[VECTORS];       // (VECTORS, VECTOR)
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int at = run + i * LANES + lane;
        w[i] = at < vectors ? reinterpret_cast<const Weights*>(weight)[at] : Weights();
    }

    // --- mean of g x
    // Times cols, of this block's columns, which the other ones are told.
    const auto dot_of = [&](long long row, float scale, int turn) {
        float dot = 0.0f;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (row < rows && run + i * LANES + lane < vectors) {
                dot += mean_part(*place(turn, 0, i), *place(turn, 1, i), w[i], scale);
            }
        }
        dot = team_reduce<TEAM>(dot, Sum(), dots[turn % 2]);
        if (SHARES > 1 && threadIdx.x == 0 && row < rows) {
            publish(words + row * SHARES + blockIdx.x % SHARES, dot);
        }
        return dot;
    };
    const auto rstd_of = [&](long long row) { return row < rows ? rstd[row] : 0.0f; };

    // All teams take as many turns, the last ones perhaps without a row.
    const int turns = (rows + step - 1) / step;
    float scales[LEAD + 2], found[LEAD];  // of this row and those ahead
#pragma unroll
    for (int i = 0; i <= LEAD; ++i) {
        scales[i] = rstd_of(row + i * step);
    }
    async_copy_wait<STAGES - 1 - LEAD>();
#pragma unroll
    for (int i = 0; i < LEAD; ++i) {
        found[i] = dot_of(row + i * step, scales[i], i);
    }
    for (int turn = 0; turn < turns; ++turn, row += step) {
        scales[LEAD + 1] = rstd_of(row + (LEAD + 1) * step);
        // --- load the row
        // One ahead, or two.
        async_copy_wait<STAGES - 2 - LEAD>();
        const float next = turn + LEAD < turns ? dot_of(row + LEAD * step, scales[LEAD], turn + LEAD) : 0.0f;
        float dot = found[0];
        if (SHARES > 1 && row < rows) {
            dot = 0.0f;
            for (int share = threadIdx.x % 32; share < SHARES; share += 32) {
                dot += published(words + row * SHARES + share);
            }
            dot = warp_reduce<32>(dot, Sum());
        }
        const float mean = dot / cols;
        if (BULK) {
            bulk_store_wait();  // the last turn's dx has left its place
        }
        fetch(row + (STAGES - 1) * step, turn + STAGES - 1);

#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int at = run + i * LANES + lane;
            if (row < rows && at < vectors) {
                // --- dx, --- dweight
                *(BULK ? place(turn, 1, i) : reinterpret_cast<Vec*>(dx + row * cols) + at) =
                    gradients(*place(turn, 0, i), *place(turn, 1, i), w[i], scales[0], mean, sums[i]);
            }
        }
        if constexpr (BULK) {
            const int count = row < rows ? min(vectors - run, VECTORS * LANES) : 0;
            bulk_store(reinterpret_cast<Vec*>(dx + row * cols) + run, place(turn, 1, 0), count);
        }
#pragma unroll
        for (int i = 0; i <= LEAD; ++i) {
            scales[i] = scales[i + 1];
        }
#pragma unroll
        for (int i = 0; i < LEAD; ++i) {
            found[i] = i + 1 < LEAD ? found[i + 1] : next;
        }

        // --- dweight
        if (turn % LongSum::CHAIN == LongSum::CHAIN - 1 || turn == turns - 1) {
            Sums* to = reinterpret_cast<Sums*>(
                partials + (static_cast<long long>(turn / LongSum::CHAIN) * groups + group) * cols);
            if (TEAMS > 1) {  // the block's teams first
#pragma unroll
                for (int i = 0; i < VECTORS; ++i) {
                    totals[i * BLOCK + threadIdx.x] = sums[i];
                }
                __syncthreads();
            }
#pragma unroll
            for (int i = 0; i < VECTORS; ++i) {
                const int at = run + i * LANES + lane;
                if (threadIdx.x < TEAM && at < vectors) {
                    for (int team = 1; team < TEAMS; ++team) {
#pragma unroll
                        for (int j = 0; j < VECTOR; ++j) {
                            sums[i].values[j] += totals[i * BLOCK + team * TEAM + threadIdx.x].values[j];
                        }
                    }
                    to[at] = sums[i];
                }
                sums[i] = {};
            }
            if (TEAMS > 1) {
                __syncthreads();
            }
        }
    }
    if (BULK) {
        bulk_store_wait();
    }
}
