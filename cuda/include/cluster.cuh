// Blocks of a cluster merge what each knows of a row, through distributed shared memory (from sm_90 on).
#pragma once

#include <cooperative_groups.h>

// Of a kernel that is compiled for clusters of CLUSTER blocks.
#if CLUSTER > 1
#define CLUSTER_DIMS __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTER_DIMS
#endif

// Waits for all blocks of the cluster; none may be written to before it runs.
template <int BLOCKS>
__device__ inline void cluster_sync()
{
    if constexpr (BLOCKS > 1) {
        cooperative_groups::this_cluster().sync();
    }
}

// Every block's value, merged in the order of the blocks. parts: BLOCKS of them in shared memory, which may be written
// again once the cluster has met another time.
template <int BLOCKS, typename T, typename Merge>
__device__ inline T cluster_reduce(T mine, Merge merge, T* parts)
{
    if constexpr (BLOCKS > 1) {
        const auto cluster = cooperative_groups::this_cluster();
        if (threadIdx.x < BLOCKS) {
            *cluster.map_shared_rank(parts + cluster.block_rank(), threadIdx.x) = mine;
        }
        cluster.sync();
        mine = parts[0];
#pragma unroll
        for (int block = 1; block < BLOCKS; ++block) {
            mine = merge(mine, parts[block]);
        }
    }
    return mine;
}
