// Whom attention's works are dealt to.

#include "dealer.cuh"

// places (rounds, blocks, 2): head and row of the work that a block gets in a round, untouched where it gets none.
extern "C" __global__ void deal(int* places, int rows, int heads, int group)
{
    const Dealer<CAUSAL> dealer(rows, heads, group);
    for (int round = 0; round < dealer.rounds(); ++round) {
        int head, row;
        if (dealer.deal(round, head, row)) {
            int* place = places + 2 * (round * gridDim.x + blockIdx.x);
            place[0] = head;
            place[1] = row;
        }
    }
}
