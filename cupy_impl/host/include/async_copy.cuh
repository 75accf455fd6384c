// cuda/include/async_copy.cuh on a CPU.
#pragma once

inline void async_copy_16(void* shared, const void* global) { cuda_host::copy_later(shared, global, 16); }

template <typename T>
void async_copy(T* shared, const T* global)
{
    cuda_host::copy_later(shared, global, sizeof(T));
}

inline void async_copy_commit() { cuda_host::copies_commit(); }

template <int PENDING>
void async_copy_wait()
{
    cuda_host::copies_wait(PENDING);
}
