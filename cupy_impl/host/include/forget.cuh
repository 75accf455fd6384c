// cuda/include/forget.cuh on a CPU, where nothing depends on it.
#pragma once

#include "vector.cuh"

template <typename T, int N>
void forget(Packed<T, N>&)
{
}
