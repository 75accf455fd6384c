// Attention, rung 6: as many blocks as run at once take work after work; the next one's queries, keys and values come in while
// this one's output leaves.
//
// contract  reference/attention.py
// mapping   as rung 5's, one block a multiprocessor. GROUP heads at a time, so many that their keys and values stay in L2,
//           and of these the longest rows first, dealt to the blocks there and back in turn: all come to about the same
//           number of tiles. Two places for queries, from where out leaves, too
// traffic   as rung 5's; k and v once from memory, if GROUP of them fit in L2
// limits    as rung 5's
//
// Defines: as in include/hopper_attention.cuh, and GROUP.

constexpr int QUERY_STAGES = 2;

#include "hopper_attention.cuh"

// Of the works that this block takes the one in round `round`, counted over all.
__device__ inline int dealt(int round)
{
    return round * gridDim.x + (round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
}

extern "C" __global__ __launch_bounds__((CONSUMERS + 1) * WARPGROUP, 1)
void attention(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
               const __grid_constant__ TensorMap out, float* __restrict__ lse, float scale, int heads, int sequence,
               int all_heads)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const Tiles ring(memory + QUERY_STAGES * QUERY_BYTES, memory + QUERY_STAGES * QUERY_BYTES + STAGES * TILE_BYTES);
    const Queries queries(memory, ring.empty + STAGES);
    const int rows = (sequence + TILE_Q - 1) / TILE_Q, works = rows * all_heads, consumer = warpgroup();
    const auto work_at = [&](int index) {
        const int group = index / (GROUP * rows), inside = index - group * GROUP * rows;
        const int width = min(GROUP, all_heads - group * GROUP);
        return Work(group * GROUP + inside % width, rows - 1 - inside / width, heads, sequence);
    };
    if (threadIdx.x == 0) {
        ring.init(4 * CONSUMERS);  // a warp's arrival each
        queries.init(4 * CONSUMERS);
    }
    __syncthreads();
    Turn<STAGES> turn;
    Turn<QUERY_STAGES> query_turn;

    if (consumer == CONSUMERS) {
        registers_give<REGISTERS_LOADING>();
        if (threadIdx.x % WARPGROUP == 0) {
            for (int round = 0, index; (index = dealt(round)) < works; ++round) {
                load_work(queries, query_turn, ring, turn, q, k, v, work_at(index));
            }
        }
    } else {
        registers_take<REGISTERS_CONSUMING>();
        if (consumer == CONSUMERS - 1) {
            named_barrier_arrive(TURN_BARRIER, 2 * WARPGROUP);  // the first one's turn
        }
#pragma unroll 1
        for (int round = 0, index; (index = dealt(round)) < works; ++round, query_turn.next()) {
            const Work work = work_at(index);
            unsigned char* own = queries.stage(query_turn.stage) + consumer * OWN_BYTES;
            mbarrier_wait(queries.full + query_turn.stage, query_turn.parity);
            Consumer warpgroup(ring, turn, consumer, scale);
            warpgroup.start(own);
            if (round > 0) {
                tma_store_wait<0>();  // the work before has left its place
                release(queries.empty + (query_turn.stage ^ 1));
            }
            warpgroup.attend(work, own, sequence);
            warpgroup.store(work, own, out, lse, heads, sequence);
        }
        tma_store_wait<0>();
    }
}
