// cuda/include/async_copy.cuh on a CPU.
#pragma once

inline void async_copy_16(void* shared, const void* global) { cuda_host::copy_later(shared, global, 16); }

template <typename T>
void async_copy(T* shared, const T* global)
{
    cuda_host::copy_later(shared, global, sizeof(T));
}

template <typename T>
void async_copy_or_zero(T* shared, const T* global, bool there)
{
    static const char zeros[16] = {};
    cuda_host::copy_later(shared, there ? static_cast<const void*>(global) : zeros, sizeof(T));
}

inline void async_copy_commit() { cuda_host::copies_commit(); }

template <int PENDING>
void async_copy_wait()
{
    cuda_host::copies_wait(PENDING);
}
