// What matmul's Hopper kernels share: a tile of out, (TILE_M, TILE_N), is a product of strips of `left` and `right`, which
// come through a ring of stages in shared memory, 128 bytes of K a stage. Each of CONSUMERS warpgroups multiplies 64 rows.
//
// Defines: SCALAR, OUT (float, __half, __nv_bfloat16), LEFT_K_MAJOR, RIGHT_K_MAJOR (0 or 1), CONSUMERS, TILE_N, STAGES,
// VECTOR (elements of out that store as one, 1 or 2), BIAS (0 or 1), ACTIVATION (epilogue.cuh).
#pragma once

#include "epilogue.cuh"
#include "ring.cuh"
#include "tma.cuh"
#include "vector.cuh"
#include "wgmma.cuh"

constexpr int TILE_M = 64 * CONSUMERS, TILE_K = 128 / sizeof(SCALAR);
constexpr int SUMS = TILE_N / 2;  // of a thread
constexpr int LEFT_BYTES = TILE_M * 128, STAGE_BYTES = LEFT_BYTES + TILE_N * 128;

// Registers of a thread that the multiplying warpgroups take from the loading one.
constexpr int REGISTERS_LOADING = 40, REGISTERS_MULTIPLYING = CONSUMERS <= 2 ? 232 : 112;

struct Stages : Ring<STAGES, STAGE_BYTES> {
    // What follows the stages are `more` bytes of others, then the barriers.
    __device__ Stages(unsigned char* memory, int more) : Ring(memory, memory + STAGES * STAGE_BYTES + more) {}
    __device__ unsigned char* left(int index) const { return stage(index); }
    __device__ unsigned char* right(int index) const { return stage(index) + LEFT_BYTES; }
};

// Starts the copy of ROWS rows, or columns, of an operand from `row` on, at k; to the blocks of the cluster whose bits are
// set, or for 0 to this one alone.
template <bool K_MAJOR, int ROWS>
__device__ inline void load_operand(unsigned char* place, const TensorMap& map, int row, int k, Barrier* full,
                                    unsigned blocks = 0)
{
    // --- load A and B
    constexpr int BOX = K_MAJOR ? ROWS : 64;
    static_assert(ROWS % BOX == 0, "whole boxes");
#pragma unroll
    for (int i = 0; i < ROWS; i += BOX) {
        const int x = K_MAJOR ? k : row + i, y = K_MAJOR ? row + i : k;
        if (blocks == 0) {
            tma_load(place + i * 128, map, x, y, full);
        } else {
            tma_load_multicast(place + i * 128, map, x, y, full, blocks);
        }
    }
}

__device__ inline void load_stage(const Stages& ring, int stage, const TensorMap& left, const TensorMap& right, int row,
                                  int col, int k)
{
    // --- load A and B
    mbarrier_expect(ring.full + stage, STAGE_BYTES);
    load_operand<LEFT_K_MAJOR, TILE_M>(ring.left(stage), left, row, k, ring.full + stage);
    load_operand<RIGHT_K_MAJOR, TILE_N>(ring.right(stage), right, col, k, ring.full + stage);
}

// Starts the product of a stage for warpgroup `consumer`: sums = left right, or with add sums + left right.
__device__ inline void multiply_stage(float (&sums)[SUMS], const Stages& ring, int stage, int consumer, bool add)
{
    // --- multiply and accumulate
    const auto left = wgmma_descriptor<LEFT_K_MAJOR>(shared_address(ring.left(stage) + consumer * COLUMN_BYTES));
    const auto right = wgmma_descriptor<RIGHT_K_MAJOR>(shared_address(ring.right(stage)));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        wgmma<LEFT_K_MAJOR, RIGHT_K_MAJOR>(SCALAR(), sums, left + i * WGMMA_STEP<SCALAR, LEFT_K_MAJOR>,
                                           right + i * WGMMA_STEP<SCALAR, RIGHT_K_MAJOR>, add || i > 0);
    }
    wgmma_commit();
}

// One warp has read a stage, which the blocks of the cluster whose bits are set fill, or for 0 this one alone.
__device__ inline void release(Barrier* empty, unsigned blocks)
{
    const int lane = threadIdx.x % 32;
    if (blocks == 0 && lane == 0) {
        mbarrier_arrive(empty);
    } else if (blocks >> lane & 1) {
        mbarrier_arrive_at(empty, lane);
    }
}

// The sums of a tile's `steps` stages, 1 or more; a stage is released when the next one's products are under way.
__device__ inline void multiply_tile(float (&sums)[SUMS], const Stages& ring, Turn<STAGES>& turn, int steps, int consumer,
                                     unsigned blocks = 0)
{
    // --- multiply and accumulate
    int last = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        mbarrier_wait(ring.full + turn.stage, turn.parity);
        multiply_stage(sums, ring, turn.stage, consumer, step > 0);
        wgmma_wait<1>();
        if (step > 0) {
            release(ring.empty + last, blocks);
        }
        last = turn.stage;
        turn.next();
    }
    wgmma_wait<0>(sums);
    release(ring.empty + last, blocks);
}

__device__ inline float finish(float sum, const SCALAR* bias, int col)
{
    // --- bias, --- activation
    return activate(BIAS ? sum + static_cast<float>(bias[col]) : sum);
}

// The finished numbers of a warpgroup's sums, straight to out (rows, cols) from `row` and `col` on.
__device__ inline void store_sums(const float (&sums)[SUMS], const SCALAR* bias, OUT* out, int row, int col, int rows,
                                  int cols)
{
    // --- store
    const int thread = threadIdx.x % WARPGROUP;
#pragma unroll
    for (int i = 0; i < SUMS; i += VECTOR) {
        const int at_row = row + wgmma_row(thread, i), at_col = col + wgmma_col(thread, i);
        if (at_row < rows && at_col < cols) {
            Vector<float, VECTOR> wide;
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                wide.values[j] = finish(sums[i + j], bias, at_col + j);
            }
            *reinterpret_cast<Packed<OUT, VECTOR>*>(out + static_cast<long long>(at_row) * cols + at_col) =
                narrow<OUT>(wide);
        }
    }
}

// What a warp stages for a TMA store: its 16 rows, 128 bytes of each.
constexpr int BUFFER_BYTES = 16 * 128;

// The same through shared memory: `buffers` are COUNT ones of this warp, of which TMA copies one while the next is written.
// Nobody waits for the last copies; tma_store_wait<0> does.
template <int COUNT>
__device__ inline void store_sums_staged(const float (&sums)[SUMS], const SCALAR* bias, const TensorMap& out,
                                         unsigned char* buffers, int row, int col, int cols)
{
    // --- store
    constexpr int SPAN = 128 / sizeof(OUT), CHUNKS = TILE_N / SPAN;
    static_assert(CHUNKS % COUNT == 0, "every tile starts with the same buffer");
    const int thread = threadIdx.x % 32;
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        unsigned char* buffer = buffers + chunk % COUNT * BUFFER_BYTES;
        if (thread == 0) {
            tma_store_wait<COUNT - 1>();  // what the buffer held before is copied
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < SPAN / 2; i += 2) {
            const int at_col = wgmma_col(thread, i), first = col + chunk * SPAN + at_col;
            Vector<float, 2> wide;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                wide.values[j] = finish(sums[chunk * (SPAN / 2) + i + j], bias, min(first + j, cols - 1));
            }
            const int place = swizzled(wgmma_row(thread, i), at_col * static_cast<int>(sizeof(OUT)));
            *reinterpret_cast<Packed<OUT, 2>*>(buffer + place) = narrow<OUT>(wide);
        }
        tma_store_fence();
        __syncwarp();
        if (thread == 0) {
            tma_store(out, buffer, col + chunk * SPAN, row);
        }
    }
}
