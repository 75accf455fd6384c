// RMSNorm's backward pass, rung 2: one pass over dy and x, dweight's sums in registers; fold.cu adds up the blocks'.
//
// contract  reference/rmsnorm.py, backward
// mapping   a grid of what is resident, which takes rows in turn: include/rmsnorm_backward.cuh, and _wide.cuh for those of more
//           than 32 KiB that one block holds
// traffic   2 rows x cols elements read, one written; cols float32 a cluster written here and read by fold.cu
// limits    GPUs from sm_90; 131,072 16-bit or 65,536 float32 columns, wider rows take rung 1
//
// Defines: SCALAR, WEIGHT (float, __half, __nv_bfloat16), VECTOR (elements), TEAM, TEAMS, VECTORS, STAGES, CLUSTER,
// BLOCKS (of a multiprocessor), WIDE (0 or 1).

#if WIDE
#include "rmsnorm_backward_wide.cuh"
#else
#include "rmsnorm_backward.cuh"
#endif

extern "C" __global__ CLUSTER_DIMS __launch_bounds__(BLOCK, BLOCKS)
void rmsnorm_backward(const SCALAR* __restrict__ dy, const SCALAR* __restrict__ x, const WEIGHT* __restrict__ weight,
                      const float* __restrict__ rstd, SCALAR* __restrict__ dx, float* __restrict__ partials,
                      long long rows, int cols)
{
    backward_rows(dy, x, weight, rstd, dx, partials, rows, cols);
}
