// RMSNorm's backward pass, rung 2: one pass over dy and x, dweight's sums in registers; fold.cu adds up the blocks'.
//
// contract  reference/rmsnorm.py, backward
// mapping   a grid of what is resident, which takes rows in turn: include/rmsnorm_backward.cuh
// traffic   2 rows x cols elements read, one written; cols float32 for all blocks that share a row written here and read by
//           fold.cu
// limits    GPUs from sm_90; rows that all resident blocks' registers hold
//
// Defines: SCALAR, WEIGHT (float, __half, __nv_bfloat16), VECTOR (elements), TEAM, TEAMS, VECTORS, STAGES, SHARES,
// BLOCKS (of a multiprocessor).

#include "rmsnorm_backward.cuh"

extern "C" __global__ __launch_bounds__(BLOCK, BLOCKS)
void rmsnorm_backward(const SCALAR* __restrict__ dy, const SCALAR* __restrict__ x, const WEIGHT* __restrict__ weight,
                      const float* __restrict__ rstd, SCALAR* __restrict__ dx, float* __restrict__ partials,
                      unsigned long long* words, long long rows, int cols)
{
    backward_rows(dy, x, weight, rstd, dx, partials, words, rows, cols);
}
