// Matmul, rung 11: for few tiles, blocks of a cluster share one along K; for few rows, A and B change places.
//
// contract  reference/matmul.py
// mapping   a cluster of CLUSTER blocks owns a (TILE_M, TILE_N) tile, each block a part of K, which one warp loads. Their
//           sums meet in distributed shared memory, where each block adds up a part of the tile, in the blocks' order, and
//           finishes it. With SWAP out's transpose is computed, B^T A^T: out's columns fill the 64 rows of a warpgroup,
//           out's few rows its columns
// traffic   (TILE_M + TILE_N) K elements read for each tile; of a few rows, B is nearly all there is to read
// limits    as rung 7's; at most as many blocks a cluster as K has stages
//
// Defines: as in include/hopper_tile.cuh, and GROUP, CLUSTER, SWAP (0 or 1), BLOCKS (of a multiprocessor).

#include "cluster.cuh"
#include "hopper_tile.cuh"
#include "named_barrier.cuh"
#include "tile_order.cuh"

// rows, cols: of what the tensor cores compute.
extern "C" __global__ CLUSTER_DIMS __launch_bounds__(CONSUMERS * WARPGROUP + 32, BLOCKS)
void matmul(const __grid_constant__ TensorMap left, const __grid_constant__ TensorMap right,
            const SCALAR* __restrict__ bias, OUT* __restrict__ out, int rows, int cols, int depth)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const Stages ring(memory, 0);
    const int consumer = warpgroup(), thread = threadIdx.x % WARPGROUP, rank = blockIdx.x % CLUSTER;
    const int steps = (depth + TILE_K - 1) / TILE_K;
    const int first = static_cast<long long>(steps) * rank / CLUSTER;
    const int last = static_cast<long long>(steps) * (rank + 1) / CLUSTER;
    const int tile_rows = (rows + TILE_M - 1) / TILE_M, tile_cols = (cols + TILE_N - 1) / TILE_N;
    const Place at = tile_place<GROUP>(blockIdx.x / CLUSTER, tile_rows, tile_cols);
    const int row = at.row * TILE_M, col = at.col * TILE_N;
    if (threadIdx.x == 0) {
        ring.init(4 * CONSUMERS);
    }
    __syncthreads();
    Turn<STAGES> turn;
    float2* parts = reinterpret_cast<float2*>(memory);  // (CONSUMERS, SUMS / 2, WARPGROUP), in the place of the stages

    if (consumer == CONSUMERS) {
        // --- load A and B
        if (thread == 0) {
            for (int step = first; step < last; ++step, turn.next()) {
                mbarrier_wait(ring.empty + turn.stage, turn.parity ^ 1);
                load_stage(ring, turn.stage, left, right, row, col, step * TILE_K);
            }
        }
        __syncwarp();
    } else {
        // --- multiply and accumulate
        float sums[SUMS];  // (64, TILE_N) of a warpgroup
        multiply_tile(sums, ring, turn, last - first, consumer);
        named_barrier_sync(1, CONSUMERS * WARPGROUP);  // all have read the stages
#pragma unroll
        for (int i = 0; i < SUMS; i += 2) {
            parts[(consumer * SUMS + i) / 2 * WARPGROUP + thread] = make_float2(sums[i], sums[i + 1]);
        }
    }
    cluster_sync();
    if (consumer < CONSUMERS) {
        for (int i = 2 * rank; i < SUMS; i += 2 * CLUSTER) {
            float2* const place = parts + (consumer * SUMS + i) / 2 * WARPGROUP + thread;
            float sum[2] = {};
#pragma unroll
            for (int block = 0; block < CLUSTER; ++block) {
                const float2 part = *cluster_place(place, block);
                sum[0] += part.x;
                sum[1] += part.y;
            }
            const int at_row = row + consumer * 64 + wgmma_row(thread, i);

            // --- bias, --- activation, --- store
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int at_col = col + wgmma_col(thread, i + j);
                if (at_row < rows && at_col < cols) {
                    const long long place = SWAP ? static_cast<long long>(at_col) * rows + at_row
                                                 : static_cast<long long>(at_row) * cols + at_col;
                    out[place] = static_cast<OUT>(finish(sum[j], bias, SWAP ? at_row : at_col));
                }
            }
        }
    }
    cluster_sync();  // no block leaves while another may still read its sums
}
