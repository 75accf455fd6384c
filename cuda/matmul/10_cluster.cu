// Matmul, rung 10: blocks of a cluster, one below the other, read the same columns of B once for all of them.
//
// contract  reference/matmul.py
// mapping   as rung 9's, by clusters of CLUSTER blocks: a cluster takes (CLUSTER TILE_M, TILE_N) tiles, a block TILE_M rows of
//           one. Each loads its own part of A, and of B's columns one part in CLUSTER into the shared memory of all; so a
//           stage may be filled again when the warps of every block have read it
// traffic   (TILE_M + TILE_N / CLUSTER) K elements read for each block's tile; out written once
// limits    as rung 9's
//
// Defines: as in include/hopper_tile.cuh, and GROUP, BUFFERS, CLUSTER (2 or 4).

#include "cluster.cuh"
#include "hopper_tile.cuh"
#include "tile_order.cuh"

extern "C" __global__ CLUSTER_DIMS __launch_bounds__((CONSUMERS + 1) * WARPGROUP, 1)
void matmul(const __grid_constant__ TensorMap left, const __grid_constant__ TensorMap right,
            const __grid_constant__ TensorMap out_map, const SCALAR* __restrict__ bias, OUT* __restrict__ out, int rows,
            int cols, int depth)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const Ring ring(memory, CONSUMERS * BUFFERS * COLUMN_BYTES);
    const int consumer = threadIdx.x / WARPGROUP, rank = blockIdx.x % CLUSTER;
    const int cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    const int steps = (depth + TILE_K - 1) / TILE_K;
    const int tile_rows = (rows + CLUSTER * TILE_M - 1) / (CLUSTER * TILE_M), tile_cols = (cols + TILE_N - 1) / TILE_N;
    if (threadIdx.x == 0) {
        ring.init(4 * CONSUMERS * CLUSTER);
    }
    cluster_sync();
    Turn turn;

    if (consumer == CONSUMERS) {
        registers_give<REGISTERS_LOADING>();

        // --- load A and B
        if (threadIdx.x % WARPGROUP == 0) {
            constexpr int PART = TILE_N / CLUSTER;
            for (int tile = cluster; tile < tile_rows * tile_cols; tile += clusters) {
                const Place at = tile_place<GROUP>(tile, tile_rows, tile_cols);
                const int row = (at.row * CLUSTER + rank) * TILE_M, col = at.col * TILE_N + rank * PART;
                for (int step = 0; step < steps; ++step, turn.next()) {
                    Barrier* full = ring.full + turn.stage;
                    mbarrier_wait(ring.empty + turn.stage, turn.parity ^ 1);
                    mbarrier_expect(full, STAGE_BYTES);
                    load_operand<LEFT_K_MAJOR, TILE_M>(ring.left(turn.stage), left, row, step * TILE_K, full);
                    load_operand<RIGHT_K_MAJOR, PART, CLUSTER>(ring.right(turn.stage) + rank * PART * 128, right, col,
                                                               step * TILE_K, full);
                }
            }
        }
        __syncwarp();
    } else {
        registers_take<REGISTERS_MULTIPLYING>();
        unsigned char* buffers = memory + STAGES * STAGE_BYTES + consumer * BUFFERS * COLUMN_BYTES;

        for (int tile = cluster; tile < tile_rows * tile_cols; tile += clusters) {
            const Place at = tile_place<GROUP>(tile, tile_rows, tile_cols);
            const int row = (at.row * CLUSTER + rank) * TILE_M + consumer * 64, col = at.col * TILE_N;

            // --- multiply and accumulate
            float sums[SUMS];  // (64, TILE_N) of a warpgroup
            multiply_tile<CLUSTER>(sums, ring, turn, steps, consumer);

            // --- bias, activation, store
            if constexpr (BUFFERS > 0) {
                store_sums_staged<BUFFERS>(sums, bias, out_map, buffers, row, col, cols);
            } else {
                store_sums(sums, bias, out, row, col, rows, cols);
            }
        }
        tma_store_wait<0>();
    }
    cluster_sync();  // no block leaves while another may still arrive at its barriers
}
