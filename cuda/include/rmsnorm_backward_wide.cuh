// RMSNorm's backward pass over rows of which shared memory holds one and a half: a block a row.
//
// contract  reference/rmsnorm.py, backward
// mapping   TEAM threads, all of a block, own a row at a time, a thread VECTORS vectors of it, the vectors of a warp side by
//           side, and in registers the sums of dweight there. A block a multiprocessor takes rows in turn. STAGES counts
//           slots of one vector of every thread, dy's and x's: those of a row, and of the next one as many as there is
//           room for. dx leaves from x's place, whose slot is then filled again. Each warp copies its own part, so that
//           copies need no barrier
// traffic   2 rows x cols elements read, one written, cols of float32 a block; the weight, twice a row, from L2
// limits    GPUs from sm_90; rows whose sums fit into a block's registers and which fit into its shared memory
//
// Defines: SCALAR, WEIGHT (float, __half, __nv_bfloat16), VECTOR (16 bytes' elements), TEAM, VECTORS, STAGES.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "async_copy.cuh"
#include "bulk_store.cuh"
#include "cluster.cuh"
#include "reduce.cuh"
#include "rmsnorm_gradients.cuh"
#include "vector.cuh"

constexpr int BLOCK = TEAM;
static_assert(TEAMS == 1 && CLUSTER == 1 && TEAM % 32 == 0 && VECTOR * sizeof(SCALAR) == 16, "a block a row");
static_assert(STAGES > VECTORS + 1, "slots for the row, one that is being emptied, others to copy to");

// partials (count, cols): of every 256 rows that a block has taken.
__device__ inline void backward_rows(const SCALAR* __restrict__ dy, const SCALAR* __restrict__ x,
                                     const WEIGHT* __restrict__ weight, const float* __restrict__ rstd,
                                     SCALAR* __restrict__ dx, float* partials, long long rows, int cols)
{
    using Vec = Packed<SCALAR, VECTOR>;
    using Weights = Packed<WEIGHT, VECTOR>;
    using Sums = Vector<float, VECTOR>;
    __shared__ float dots[2][BLOCK / 32];
    extern __shared__ __align__(16) unsigned char memory[];
    Vec* ring = reinterpret_cast<Vec*>(memory);  // (STAGES, 2, BLOCK)
    const Weights* w = reinterpret_cast<const Weights*>(weight);  // (cols / VECTOR,)

    const int vectors = cols / VECTOR;
    const int lane = threadIdx.x % 32;
    const int run = (threadIdx.x - lane) * VECTORS + lane;  // this thread's vectors are here and every 32 from here on
    long long row = blockIdx.x;
    const auto place = [&](int slot, int array) { return ring + (slot * 2 + array) * BLOCK + threadIdx.x; };
    const auto wrapped = [](int slot) { return slot < STAGES ? slot : slot - STAGES; };
    // Into a slot what comes ``ahead`` vectors after the first one of the row.
    const auto fetch = [&](int slot, int ahead) {
        const long long next = row + static_cast<long long>(ahead / VECTORS) * gridDim.x;
        const int at = run + ahead % VECTORS * 32;
        if (next < rows && at < vectors) {
            async_copy(place(slot, 0), reinterpret_cast<const Vec*>(dy + next * cols) + at);
            async_copy(place(slot, 1), reinterpret_cast<const Vec*>(x + next * cols) + at);
        }
        async_copy_commit();
    };
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; ++i) {
        fetch(i, i);
    }
    Sums sums[VECTORS] = {};  // (VECTORS, VECTOR)
    const int turns = row < rows ? (rows - row + gridDim.x - 1) / gridDim.x : 0;
    int first = 0;  // slot of the row
    for (int turn = 0; turn < turns; ++turn, row += gridDim.x, first = (first + VECTORS) % STAGES) {
        const float scale = rstd[row];
        // --- load the row
        async_copy_wait<STAGES - 1 - VECTORS>();

        // --- mean of g x
        float dot = 0.0f;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int at = run + i * 32, slot = wrapped(first + i);
            if (at < vectors) {
                dot += mean_part(*place(slot, 0), *place(slot, 1), w[at], scale);
            }
        }
        const float mean = team_reduce<TEAM>(dot, Sum(), dots[turn % 2]) / cols;

#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int at = run + i * 32, slot = wrapped(first + i);
            if (at < vectors) {
                // --- dx, --- dweight
                *place(slot, 1) = gradients(*place(slot, 0), *place(slot, 1), w[at], scale, mean, sums[i]);
            }
            const int count = min(vectors - (at - lane), 32);
            bulk_store(reinterpret_cast<Vec*>(dx + row * cols) + (at - lane), place(slot, 1) - lane, count);
            bulk_store_wait<1>();  // the vector before this one has left its place
            fetch(i + first == 0 ? STAGES - 1 : wrapped(first + i - 1), i + STAGES - 1);
        }

        if (turn % LongSum::CHAIN == LongSum::CHAIN - 1 || turn == turns - 1) {
            Sums* to = reinterpret_cast<Sums*>(
                partials + (static_cast<long long>(turn / LongSum::CHAIN) * gridDim.x + blockIdx.x) * cols);
#pragma unroll
            for (int i = 0; i < VECTORS; ++i) {
                if (run + i * 32 < vectors) {
                    to[run + i * 32] = sums[i];
                }
                sums[i] = {};
            }
        }
    }
    bulk_store_wait<0>();
}
