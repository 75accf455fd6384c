// Matmul, rung 7: TMA brings tiles into a ring in shared memory, from where warpgroups multiply them.
//
// contract  reference/matmul.py
// mapping   one block owns a (TILE_M, TILE_N) tile of out, each of its CONSUMERS warpgroups 64 rows of it, in registers; one
//           thread starts the copies, STAGES - 1 stages ahead, when all are done with the stage that they will overwrite
// traffic   (TILE_M + TILE_N) K elements read for each tile, most of them from L2; out written once
// limits    sm_90a; rows of a and b a multiple of 16 bytes apart, from a multiple of 16 on; float32 as TF32, with K last in
//           both; K of 1 or more
//
// Defines: as in include/hopper_tile.cuh.

#include "hopper_tile.cuh"

extern "C" __global__ __launch_bounds__(CONSUMERS * WARPGROUP)
void matmul(const __grid_constant__ TensorMap left, const __grid_constant__ TensorMap right,
            const SCALAR* __restrict__ bias, OUT* __restrict__ out, int rows, int cols, int depth)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const Stages ring(memory, 0);
    const int tile_rows = (rows + TILE_M - 1) / TILE_M, consumer = warpgroup();
    const int row = blockIdx.x % tile_rows * TILE_M, col = blockIdx.x / tile_rows * TILE_N;
    const int steps = (depth + TILE_K - 1) / TILE_K;
    if (threadIdx.x == 0) {
        ring.init(1);
    }
    __syncthreads();

    // --- load A and B
    const auto load = [&](int step) {
        if (threadIdx.x == 0 && step < steps) {
            load_stage(ring, step % STAGES, left, right, row, col, step * TILE_K);
        }
    };
    for (int step = 0; step < STAGES - 1; ++step) {
        load(step);
    }

    // --- multiply and accumulate
    float sums[SUMS];  // (64, TILE_N) of a warpgroup
    Turn<STAGES> turn;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        mbarrier_wait(ring.full + turn.stage, turn.parity);
        multiply_stage(sums, ring, turn.stage, consumer, step > 0);
        wgmma_wait<1>();
        __syncthreads();  // the stage before is read
        load(step + STAGES - 1);
        turn.next();
    }
    wgmma_wait<0>(sums);

    // --- bias, --- activation, --- store
    store_sums(sums, bias, out, row + consumer * 64, col, rows, cols);
}
