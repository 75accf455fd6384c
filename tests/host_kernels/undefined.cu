// Kernels that do what CUDA leaves undefined, each in one way, at a line that its test names.

#include <cooperative_groups.h>

#include "async_copy.cuh"
#include "bulk_store.cuh"
#include "exchange.cuh"
#include "named_barrier.cuh"
#include "vector.cuh"

extern "C" __global__ void barrier_not_reached(float* out)
{
    if (threadIdx.x < 32) __syncthreads();  // barrier_not_reached
    out[threadIdx.x] = 1.0f;
}

extern "C" __global__ void two_barriers(float* out)
{
    if (threadIdx.x < 32)
        __syncthreads();  // the first of two_barriers
    else
        __syncthreads();  // the second of two_barriers
    out[threadIdx.x] = 1.0f;
}

extern "C" __global__ void not_in_its_mask(float* out)
{
    out[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, out[threadIdx.x], 1);  // not_in_its_mask
}

extern "C" __global__ void from_outside_the_mask(float* out)
{
    if (threadIdx.x < 8) out[threadIdx.x] = __shfl_sync(0xffu, out[threadIdx.x], 9);  // from_outside_the_mask
}

extern "C" __global__ void lanes_elsewhere(float* out)
{
    if (threadIdx.x < 16) out[0] = __shfl_sync(0xffffffffu, 1.0f, 0);  // the shuffle of lanes_elsewhere
    else __syncthreads();  // the barrier of lanes_elsewhere
}

extern "C" __global__ void past_the_end(float* out)
{
    __shared__ float values[64];
    values[threadIdx.x + 1] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = values[threadIdx.x];
}

extern "C" __global__ void before_the_start(float* out)
{
    __shared__ float values[1024];  // a page, so that its first byte has a forbidden neighbour
    values[threadIdx.x] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = values[static_cast<int>(threadIdx.x) - 2];
}

extern "C" __global__ void dynamic_past_the_end(float* out)
{
    extern __shared__ float values[];
    values[threadIdx.x] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = values[threadIdx.x + 4];
}

extern "C" __global__ void nobody_wrote(float* out)
{
    __shared__ float values[64];
    if (threadIdx.x != 5) values[threadIdx.x] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = values[threadIdx.x];
}

extern "C" __global__ void not_waited_for(const float* x, float* out)
{
    __shared__ alignas(16) float values[64 * 4];
    async_copy_16(&values[4 * threadIdx.x], x + 4 * threadIdx.x);
    async_copy_commit();
    __syncthreads();
    out[threadIdx.x] = values[4 * threadIdx.x];
}

extern "C" __global__ void overwritten_too_early(const float* x, float* out)
{
    __shared__ Vector<float, 4> values[64];
    const int first = threadIdx.x / 32 * 32;
    values[threadIdx.x] = {x[threadIdx.x]};
    bulk_store(reinterpret_cast<Vector<float, 4>*>(out) + first, values + first, 32);
    values[threadIdx.x] = {-1.0f};
    bulk_store_wait();
}

extern "C" __global__ void missing_barrier(const float* x, float* out)
{
    __shared__ float values[64];
    values[threadIdx.x] = x[threadIdx.x];
    out[threadIdx.x] = values[63 - threadIdx.x];
}

extern "C" __global__ void named_barrier_short(float* out)
{
    if (threadIdx.x < 32) named_barrier_sync(1, 64);  // named_barrier_short
    out[threadIdx.x] = 1.0f;
}

extern "C" __global__ void grid_sync_alone(float* out)
{
    cooperative_groups::this_grid().sync();  // grid_sync_alone
    out[threadIdx.x] = 1.0f;
}

extern "C" __global__ void exchange_alone(float* out)
{
    __shared__ unsigned long long word;
    word = 0;
    out[threadIdx.x] = published(&word);  // exchange_alone
}

extern "C" __global__ void no_end_of_stack(float* out)
{
    volatile float much[128 * 1024];
    for (int i = 0; i < 128 * 1024; i += 16) much[128 * 1024 - 1 - i] = i;
    out[threadIdx.x] = much[16];
}
