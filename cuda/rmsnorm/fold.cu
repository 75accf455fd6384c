// RMSNorm's backward pass, the last kernel of two: dweight from its partial sums.
//
// contract  reference/rmsnorm.py, backward; a fixed order, so that two runs give the same bits
// mapping   one block owns 8 columns, as many threads a part of their partial sums
// traffic   count x cols float32 read, from L2 where they fit, cols elements written
// limits    any GPU from sm_80
//
// Defines: WEIGHT (float, __half, __nv_bfloat16), BLOCK (threads, whole warps).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "fold.cuh"

extern "C" __global__ __launch_bounds__(BLOCK)
void fold(const float* __restrict__ partials, WEIGHT* __restrict__ dweight, int count, int cols)
{
    __shared__ float scratch[BLOCK];
    fold_partials<BLOCK>(partials, dweight, count, cols, scratch);
}
