// Blocks of a cluster merge what each knows of a row, through distributed shared memory (from sm_90 on). For kernels
// that are compiled with CLUSTER, blocks of a cluster; 1 costs nothing, not even the time to compile the header.
#pragma once

#if CLUSTER > 1

#include <cooperative_groups.h>

#define CLUSTER_DIMS __cluster_dims__(CLUSTER, 1, 1)

// Waits for all blocks of the cluster; none may be written to before it runs.
__device__ inline void cluster_sync() { cooperative_groups::this_cluster().sync(); }

// What `mine` in shared memory is in block `block` of the cluster.
template <typename T>
__device__ inline T* cluster_place(T* mine, int block)
{
    return cooperative_groups::this_cluster().map_shared_rank(mine, block);
}

// The values of all blocks, merged in the order of the blocks. parts: CLUSTER of them in shared memory, which may be written
// again once the blocks have met in the next merge.
template <typename T, typename Merge>
__device__ inline T cluster_reduce(T mine, Merge merge, T* parts)
{
    const auto cluster = cooperative_groups::this_cluster();
    if (threadIdx.x < CLUSTER) {
        *cluster.map_shared_rank(parts + cluster.block_rank(), threadIdx.x) = mine;
    }
    cluster.sync();
    T all = parts[0];
#pragma unroll
    for (int block = 1; block < CLUSTER; ++block) {
        all = merge(all, parts[block]);
    }
    return all;
}

#else

#define CLUSTER_DIMS

__device__ inline void cluster_sync() {}

template <typename T>
__device__ inline T* cluster_place(T* mine, int)
{
    return mine;
}

template <typename T, typename Merge>
__device__ inline T cluster_reduce(T mine, Merge, T*)
{
    return mine;
}

#endif
