// Copies of boxes of an array between global and shared memory (TMA, from sm_90 on): PTX ISA, "cp.async.bulk.tensor". What
// a box has outside the array is 0 on the way in and dropped on the way out.
#pragma once

#include "mbarrier.cuh"

// What cuTensorMapEncodeTiled made; a kernel takes it by value, as `const __grid_constant__`.
struct alignas(64) TensorMap {
    unsigned long long words[16];
};

// Starts the copy of the box at column x, row y; the barrier gets its bytes.
__device__ inline void tma_load(void* shared, const TensorMap& map, int x, int y, Barrier* barrier)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            shared_address(shared)),
        "l"(&map), "r"(x), "r"(y), "r"(shared_address(barrier))
        : "memory");
}

// The same of an array with four axes.
__device__ inline void tma_load(void* shared, const TensorMap& map, int x, int y, int z, int w, Barrier* barrier)
{
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
        "[%6];" ::"r"(shared_address(shared)),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier))
        : "memory");
}

// tma_load of a matrix into the same place of every block of the cluster whose bit is set in `blocks`, and to their barriers.
__device__ inline void tma_load_multicast(void* shared, const TensorMap& map, int x, int y, Barrier* barrier,
                                          unsigned short blocks)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(shared)),
        "l"(&map), "r"(x), "r"(y), "r"(shared_address(barrier)), "h"(blocks)
        : "memory");
}

// Shows what this thread has written to shared memory to the copies that start after the next barrier.
__device__ inline void tma_store_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Starts the copy of a box to column x, row y, as a group of its own.
__device__ inline void tma_store(const TensorMap& map, const void* shared, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x),
                 "r"(y), "r"(shared_address(shared))
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

__device__ inline void tma_store(const TensorMap& map, const void* shared, int x, int y, int z, int w)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(&map),
                 "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(shared))
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until all but the last PENDING of this thread's stores have read shared memory.
template <int PENDING>
__device__ inline void tma_store_wait()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
