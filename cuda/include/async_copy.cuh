// Asynchronous copies from global to shared memory (cp.async, from sm_80 on): PTX ISA, "cp.async".
#pragma once

// Starts a copy of 16 bytes, past the registers and L1; both addresses are multiples of 16.
__device__ inline void async_copy_16(void* shared, const void* global)
{
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}

// Starts a copy of a vector, both addresses aligned to its size; one of 2 bytes, which the hardware has no copy for, is
// done at once.
template <typename T>
__device__ inline void async_copy(T* shared, const T* global)
{
    if constexpr (sizeof(T) == 16) {
        async_copy_16(shared, global);
    } else if constexpr (sizeof(T) == 4 || sizeof(T) == 8) {
        const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(sizeof(T)) : "memory");
    } else {
        *shared = *global;
    }
}

// The same, or where `there` is false zeros and no read of `global`.
template <typename T>
__device__ inline void async_copy_or_zero(T* shared, const T* global, bool there)
{
    if constexpr (sizeof(T) >= 4) {
        const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
        const int bytes = there ? sizeof(T) : 0;
        if constexpr (sizeof(T) == 16) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
        } else {
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(sizeof(T)), "r"(bytes)
                         : "memory");
        }
    } else {
        *shared = there ? *global : T();
    }
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
