// Matmul, rung 3: a thread keeps (8, 8) sums in registers, so that each number it reads from shared memory serves eight.
//
// contract  reference/matmul.py
// mapping   a block owns a (TILE_M, TILE_N) tile of out and goes along K by TILE_K. Vectors of A and B are loaded along
//           whichever axis is contiguous, and lie as float32 in shared memory, K by rows of A or columns of B
// traffic   (TILE_M + TILE_N) K elements read for each tile, most of them from L2; out written once
// limits    any GPU; one contiguous axis in each operand; nothing is loaded while the block multiplies
//
// Defines: SCALAR, A_K_MAJOR, B_K_MAJOR (0 or 1: K is the contiguous axis), A_VECTOR, B_VECTOR (elements of a load; lines are
// made of whole ones), and those of include/register_tile.cuh.

#include "register_tile.cuh"

// ROWS rows of A, or columns of B, from `row` and `k` on; zeros beyond its end.
template <int ROWS, bool K_MAJOR, int VECTOR>
__device__ inline void load_operand(Slices<ROWS>& slices, const SCALAR* operand, long long pitch, int row, int k, int rows,
                                    int depth)
{
    // --- load A and B
    constexpr int LINE = (K_MAJOR ? TILE_K : ROWS) / VECTOR;
#pragma unroll 1
    for (int load = threadIdx.x; load < TILE_K * ROWS / VECTOR; load += THREADS) {
        const int near = load % LINE * VECTOR, far = load / LINE;
        const int near_row = K_MAJOR ? far : near, near_k = K_MAJOR ? near : far;
        const int at_row = row + near_row, at_k = k + near_k;
        const long long place = K_MAJOR ? at_row * pitch + at_k : at_k * pitch + at_row;
        Packed<SCALAR, VECTOR> packed = filled<SCALAR, VECTOR>(0.0f);
        if (at_row < rows && at_k < depth) {
            packed = *reinterpret_cast<const Packed<SCALAR, VECTOR>*>(operand + place);
        }
        const auto wide = widen(packed);
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) {
            slices[K_MAJOR ? near_k + i : near_k][K_MAJOR ? near_row : near_row + i] = wide.values[i];
        }
    }
}

extern "C" __global__ __launch_bounds__(THREADS, RESIDENT / THREADS)
void matmul(const SCALAR* __restrict__ a, const SCALAR* __restrict__ b, const SCALAR* __restrict__ bias,
            OUT* __restrict__ out, int m, int n, int k, long long a_pitch, long long b_pitch)
{
    __shared__ __align__(16) Slices<TILE_M> left;
    __shared__ __align__(16) Slices<TILE_N> right;
    const Place tile = block_tile<TILE_M, TILE_N>(m, n);
    RegisterTile mine;
    for (int start = 0; start < k; start += TILE_K) {
        // --- load A and B
        load_operand<TILE_M, A_K_MAJOR, A_VECTOR>(left, a, a_pitch, tile.row, start, m, k);
        load_operand<TILE_N, B_K_MAJOR, B_VECTOR>(right, b, b_pitch, tile.col, start, n, k);
        __syncthreads();

        // --- multiply and accumulate
        mine.multiply(left, right);
        __syncthreads();
    }

    // --- bias, --- activation, --- store
    mine.store(bias, out, tile, m, n);
}
