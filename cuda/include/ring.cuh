// A ring of stages in shared memory that one warpgroup fills and others read, and the place of each side in it.
#pragma once

#include "mbarrier.cuh"

constexpr int WARPGROUP = 128;

// This thread's warpgroup; so put, the compiler knows that a warp has one and keeps what follows of it once a warp.
__device__ inline int warpgroup() { return __shfl_sync(0xffffffffu, threadIdx.x / WARPGROUP, 0); }

// COUNT stages of BYTES each, and for each a barrier that is over when it is full and one when it is empty.
template <int COUNT, int BYTES>
struct Ring {
    unsigned char* memory;
    Barrier *full, *empty;

    // barriers: 2 COUNT of them.
    __device__ Ring(unsigned char* memory, void* barriers)
        : memory(memory), full(static_cast<Barrier*>(barriers)), empty(full + COUNT)
    {
    }
    __device__ unsigned char* stage(int index) const { return memory + index * BYTES; }

    // One thread. releases: arrivals that empty a stage.
    __device__ void init(int releases) const
    {
        for (int stage = 0; stage < COUNT; ++stage) {
            mbarrier_init(full + stage, 1);
            mbarrier_init(empty + stage, releases);
        }
        mbarrier_init_fence();
    }
};

// Where one side of a ring of COUNT stages is: the stage, and the parity of its round.
template <int COUNT>
struct Turn {
    int stage = 0;
    unsigned parity = 0;

    __device__ void next()
    {
        if (++stage == COUNT) {
            stage = 0;
            parity ^= 1;
        }
    }
};
