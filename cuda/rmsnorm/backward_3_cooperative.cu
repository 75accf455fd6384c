// RMSNorm's backward pass, rung 3: rung 2 in one launch; the grid synchronises before the blocks' sums are added up.
//
// contract  reference/rmsnorm.py, backward
// mapping   a grid of what is resident takes rows in turn (include/rmsnorm_backward.cuh), then a few columns a block
// traffic   2 rows x cols elements read, one written; cols float32 for all blocks that share a row written and read
// limits    GPUs from sm_90; rows that all resident blocks' registers hold
//
// Defines: SCALAR, WEIGHT (float, __half, __nv_bfloat16), VECTOR (elements), TEAM, TEAMS, VECTORS, STAGES, SHARES,
// BLOCKS (of a multiprocessor).

#include <cooperative_groups.h>

#include "fold.cuh"
#include "rmsnorm_backward.cuh"

extern "C" __global__ __launch_bounds__(BLOCK, BLOCKS)
void rmsnorm_backward(const SCALAR* __restrict__ dy, const SCALAR* __restrict__ x, const WEIGHT* __restrict__ weight,
                      const float* __restrict__ rstd, SCALAR* __restrict__ dx, WEIGHT* __restrict__ dweight,
                      float* partials, unsigned long long* words, int count, long long rows, int cols)
{
    backward_rows(dy, x, weight, rstd, dx, partials, words, rows, cols);
    cooperative_groups::this_grid().sync();
    extern __shared__ __align__(16) unsigned char memory[];  // of the rows, which are done
    fold_partials<BLOCK>(partials, dweight, count, cols, reinterpret_cast<float*>(memory));
}
