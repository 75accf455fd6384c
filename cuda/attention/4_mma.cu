// Attention, rung 4: tensor cores by mma, and P that never leaves the registers: the sums of one product are laid out as the
// operand of the next.
//
// contract  reference/attention.py
// mapping   one block owns 64 queries of a head, each of its 4 warps 16 of them, and goes along the keys, 64 at a time.
//           Rows lie in shared memory in pieces of 128 bytes, swizzled, so that neither cp.async nor ldmatrix meets bank
//           conflicts. The next tile is on its way while one is computed
// traffic   q and out once; k and v once for every 64 queries, from L2 for most of them
// limits    any GPU from sm_80; rows at 16-byte addresses
//
// Defines: SCALAR, HEAD_DIM, CAUSAL (include/attention.cuh).

#include "async_copy.cuh"
#include "attention.cuh"
#include "mma.cuh"
#include "tile_layout.cuh"

constexpr int TILE = 64, WARPS = TILE / 16, THREADS = 32 * WARPS, STAGES = 2;
constexpr int WIDTH = 8;                     // elements of a copy, 16 bytes
constexpr int TILE_BYTES = TILE * HEAD_DIM * 2;

// Where element `d` of row `row` of a tile lies: all rows' first 64 elements before all rows' others.
__device__ inline int place(int row, int d) { return d / 64 * (TILE * 128) + swizzled(row, d % 64 * 2); }

__device__ inline void load_tile(unsigned char* tile, const SCALAR* rows, int start, const Layout& layout)
{
    using Copy = Packed<SCALAR, WIDTH>;
    constexpr int COPIES = HEAD_DIM / WIDTH, STEP = THREADS / COPIES;  // of a row; rows that all threads copy at once
    const int row = threadIdx.x / COPIES, d = threadIdx.x % COPIES * WIDTH;
    const SCALAR* from = rows + (start + row) * layout.row + d;
#pragma unroll
    for (int i = 0; i < TILE; i += STEP, from += STEP * layout.row) {
        async_copy_or_zero(reinterpret_cast<Copy*>(tile + place(row + i, d)), reinterpret_cast<const Copy*>(from),
                           start + row + i < layout.sequence);
    }
}

extern "C" __global__ __launch_bounds__(THREADS, 2)
void attention(const SCALAR* __restrict__ q, const SCALAR* __restrict__ k, const SCALAR* __restrict__ v,
               SCALAR* __restrict__ out, float* __restrict__ lse, float scale, Layout layout)
{
    extern __shared__ __align__(1024) unsigned char memory[];  // a tile of queries, then stages of keys and values

    const int tiles = (layout.sequence + TILE - 1) / TILE;
    const int head = blockIdx.x / tiles, tile = tiles - 1 - blockIdx.x % tiles;  // the longest rows of a head first
    const int own_tiles = CAUSAL ? tile + 1 : tiles;
    const long long first = layout.first(head);
    const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16;
    const int warp_query = tile * TILE + warp_row, query = warp_query + lane / 4;  // the lane's first; its other is 8 on

    const auto load = [&](int turn) {
        if (turn < own_tiles) {
            unsigned char* stage = memory + TILE_BYTES + turn % STAGES * (2 * TILE_BYTES);
            load_tile(stage, k + first, turn * TILE, layout);
            load_tile(stage + TILE_BYTES, v + first, turn * TILE, layout);
        }
        async_copy_commit();  // a group for each turn, copies or not
    };

    // --- load the queries
    load_tile(memory, q + first, tile * TILE, layout);
    async_copy_commit();
#pragma unroll
    for (int turn = 0; turn < STAGES - 1; ++turn) {
        load(turn);
    }
    async_copy_wait<STAGES - 1>();
    __syncthreads();
    unsigned left[HEAD_DIM / 16][4];
#pragma unroll
    for (int part = 0; part < HEAD_DIM / 16; ++part) {
        load_matrices<false>(left[part], memory + place(warp_row + lane % 16, part * 16 + lane / 16 * 8));
    }

    State states[2];  // of the lane's two queries
    float sums[HEAD_DIM / 8][4] = {};
    // --- tiles of keys
#pragma unroll 1
    for (int turn = 0; turn < own_tiles; ++turn) {
        async_copy_wait<STAGES - 2>();
        __syncthreads();  // the stage is full for all, and the one before is read
        load(turn + STAGES - 1);
        const unsigned char* keys = memory + TILE_BYTES + turn % STAGES * (2 * TILE_BYTES);
        const unsigned char* values = keys + TILE_BYTES;

        // --- scores
        float scores[TILE / 8][4] = {};
#pragma unroll
        for (int part = 0; part < HEAD_DIM / 16; ++part) {
#pragma unroll
            for (int j = 0; j < TILE / 16; ++j) {
                unsigned right[4];
                load_matrices<false>(right, keys + place(j * 16 + lane / 16 * 8 + lane % 8, part * 16 + lane / 8 % 2 * 8));
                mma(SCALAR(), scores[2 * j], left[part], right[0], right[1]);
                mma(SCALAR(), scores[2 * j + 1], left[part], right[2], right[3]);
            }
        }

        // --- mask
        const int start = turn * TILE;
        if (start + TILE > layout.sequence || (CAUSAL && start + TILE - 1 > warp_query)) {
#pragma unroll
            for (int j = 0; j < TILE / 8; ++j) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const bool seen = layout.seen(query + i / 2 * 8, start + j * 8 + lane % 4 * 2 + i % 2);
                    scores[j][i] = seen ? scores[j][i] : Max::neutral();
                }
            }
        }

        // --- merge the states
        unsigned weights[TILE / 8][2];  // P in the inputs' dtype, pairs of a row
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float top = Max::neutral(), sum = 0.0f;
#pragma unroll
            for (int j = 0; j < TILE / 8; ++j) {
                top = fmaxf(top, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
            }
            const float factor = states[half].raise(warp_reduce<4>(top, Max()), scale), shift = states[half].shift(scale);
#pragma unroll
            for (int j = 0; j < TILE / 8; ++j) {
                Vector<float, 2> pair;
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    pair.values[i] = exp2_approx(fmaf(scores[j][2 * half + i], scale, -shift));
                    sum += pair.values[i];
                }
                weights[j][half] = narrow<SCALAR>(pair).parts[0];
            }
            states[half].l += sum;  // this lane's share: the factor is the same for all four
#pragma unroll
            for (int d = 0; d < HEAD_DIM / 8; ++d) {
                sums[d][2 * half] *= factor;
                sums[d][2 * half + 1] *= factor;
            }
        }

        // --- times the values
#pragma unroll
        for (int j = 0; j < TILE / 16; ++j) {
            const unsigned p[4] = {weights[2 * j][0], weights[2 * j][1], weights[2 * j + 1][0], weights[2 * j + 1][1]};
#pragma unroll
            for (int d = 0; d < HEAD_DIM / 16; ++d) {
                unsigned right[4];
                load_matrices<true>(right, values + place(j * 16 + lane % 16, d * 16 + lane / 16 * 8));
                mma(SCALAR(), sums[2 * d], p, right[0], right[1]);
                mma(SCALAR(), sums[2 * d + 1], p, right[2], right[3]);
            }
        }
    }

    // --- divide and store
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int own = query + half * 8;
        states[half].l = warp_reduce<4>(states[half].l, Sum());
        if (own < layout.sequence) {
#pragma unroll
            for (int d = 0; d < HEAD_DIM / 8; ++d) {
                Vector<float, 2> pair;
                pair.values[0] = sums[d][2 * half] / states[half].l;
                pair.values[1] = sums[d][2 * half + 1] / states[half].l;
                SCALAR* to = out + first + own * layout.row + d * 8 + lane % 4 * 2;
                *reinterpret_cast<Packed<SCALAR, 2>*>(to) = narrow<SCALAR>(pair);
            }
            if (lse != nullptr && lane % 4 == 0) {
                lse[static_cast<long long>(head) * layout.sequence + own] = states[half].log_sum(scale);
            }
        }
    }
}
