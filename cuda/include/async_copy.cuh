// Asynchronous copies from global to shared memory (cp.async, from sm_80 on): PTX ISA, "cp.async".
#pragma once

// Starts a copy of 16 bytes, past the registers and L1; both addresses are multiples of 16.
__device__ inline void async_copy_16(void* shared, const void* global)
{
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}

// Closes a group of this thread's copies.
__device__ inline void async_copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most PENDING of this thread's groups are under way.
template <int PENDING>
__device__ inline void async_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
