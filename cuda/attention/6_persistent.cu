// Attention, rung 6: as many blocks as run at once take work after work; the next one's queries, keys and values come in while
// this one's output leaves.
//
// contract  reference/attention.py
// mapping   as rung 5's, one block a multiprocessor. Works are dealt to the blocks in rounds, there and back in turn: causal
//           ones by `group` heads at a time, whose keys and values stay in L2, the longest first, so that all blocks come to
//           about the same number of tiles. There are two places for queries, from where out leaves, too
// traffic   as rung 5's; k and v once from memory, if those of `group` heads fit in L2
// limits    as rung 5's
//
// Defines: as in include/hopper_attention.cuh.

constexpr int QUERY_STAGES = 2;

#include "dealer.cuh"
#include "hopper_attention.cuh"

extern "C" __global__ __launch_bounds__((CONSUMERS + 1) * WARPGROUP, 1)
void attention(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
               const __grid_constant__ TensorMap out, float* __restrict__ lse, float scale, int heads, int sequence,
               int all_heads, int group)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const Tiles ring(memory + QUERY_STAGES * QUERY_BYTES, memory + QUERY_STAGES * QUERY_BYTES + STAGES * TILE_BYTES);
    const Queries queries(memory, ring.empty + STAGES);
    const Dealer<CAUSAL> dealer((sequence + TILE_Q - 1) / TILE_Q, all_heads, group);
    const int rounds = dealer.rounds(), consumer = warpgroup();
    int head, row;
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
            for (int round = 0; round < rounds; ++round) {
                if (dealer.deal(round, head, row)) {
                    load_work(queries, query_turn, ring, turn, q, k, v, Work(head, row, heads, sequence));
                }
            }
        }
    } else {
        registers_take<REGISTERS_CONSUMING>();
        if (consumer == CONSUMERS - 1) {
            named_barrier_arrive(TURN_BARRIER, 2 * WARPGROUP);  // the first one's turn
        }
        bool leaving = false;
#pragma unroll 1
        for (int round = 0; round < rounds; ++round) {
            if (!dealer.deal(round, head, row)) {
                continue;
            }
            const Work work(head, row, heads, sequence);
            unsigned char* own = queries.stage(query_turn.stage) + consumer * OWN_BYTES;
            mbarrier_wait(queries.full + query_turn.stage, query_turn.parity);
            Consumer warpgroup(ring, turn, consumer, scale);
            warpgroup.start(own);
            if (leaving) {
                tma_store_wait<0>();  // the work before has left its place
                release(queries.empty + (query_turn.stage ^ 1));
            }
            warpgroup.attend(work, own, sequence);
            warpgroup.store(work, own, out, lse, heads, sequence);
            leaving = true;
            query_turn.next();
        }
        tma_store_wait<0>();
    }
}
