// Barriers of some of a block's threads: PTX ISA, "bar". id 0 is __syncthreads' own; threads is a multiple of 32.
#pragma once

// Waits until `threads` threads of the block have come to barrier `id`.
__device__ inline void named_barrier_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Comes to barrier `id` and goes on.
__device__ inline void named_barrier_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
