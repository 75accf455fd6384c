// Attention, rung 5: TMA and wgmma. One warpgroup only loads; the others take turns at the tensor cores, and each computes a
// tile's softmax while they multiply.
//
// contract  reference/attention.py
// mapping   one block owns TILE_Q queries of a head, each of CONSUMERS warpgroups 64 of them, whose scores, P and sums stay in
//           registers; P is an operand of the second product as it is. One thread fills a ring of STAGES tiles of keys and
//           values as they come free. The longest rows come first
// traffic   q and out once; k and v once for every TILE_Q queries, from L2 for most of them
// limits    sm_90a; arrays from a multiple of 16 bytes on
//
// Defines: as in include/hopper_attention.cuh.

constexpr int QUERY_STAGES = 1;

#include "hopper_attention.cuh"

extern "C" __global__ __launch_bounds__((CONSUMERS + 1) * WARPGROUP, 1)
void attention(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
               const __grid_constant__ TensorMap out, float* __restrict__ lse, float scale, int heads, int sequence)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const Tiles ring(memory + QUERY_BYTES, memory + QUERY_BYTES + STAGES * TILE_BYTES);
    const Queries queries(memory, ring.empty + STAGES);
    const int rows = (sequence + TILE_Q - 1) / TILE_Q, consumer = warpgroup();
    const Work work(blockIdx.x / rows, rows - 1 - blockIdx.x % rows, heads, sequence);
    if (threadIdx.x == 0) {
        ring.init(4 * CONSUMERS);  // a warp's arrival each
        queries.init(4 * CONSUMERS);
    }
    __syncthreads();
    Turn<STAGES> turn;

    if (consumer == CONSUMERS) {
        registers_give<REGISTERS_LOADING>();
        if (threadIdx.x % WARPGROUP == 0) {
            Turn<QUERY_STAGES> query_turn;
            load_work(queries, query_turn, ring, turn, q, k, v, work);
        }
    } else {
        registers_take<REGISTERS_CONSUMING>();
        unsigned char* own = queries.memory + consumer * OWN_BYTES;
        if (consumer == CONSUMERS - 1) {
            named_barrier_arrive(TURN_BARRIER, 2 * WARPGROUP);  // the first one's turn
        }
        mbarrier_wait(queries.full, 0);
        Consumer warpgroup(ring, turn, consumer, scale);
        warpgroup.start(own);
        warpgroup.attend(work, own, sequence);
        warpgroup.store(work, own, out, lse, heads, sequence);
        tma_store_wait<0>();
    }
}
