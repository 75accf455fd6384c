// Matmul, rung 10: blocks of a cluster read the rows of A and the columns of B that they share once for all of them.
//
// contract  reference/matmul.py
// mapping   as rung 9's, by clusters of CLUSTER blocks, ALONG of them side by side and the others below each other: a block
//           has one tile of the cluster's. Of the rows of A that it needs a block loads one part in ALONG, of the columns
//           of B one in DOWN, each into the shared memory of all that need them; so a stage may be filled again when the
//           warps of all these blocks have read it
// traffic   (TILE_M / ALONG + TILE_N / DOWN) K elements read for each block's tile; out written once
// limits    as rung 9's
//
// Defines: as in include/hopper_tile.cuh, and GROUP, BUFFERS, CLUSTER (2 or 4), ALONG.

#include "cluster.cuh"
#include "hopper_tile.cuh"
#include "tile_order.cuh"

constexpr int DOWN = CLUSTER / ALONG;

extern "C" __global__ CLUSTER_DIMS __launch_bounds__((CONSUMERS + 1) * WARPGROUP, 1)
void matmul(const __grid_constant__ TensorMap left, const __grid_constant__ TensorMap right,
            const __grid_constant__ TensorMap out_map, const SCALAR* __restrict__ bias, OUT* __restrict__ out, int rows,
            int cols, int depth)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const Stages ring(memory, CONSUMERS * 4 * BUFFERS * BUFFER_BYTES);
    const int consumer = warpgroup();
    const int cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    const int place_row = blockIdx.x % CLUSTER % DOWN, place_col = blockIdx.x % CLUSTER / DOWN;
    // The blocks that share this one's rows, every DOWN-th, and its columns, DOWN neighbours.
    const unsigned row_blocks = (ALONG == 1 ? 1 : 1 | 1 << DOWN) << place_row;
    const unsigned col_blocks = ((1 << DOWN) - 1) << place_col * DOWN;
    const int steps = (depth + TILE_K - 1) / TILE_K;
    const int tile_rows = (rows + DOWN * TILE_M - 1) / (DOWN * TILE_M);
    const int tile_cols = (cols + ALONG * TILE_N - 1) / (ALONG * TILE_N);
    if (threadIdx.x == 0) {
        ring.init(4 * CONSUMERS * (DOWN + ALONG - 1));
    }
    cluster_sync();
    Turn<STAGES> turn;

    if (consumer == CONSUMERS) {
        registers_give<REGISTERS_LOADING>();

        // --- load A and B
        if (threadIdx.x % WARPGROUP == 0) {
            constexpr int LEFT_PART = TILE_M / ALONG, RIGHT_PART = TILE_N / DOWN;
            const int left_from = place_col * LEFT_PART, right_from = place_row * RIGHT_PART;
            for (int tile = cluster; tile < tile_rows * tile_cols; tile += clusters) {
                const Place at = tile_place<GROUP>(tile, tile_rows, tile_cols);
                const int row = (at.row * DOWN + place_row) * TILE_M, col = (at.col * ALONG + place_col) * TILE_N;
                for (int step = 0; step < steps; ++step, turn.next()) {
                    Barrier* full = ring.full + turn.stage;
                    mbarrier_wait(ring.empty + turn.stage, turn.parity ^ 1);
                    mbarrier_expect(full, STAGE_BYTES);
                    load_operand<LEFT_K_MAJOR, LEFT_PART>(ring.left(turn.stage) + left_from * 128, left, row + left_from,
                                                          step * TILE_K, full, ALONG > 1 ? row_blocks : 0);
                    load_operand<RIGHT_K_MAJOR, RIGHT_PART>(ring.right(turn.stage) + right_from * 128, right,
                                                            col + right_from, step * TILE_K, full,
                                                            DOWN > 1 ? col_blocks : 0);
                }
            }
        }
        __syncwarp();
    } else {
        registers_take<REGISTERS_MULTIPLYING>();
        const int warp = threadIdx.x / 32;
        unsigned char* buffers = memory + STAGES * STAGE_BYTES + warp * BUFFERS * BUFFER_BYTES;

        for (int tile = cluster; tile < tile_rows * tile_cols; tile += clusters) {
            const Place at = tile_place<GROUP>(tile, tile_rows, tile_cols);
            const int row = (at.row * DOWN + place_row) * TILE_M + consumer * 64;
            const int col = (at.col * ALONG + place_col) * TILE_N;

            // --- multiply and accumulate
            float sums[SUMS];  // (64, TILE_N) of a warpgroup
            multiply_tile(sums, ring, turn, steps, consumer, row_blocks | col_blocks);

            // --- bias, --- activation, --- store
            if constexpr (BUFFERS > 0) {
                store_sums_staged<BUFFERS>(sums, bias, out_map, buffers, row + warp % 4 * 16, col, cols);
            } else {
                store_sums(sums, bias, out, row, col, rows, cols);
            }
        }
        tma_store_wait<0>();
    }
    cluster_sync();  // no block leaves while another may still arrive at its barriers
}
