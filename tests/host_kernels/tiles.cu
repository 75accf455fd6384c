// What matmul's Hopper kernels do with places: the order of tiles, the swizzle, descriptors, fragments.

#include <cuda_bf16.h>

#include "tile_layout.cuh"
#include "tile_order.cuh"

// places (rows cols, 2): of each tile in its turn.
extern "C" __global__ void order(int* places, int rows, int cols)
{
    const int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < rows * cols) {
        const Place at = tile_place<GROUP>(index, rows, cols);
        places[2 * index] = at.row;
        places[2 * index + 1] = at.col;
    }
}

// places (64, 128): of each byte of a box.
extern "C" __global__ void swizzle(int* places) { places[blockIdx.x * 128 + threadIdx.x] = swizzled(blockIdx.x, threadIdx.x); }

// rows, cols (128, sums): of each sum of each thread.
extern "C" __global__ void fragments(int* rows, int* cols)
{
    const int at = threadIdx.x * gridDim.x + blockIdx.x;
    rows[at] = wgmma_row(threadIdx.x, blockIdx.x);
    cols[at] = wgmma_col(threadIdx.x, blockIdx.x);
}

// descriptors (2, 4): of a tile at `address`, for each of its four steps along K; K-major, then the other.
extern "C" __global__ void descriptors(unsigned long long* descriptors, int address)
{
    for (int step = 0; step < 4; ++step) {
        descriptors[step] = wgmma_descriptor<true>(address) + step * WGMMA_STEP<__nv_bfloat16, true>;
        descriptors[4 + step] = wgmma_descriptor<false>(address) + step * WGMMA_STEP<__nv_bfloat16, false>;
    }
}
