// Matmul, rung 9: as many blocks as run at once take tile after tile; out leaves through TMA while the next tile comes in.
//
// contract  reference/matmul.py
// mapping   one block a multiprocessor takes (TILE_M, TILE_N) tiles in the order of include/tile_order.cuh. One warpgroup
//           fills the ring, and goes on to the next tile at once; each of CONSUMERS others multiplies 64 rows, in registers,
//           whose warps stage them in BUFFERS buffers each for TMA to store
// traffic   (TILE_M + TILE_N) K elements read for each tile; GROUP rows of tiles at a time, so that what one block reads
//           another finds in L2; out written once
// limits    as rung 7's; where rows of out are no multiple of 16 bytes apart, BUFFERS is 0 and threads store them
//
// Defines: as in include/hopper_tile.cuh, and GROUP, BUFFERS.

#include "hopper_tile.cuh"
#include "tile_order.cuh"

extern "C" __global__ __launch_bounds__((CONSUMERS + 1) * WARPGROUP, 1)
void matmul(const __grid_constant__ TensorMap left, const __grid_constant__ TensorMap right,
            const __grid_constant__ TensorMap out_map, const SCALAR* __restrict__ bias, OUT* __restrict__ out, int rows,
            int cols, int depth)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const Stages ring(memory, CONSUMERS * 4 * BUFFERS * BUFFER_BYTES);
    const int consumer = warpgroup();
    const int steps = (depth + TILE_K - 1) / TILE_K;
    const int tile_rows = (rows + TILE_M - 1) / TILE_M, tile_cols = (cols + TILE_N - 1) / TILE_N;
    if (threadIdx.x == 0) {
        ring.init(4 * CONSUMERS);
    }
    __syncthreads();
    Turn<STAGES> turn;

    if (consumer == CONSUMERS) {
        registers_give<REGISTERS_LOADING>();

        // --- load A and B
        if (threadIdx.x % WARPGROUP == 0) {
            for (int tile = blockIdx.x; tile < tile_rows * tile_cols; tile += gridDim.x) {
                const Place at = tile_place<GROUP>(tile, tile_rows, tile_cols);
                for (int step = 0; step < steps; ++step, turn.next()) {
                    mbarrier_wait(ring.empty + turn.stage, turn.parity ^ 1);
                    load_stage(ring, turn.stage, left, right, at.row * TILE_M, at.col * TILE_N, step * TILE_K);
                }
            }
        }
    } else {
        registers_take<REGISTERS_MULTIPLYING>();
        const int warp = threadIdx.x / 32;
        unsigned char* buffers = memory + STAGES * STAGE_BYTES + warp * BUFFERS * BUFFER_BYTES;

        for (int tile = blockIdx.x; tile < tile_rows * tile_cols; tile += gridDim.x) {
            const Place at = tile_place<GROUP>(tile, tile_rows, tile_cols);
            const int row = at.row * TILE_M + consumer * 64, col = at.col * TILE_N;

            // --- multiply and accumulate
            float sums[SUMS];  // (64, TILE_N) of a warpgroup
            multiply_tile(sums, ring, turn, steps, consumer);

            // --- bias, --- activation, --- store
            if constexpr (BUFFERS > 0) {
                store_sums_staged<BUFFERS>(sums, bias, out_map, buffers, row + warp % 4 * 16, col, cols);
            } else {
                store_sums(sums, bias, out, row, col, rows, cols);
            }
        }
        tma_store_wait<0>();
    }
}
