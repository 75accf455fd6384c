// cuda/include/bulk_store.cuh on a CPU.
#pragma once

template <typename Vec>
void bulk_store(Vec* global, const Vec* shared, int count)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0 && count > 0) {
        cuda_host::store_later(global, shared, count * sizeof(Vec));
    }
}

inline void bulk_store_wait()
{
    __syncwarp();  // what other lanes write too early goes too
    if (threadIdx.x % 32 == 0) {
        cuda_host::stores_wait();
    }
    __syncwarp();
}
