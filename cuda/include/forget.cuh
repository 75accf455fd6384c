// Hides from the compiler that values are what they were: what was computed of them before is computed anew, where to keep
// it would take registers that there are not.
#pragma once

#include "vector.cuh"

template <typename T, int N>
__device__ inline void forget(Packed<T, N>& packed)
{
    if constexpr (Packed<T, N>::IN_PAIRS) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            asm volatile("" : "+r"(packed.parts[i]));
        }
    }
}
