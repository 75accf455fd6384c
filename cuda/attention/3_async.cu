// Attention, rung 3: rung 2 with cp.async, one tile of keys and values on its way while another is computed.
//
// contract  reference/attention.py
// mapping   as in rung 2; two stages of a tile of keys and one of values each
// traffic   as in rung 2
// limits    any GPU from sm_80; rows at 16-byte addresses
//
// Defines: SCALAR, HEAD_DIM, CAUSAL (include/attention.cuh).

#include "async_copy.cuh"
#include "attention_rows.cuh"

constexpr int STAGES = 2;

__device__ inline void load_tile(SCALAR* tile, const SCALAR* rows, int start, const Layout& layout)
{
    using Vec = Packed<SCALAR, WIDTH>;
#pragma unroll
    for (int i = 0; i < COPIES; ++i) {
        const int row = copied_row(i), column = copied_column(i);
        async_copy_or_zero(reinterpret_cast<Vec*>(tile + row * PITCH + column),
                           reinterpret_cast<const Vec*>(rows + (start + row) * layout.row + column),
                           start + row < layout.sequence);
    }
}

extern "C" __global__ __launch_bounds__(THREADS)
void attention(const SCALAR* __restrict__ q, const SCALAR* __restrict__ k, const SCALAR* __restrict__ v,
               SCALAR* __restrict__ out, float* __restrict__ lse, float scale, Layout layout)
{
    extern __shared__ __align__(16) unsigned char memory[];
    SCALAR* queries = reinterpret_cast<SCALAR*>(memory);              // (TILE, PITCH)
    SCALAR* stages = queries + TILE * PITCH;                          // (STAGES, keys or values, TILE, PITCH)
    float* p = reinterpret_cast<float*>(stages + STAGES * 2 * TILE * PITCH);  // (TILE, TILE + 1)

    const int tiles = (layout.sequence + TILE - 1) / TILE;
    const int head = blockIdx.x / tiles, tile = tiles - 1 - blockIdx.x % tiles;  // the longest rows of a head first
    const int own_tiles = CAUSAL ? tile + 1 : tiles;
    const long long first = layout.first(head);
    Row row;
    const int query = tile * TILE + row.row;

    const auto load = [&](int turn) {
        if (turn < own_tiles) {
            SCALAR* stage = stages + turn % STAGES * (2 * TILE * PITCH);
            load_tile(stage, k + first, turn * TILE, layout);
            load_tile(stage + TILE * PITCH, v + first, turn * TILE, layout);
        }
        async_copy_commit();  // a group for each turn, copies or not
    };

    // --- load the queries
    load_tile(queries, q + first, tile * TILE, layout);
    load(0);

    // --- tiles of keys
    for (int turn = 0; turn < own_tiles; ++turn) {
        load(turn + 1);
        async_copy_wait<1>();
        __syncthreads();
        const SCALAR* keys = stages + turn % STAGES * (2 * TILE * PITCH);
        row.take(queries, keys, keys + TILE * PITCH, p, query, turn * TILE, scale, layout);
        __syncthreads();  // read before the next copies overwrite it
    }
    if (query < layout.sequence) {
        row.store(out + first + query * layout.row);
        if (lse != nullptr && row.part == 0) {
            lse[static_cast<long long>(head) * layout.sequence + query] = row.state.log_sum(scale);
        }
    }
}
