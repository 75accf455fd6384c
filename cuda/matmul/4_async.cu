// Matmul, rung 4: cp.async fills a ring of stages while the sums in registers grow; float32 in IEEE arithmetic.
//
// contract  reference/matmul.py
// mapping   a block owns a (TILE_M, TILE_N) tile of out, a thread (8, COLS) sums of it. A stage holds TILE_K rows of K, each with
//           TILE_M rows of A and TILE_N columns of B side by side. What is contiguous along M or N is copied by vectors, what is
//           contiguous along K word by word, transposed on the way. Copies run STAGES - 1 stages ahead
// traffic   (TILE_M + TILE_N) K elements read for each tile, most of them from L2; out written once
// limits    sm_80; float32; one contiguous axis in each operand
//
// Defines: A_K_MAJOR, B_K_MAJOR (0 or 1: K is the contiguous axis), A_VECTOR, B_VECTOR (elements of a copy where it is not;
// lines are made of whole ones), STAGES, and those of include/register_tile.cuh.

#include "async_copy.cuh"
#include "register_tile.cuh"

struct Stage {
    Slices<TILE_M> left;
    Slices<TILE_N> right;
};

// Starts the copies of this thread's share of ROWS rows of A, or columns of B, from `row` and `k` on; zeros beyond its end.
template <int ROWS, bool K_MAJOR, int VECTOR>
__device__ inline void load_operand(Slices<ROWS>& slices, const float* operand, long long pitch, int row, int k, int rows,
                                    int depth)
{
    // --- load A and B
    if constexpr (K_MAJOR) {
        // A warp takes 4 rows of 8: whole sectors of memory, and 32 banks.
        const int thread_row = threadIdx.x / 8, thread_k = threadIdx.x % 8;
        const float* from = operand + (row + thread_row) * pitch + (k + thread_k);
#pragma unroll 2
        for (int i = 0; i < ROWS; i += THREADS / 8, from += THREADS / 8 * pitch) {
#pragma unroll
            for (int j = 0; j < TILE_K; j += 8) {
                const bool inside = row + thread_row + i < rows && k + thread_k + j < depth;
                async_copy_or_zero(&slices[thread_k + j][thread_row + i], from + j, inside);
            }
        }
    } else {
        using Copy = Packed<float, VECTOR>;
        constexpr int COPIES = ROWS / VECTOR, STEP = THREADS / COPIES;  // of a row of K; rows at once
        const int thread_row = threadIdx.x % COPIES * VECTOR, thread_k = threadIdx.x / COPIES;
        const float* from = operand + (k + thread_k) * pitch + (row + thread_row);
#pragma unroll
        for (int i = 0; i < TILE_K; i += STEP, from += STEP * pitch) {
            const bool inside = row + thread_row < rows && k + thread_k + i < depth;
            async_copy_or_zero(reinterpret_cast<Copy*>(&slices[thread_k + i][thread_row]),
                               reinterpret_cast<const Copy*>(from), inside);
        }
    }
}

extern "C" __global__ __launch_bounds__(THREADS, RESIDENT / THREADS)
void matmul(const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ bias,
            OUT* __restrict__ out, int m, int n, int k, long long a_pitch, long long b_pitch)
{
    extern __shared__ __align__(16) unsigned char memory[];
    Stage* stages = reinterpret_cast<Stage*>(memory);
    const Place tile = block_tile<TILE_M, TILE_N>(m, n);
    const int steps = (k + TILE_K - 1) / TILE_K;

    // --- load A and B
    const auto load = [&](int step) {
        if (step < steps) {
            Stage& stage = stages[step % STAGES];
            load_operand<TILE_M, A_K_MAJOR, A_VECTOR>(stage.left, a, a_pitch, tile.row, step * TILE_K, m, k);
            load_operand<TILE_N, B_K_MAJOR, B_VECTOR>(stage.right, b, b_pitch, tile.col, step * TILE_K, n, k);
        }
        async_copy_commit();  // a group for each step, copies or not
    };
#pragma unroll 1
    for (int step = 0; step < STAGES - 1; ++step) {
        load(step);
    }

    // --- multiply and accumulate
    RegisterTile mine;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        async_copy_wait<STAGES - 2>();
        __syncthreads();  // the stage is full for all, and the one before is read
        load(step + STAGES - 1);
        const Stage& stage = stages[step % STAGES];
        mine.multiply(stage.left, stage.right);
    }

    // --- bias, --- activation, --- store
    mine.store(bias, out, tile, m, n);
}
