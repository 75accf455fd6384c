// cooperative_groups::reduce on a CPU, over the tiles of a warp.
#pragma once

#include "../cooperative_groups.h"

namespace cooperative_groups {

template <typename T>
struct plus {
    T operator()(T a, T b) const { return a + b; }
};
template <typename T>
struct less {
    T operator()(T a, T b) const { return b < a ? b : a; }
};
template <typename T>
struct greater {
    T operator()(T a, T b) const { return a < b ? b : a; }
};

template <unsigned SIZE, typename T, typename Operation>
T reduce(const thread_block_tile<SIZE>& tile, T value, Operation operation, CUDA_HOST_SITE)
{
    for (unsigned lanes = SIZE / 2; lanes; lanes /= 2) value = operation(value, tile.shfl_xor(value, lanes, file, line));
    return value;
}

}  // namespace cooperative_groups
