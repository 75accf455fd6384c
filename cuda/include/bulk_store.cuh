// Asynchronous copies from shared to global memory (cp.async.bulk, from sm_90 on): PTX ISA, "cp.async.bulk". A warp's
// stores from registers hold up what it reads from shared memory next; these do not.
#pragma once

// Starts the copy of ``count`` 16-byte vectors that this warp has written side by side. All its lanes call; both
// addresses are the warp's first vector's.
template <typename Vec>
__device__ inline void bulk_store(Vec* global, const Vec* shared, int count)
{
    static_assert(sizeof(Vec) == 16, "whole 16 bytes");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the copy sees what this lane has written
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        if (count > 0) {
            const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(shared));
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(from),
                         "r"(16 * count)
                         : "memory");
        }
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
}

// Waits until this warp's bulk stores have read shared memory, which may be written again then.
__device__ inline void bulk_store_wait()
{
    if (threadIdx.x % 32 == 0) {
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
    __syncwarp();
}
