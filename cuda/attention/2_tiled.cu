// Attention, rung 2: tiles of keys and values through shared memory, and the online softmax; no score leaves the block.
//
// contract  reference/attention.py
// mapping   one block owns 32 queries of a head and goes along its keys, 32 at a time; 4 threads a query have the state of
//           its row and its sums of the values in registers (include/attention_rows.cuh)
// traffic   q and out once; k and v once for every 32 queries, from L2 for most of them
// limits    any GPU from sm_80; rows at 16-byte addresses
//
// Defines: SCALAR, HEAD_DIM, CAUSAL (include/attention.cuh).

#include "attention_rows.cuh"

// One after the other: reads, and a barrier before the arithmetic.
__device__ inline void load_tile(SCALAR* tile, const SCALAR* rows, int start, const Layout& layout)
{
    using Vec = Packed<SCALAR, WIDTH>;
#pragma unroll
    for (int i = 0; i < COPIES; ++i) {
        const int row = copied_row(i), column = copied_column(i);
        const bool inside = start + row < layout.sequence;
        *reinterpret_cast<Vec*>(tile + row * PITCH + column) =
            inside ? *reinterpret_cast<const Vec*>(rows + (start + row) * layout.row + column) : Vec();
    }
}

extern "C" __global__ __launch_bounds__(THREADS)
void attention(const SCALAR* __restrict__ q, const SCALAR* __restrict__ k, const SCALAR* __restrict__ v,
               SCALAR* __restrict__ out, float* __restrict__ lse, float scale, Layout layout)
{
    __shared__ __align__(16) SCALAR queries[TILE * PITCH];
    __shared__ __align__(16) SCALAR keys[TILE * PITCH];
    __shared__ __align__(16) SCALAR values[TILE * PITCH];
    __shared__ float p[TILE * (TILE + 1)];

    const int tiles = (layout.sequence + TILE - 1) / TILE;
    const int head = blockIdx.x / tiles, tile = tiles - 1 - blockIdx.x % tiles;  // the longest rows of a head first
    const long long first = layout.first(head);
    Row row;
    const int query = tile * TILE + row.row;

    // --- load the queries
    load_tile(queries, q + first, tile * TILE, layout);

    // --- tiles of keys
    for (int start = 0; start < (CAUSAL ? (tile + 1) * TILE : layout.sequence); start += TILE) {
        load_tile(keys, k + first, start, layout);
        load_tile(values, v + first, start, layout);
        __syncthreads();
        row.take(queries, keys, values, p, query, start, scale, layout);
        __syncthreads();  // read before the next tile is written
    }
    if (query < layout.sequence) {
        row.store(out + first + query * layout.row);
        if (lse != nullptr && row.part == 0) {
            lse[static_cast<long long>(head) * layout.sequence + query] = row.state.log_sum(scale);
        }
    }
}
