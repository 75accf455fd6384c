// Matmul, rung 8: a warpgroup that only loads, others that only multiply.
//
// contract  reference/matmul.py
// mapping   one block owns a (TILE_M, TILE_N) tile of out, each of CONSUMERS warpgroups 64 rows of it, in registers, most of
//           which they take over from one more warpgroup. A thread of that one fills the stages of the ring as they come
//           free; nobody waits for the whole block
// traffic   (TILE_M + TILE_N) K elements read for each tile, most of them from L2; out written once
// limits    as rung 7's
//
// Defines: as in include/hopper_tile.cuh.

#include "hopper_tile.cuh"

extern "C" __global__ __launch_bounds__((CONSUMERS + 1) * WARPGROUP, 1)
void matmul(const __grid_constant__ TensorMap left, const __grid_constant__ TensorMap right,
            const SCALAR* __restrict__ bias, OUT* __restrict__ out, int rows, int cols, int depth)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const Stages ring(memory, 0);
    const int tile_rows = (rows + TILE_M - 1) / TILE_M, consumer = warpgroup();
    const int row = blockIdx.x % tile_rows * TILE_M, col = blockIdx.x / tile_rows * TILE_N;
    const int steps = (depth + TILE_K - 1) / TILE_K;
    if (threadIdx.x == 0) {
        ring.init(4 * CONSUMERS);  // a warp's arrival each
    }
    __syncthreads();
    Turn<STAGES> turn;

    if (consumer == CONSUMERS) {
        registers_give<REGISTERS_LOADING>();

        // --- load A and B
        if (threadIdx.x % WARPGROUP == 0) {
            for (int step = 0; step < steps; ++step, turn.next()) {
                mbarrier_wait(ring.empty + turn.stage, turn.parity ^ 1);
                load_stage(ring, turn.stage, left, right, row, col, step * TILE_K);
            }
        }
    } else {
        registers_take<REGISTERS_MULTIPLYING>();

        // --- multiply and accumulate
        float sums[SUMS];  // (64, TILE_N) of a warpgroup
        multiply_tile(sums, ring, turn, steps, consumer);

        // --- bias, --- activation, --- store
        store_sums(sums, bias, out, row + consumer * 64, col, rows, cols);
    }
}
