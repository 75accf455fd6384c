// Matmul, rung 5: tensor cores through C++'s warp matrix functions.
//
// contract  reference/matmul.py
// mapping   a block owns a (TILE_M, TILE_N) tile of out, each of its warps a (WARP_M, WARP_N) part of it in fragments of
//           16 by 16. Tiles of A and B are loaded along whichever axis is contiguous and lie so in shared memory. Which
//           thread has which sum is nobody's business: they leave by way of shared memory, 16 by 16 of a warp at a time
// traffic   (TILE_M + TILE_N) K elements read for each tile, most of them from L2; out written once
// limits    sm_80; float16 and bfloat16; one contiguous axis in each operand; nothing is loaded while the block multiplies
//
// Defines: SCALAR, A_K_MAJOR, B_K_MAJOR (0 or 1: K is the contiguous axis), A_VECTOR, B_VECTOR (elements of a load; lines are
// made of whole ones), TILE_M, TILE_N, WARP_M, WARP_N, and those of include/portable_tile.cuh.

#include <mma.h>

#include "portable_tile.cuh"

namespace wmma = nvcuda::wmma;

constexpr int WARPS_N = TILE_N / WARP_N, THREADS = TILE_M / WARP_M * WARPS_N * 32;
constexpr int TILE_K = 32, SIDE = 16;  // SIDE: of a fragment

// ROWS rows of A, or columns of B, in shared memory: lines along K or across it, 8 elements more to spread them over banks.
template <int ROWS, bool K_MAJOR>
struct Slab {
    static constexpr int LINE = K_MAJOR ? TILE_K : ROWS, LINES = K_MAJOR ? ROWS : TILE_K, PITCH = LINE + 8;
    alignas(32) SCALAR elements[LINES * PITCH];

    __device__ const SCALAR* at(int row, int k) const { return elements + (K_MAJOR ? row * PITCH + k : k * PITCH + row); }
};

// From `row` and `k` on; zeros beyond the operand's end.
template <int VECTOR, int ROWS, bool K_MAJOR>
__device__ inline void load_operand(Slab<ROWS, K_MAJOR>& slab, const SCALAR* operand, long long pitch, int row, int k,
                                    int rows, int depth)
{
    // --- load A and B
    using Load = Packed<SCALAR, VECTOR>;
    constexpr int LOADS = Slab<ROWS, K_MAJOR>::LINE / VECTOR;  // of a line
#pragma unroll 2
    for (int load = threadIdx.x; load < LOADS * Slab<ROWS, K_MAJOR>::LINES; load += THREADS) {
        const int near = load % LOADS * VECTOR, line = load / LOADS;
        const int at_row = row + (K_MAJOR ? line : near), at_k = k + (K_MAJOR ? near : line);
        const long long place = K_MAJOR ? at_row * pitch + at_k : at_k * pitch + at_row;
        Load packed = filled<SCALAR, VECTOR>(0.0f);
        if (at_row < rows && at_k < depth) {
            packed = *reinterpret_cast<const Load*>(operand + place);
        }
        *reinterpret_cast<Load*>(slab.elements + line * Slab<ROWS, K_MAJOR>::PITCH + near) = packed;
    }
}

template <bool BY_ROWS>
struct Layout {
    using Type = wmma::col_major;
};

template <>
struct Layout<true> {
    using Type = wmma::row_major;
};

extern "C" __global__ __launch_bounds__(THREADS, 512 / THREADS)
void matmul(const SCALAR* __restrict__ a, const SCALAR* __restrict__ b, const SCALAR* __restrict__ bias,
            OUT* __restrict__ out, int m, int n, int k, long long a_pitch, long long b_pitch)
{
    using Left = Slab<TILE_M, A_K_MAJOR>;
    using Right = Slab<TILE_N, B_K_MAJOR>;
    __shared__ Left left;
    __shared__ Right right;
    __shared__ __align__(32) float staged[THREADS / 32][SIDE * SIDE];
    const Place tile = block_tile<TILE_M, TILE_N>(m, n);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_row = warp / WARPS_N * WARP_M, warp_col = warp % WARPS_N * WARP_N;

    wmma::fragment<wmma::accumulator, SIDE, SIDE, SIDE, float> sums[WARP_M / SIDE][WARP_N / SIDE];
#pragma unroll
    for (int i = 0; i < WARP_M / SIDE; ++i) {
#pragma unroll
        for (int j = 0; j < WARP_N / SIDE; ++j) {
            wmma::fill_fragment(sums[i][j], 0.0f);
        }
    }
#pragma unroll 1
    for (int start = 0; start < k; start += TILE_K) {
        // --- load A and B
        load_operand<A_VECTOR>(left, a, a_pitch, tile.row, start, m, k);
        load_operand<B_VECTOR>(right, b, b_pitch, tile.col, start, n, k);
        __syncthreads();

        // --- multiply and accumulate
#pragma unroll
        for (int part = 0; part < TILE_K; part += SIDE) {
            wmma::fragment<wmma::matrix_b, SIDE, SIDE, SIDE, SCALAR, Layout<!B_K_MAJOR>::Type> cols[WARP_N / SIDE];
#pragma unroll
            for (int j = 0; j < WARP_N / SIDE; ++j) {
                wmma::load_matrix_sync(cols[j], right.at(warp_col + j * SIDE, part), Right::PITCH);
            }
#pragma unroll
            for (int i = 0; i < WARP_M / SIDE; ++i) {
                wmma::fragment<wmma::matrix_a, SIDE, SIDE, SIDE, SCALAR, Layout<A_K_MAJOR>::Type> rows;
                wmma::load_matrix_sync(rows, left.at(warp_row + i * SIDE, part), Left::PITCH);
#pragma unroll
                for (int j = 0; j < WARP_N / SIDE; ++j) {
                    wmma::mma_sync(sums[i][j], rows, cols[j], sums[i][j]);
                }
            }
        }
        __syncthreads();
    }

    // --- bias, --- activation, --- store
#pragma unroll
    for (int i = 0; i < WARP_M / SIDE; ++i) {
#pragma unroll
        for (int j = 0; j < WARP_N / SIDE; ++j) {
            wmma::store_matrix_sync(staged[warp], sums[i][j], SIDE, wmma::mem_row_major);
            __syncwarp();
            float run[8];
#pragma unroll
            for (int x = 0; x < 8; ++x) {
                run[x] = staged[warp][lane * 8 + x];
            }
            store_run(run, bias, out, tile.row + warp_row + i * SIDE + lane / 2,
                      tile.col + warp_col + j * SIDE + lane % 2 * 8, m, n);
            __syncwarp();  // the sums are read
        }
    }
}
