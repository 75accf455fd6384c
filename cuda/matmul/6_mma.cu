// Matmul, rung 6: tensor cores fed by ldmatrix out of swizzled stages that cp.async fills.
//
// contract  reference/matmul.py; float32 as TF32
// mapping   a block owns a (TILE_M, TILE_N) tile of out, each of its warps a (WARP_M, WARP_N) part of it in registers. A
//           stage holds 128 bytes of K of A's rows and B's columns, in rows of 128 bytes along whichever axis is
//           contiguous; its pieces of 16 bytes lie swizzled, so that neither copies nor ldmatrix meet bank conflicts.
//           Copies run STAGES - 1 stages ahead
// traffic   (TILE_M + TILE_N) K elements read for each tile, most of them from L2; out written once
// limits    sm_80; one contiguous axis in each operand. TF32 with an axis other than K contiguous is read word by word, two
//           at a time from one bank
//
// Defines: SCALAR, A_K_MAJOR, B_K_MAJOR (0 or 1: K is the contiguous axis), A_VECTOR, B_VECTOR (elements of a copy; lines
// are made of whole ones), TILE_M, TILE_N, WARP_M, WARP_N, STAGES, and those of include/portable_tile.cuh.

#include "async_copy.cuh"
#include "mma.cuh"
#include "portable_tile.cuh"
#include "tile_layout.cuh"

constexpr int WARPS_N = TILE_N / WARP_N, THREADS = TILE_M / WARP_M * WARPS_N * 32;
constexpr int SPAN = 128 / sizeof(SCALAR);  // elements of a stage's row: of K, or of M or N
constexpr int A_BYTES = TILE_M * 128, STAGE_BYTES = A_BYTES + TILE_N * 128;

// Starts the copies of this thread's share of ROWS rows of A, or columns of B, from `row` and `k` on; zeros beyond its end.
// Along M or N a stage's rows come SPAN of K at a time, those of the first SPAN elements first.
template <int ROWS, bool K_MAJOR, int VECTOR>
__device__ inline void load_operand(unsigned char* stage, const SCALAR* operand, long long pitch, int row, int k, int rows,
                                    int depth)
{
    // --- load A and B
    using Copy = Packed<SCALAR, VECTOR>;
    constexpr int COPIES = SPAN / VECTOR, STEP = THREADS / COPIES;  // of a line; lines that all threads copy at once
    constexpr int LINES = K_MAJOR ? ROWS : SPAN;
    const int line = threadIdx.x / COPIES, near = threadIdx.x % COPIES * VECTOR;
    const SCALAR* from = operand + (K_MAJOR ? (row + line) * pitch + (k + near) : (k + line) * pitch + (row + near));
#pragma unroll 4
    for (int i = 0; i < LINES; i += STEP, from += STEP * pitch) {
#pragma unroll
        for (int j = 0; j < ROWS; j += LINES) {
            const bool inside = K_MAJOR ? row + line + i < rows && k + near < depth
                                        : row + near + j < rows && k + line + i < depth;
            unsigned char* to = stage + swizzled(j + line + i, near * static_cast<int>(sizeof(SCALAR)));
            async_copy_or_zero(reinterpret_cast<Copy*>(to), reinterpret_cast<const Copy*>(from + j), inside);
        }
    }
}

// A lane's words of 16 rows by 32 bytes of K, in the order in which mma takes them as neighbours: of A rows 0 and 8 of the
// first 16 bytes, then of the next; of B both 16 bytes of column 0, then of column 8.
template <bool IS_A, bool K_MAJOR>
__device__ inline void load_fragment(unsigned (&words)[4], const unsigned char* operand, int row, int step)
{
    // --- multiply and accumulate
    const auto row_of = [](int matrix) { return (IS_A ? matrix % 2 : matrix / 2) * 8; };
    const auto half_of = [](int matrix) { return IS_A ? matrix / 2 : matrix % 2; };
    const int lane = threadIdx.x % 32;
    if constexpr (K_MAJOR) {
        const int at = row + row_of(lane / 8) + lane % 8;
        load_matrices<false>(words, operand + swizzled(at, step * 32 + half_of(lane / 8) * 16));
    } else if constexpr (sizeof(SCALAR) == 2) {
        const int at = row + row_of(lane / 8), k = step * 16 + half_of(lane / 8) * 8 + lane % 8;
        load_matrices<true>(words, operand + swizzled(at / SPAN * SPAN + k, at % SPAN * 2));
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = row + row_of(i) + lane / 4, k = step * 8 + half_of(i) * 4 + lane % 4;
            words[i] = *reinterpret_cast<const unsigned*>(operand + swizzled(at / SPAN * SPAN + k, at % SPAN * 4));
        }
    }
}

extern "C" __global__ __launch_bounds__(THREADS, 512 / THREADS)
void matmul(const SCALAR* __restrict__ a, const SCALAR* __restrict__ b, const SCALAR* __restrict__ bias,
            OUT* __restrict__ out, int m, int n, int k, long long a_pitch, long long b_pitch)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const Place tile = block_tile<TILE_M, TILE_N>(m, n);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_row = warp / WARPS_N * WARP_M, warp_col = warp % WARPS_N * WARP_N;
    const int steps = (k + SPAN - 1) / SPAN;

    // --- load A and B
    const auto load = [&](int step) {
        if (step < steps) {
            unsigned char* stage = memory + step % STAGES * STAGE_BYTES;
            load_operand<TILE_M, A_K_MAJOR, A_VECTOR>(stage, a, a_pitch, tile.row, step * SPAN, m, k);
            load_operand<TILE_N, B_K_MAJOR, B_VECTOR>(stage + A_BYTES, b, b_pitch, tile.col, step * SPAN, n, k);
        }
        async_copy_commit();  // a group for each step, copies or not
    };
#pragma unroll 1
    for (int step = 0; step < STAGES - 1; ++step) {
        load(step);
    }

    // --- multiply and accumulate
    float sums[WARP_M / 16][WARP_N / 8][4] = {};
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        async_copy_wait<STAGES - 2>();
        __syncthreads();  // the stage is full for all, and the one before is read
        load(step + STAGES - 1);
        const unsigned char* stage = memory + step % STAGES * STAGE_BYTES;
#pragma unroll 2
        for (int part = 0; part < 4; ++part) {
            unsigned right[WARP_N / 16][4];
#pragma unroll
            for (int j = 0; j < WARP_N / 16; ++j) {
                load_fragment<false, B_K_MAJOR>(right[j], stage + A_BYTES, warp_col + j * 16, part);
            }
#pragma unroll
            for (int i = 0; i < WARP_M / 16; ++i) {
                unsigned left[4];
                load_fragment<true, A_K_MAJOR>(left, stage, warp_row + i * 16, part);
#pragma unroll
                for (int j = 0; j < WARP_N / 8; ++j) {
                    mma(SCALAR(), sums[i][j], left, right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
                }
            }
        }
    }

    // --- bias, --- activation, --- store
#pragma unroll
    for (int i = 0; i < WARP_M / 16; ++i) {
#pragma unroll
        for (int j = 0; j < WARP_N / 8; ++j) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float pair[2] = {sums[i][j][2 * half], sums[i][j][2 * half + 1]};
                store_run(pair, bias, out, tile.row + warp_row + i * 16 + half * 8 + lane / 4,
                          tile.col + warp_col + j * 8 + lane % 4 * 2, m, n);
            }
        }
    }
}
