// Inline PTX, which no C++ compiler knows: here in the source, or in a header of ours without a body for the CPU.

#include "async_copy.cuh"

extern "C" __global__ void lane(int* out)
{
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    out[threadIdx.x] = lane;
}
