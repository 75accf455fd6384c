// Cooperative groups on a CPU: the block, tiles of a warp, a cluster along x, and a cooperative launch's grid.
#pragma once

namespace cooperative_groups {

namespace detail {
inline unsigned thread_of_block() { return cuda_host::linear_thread(); }
inline unsigned threads_of_block() { return cuda_host::threads_of_block(); }
}  // namespace detail

class thread_block {
public:
    void sync(CUDA_HOST_SITE) const { __syncthreads(file, line); }
    unsigned thread_rank() const { return detail::thread_of_block(); }
    unsigned size() const { return detail::threads_of_block(); }
    unsigned num_threads() const { return size(); }
    dim3 group_index() const { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
    dim3 thread_index() const { return dim3(threadIdx.x, threadIdx.y, threadIdx.z); }
    dim3 dim_threads() const { return blockDim; }
};

inline thread_block this_thread_block() { return {}; }

class grid_group {
public:
    bool is_valid() const { return cuda_host::cooperative(); }
    unsigned long long block_rank() const { return blockIdx.x + gridDim.x * (blockIdx.y + static_cast<unsigned long long>(gridDim.y) * blockIdx.z); }
    unsigned long long num_blocks() const { return static_cast<unsigned long long>(gridDim.x) * gridDim.y * gridDim.z; }
    unsigned long long thread_rank() const { return block_rank() * detail::threads_of_block() + detail::thread_of_block(); }
    unsigned long long size() const { return num_blocks() * detail::threads_of_block(); }
    unsigned long long num_threads() const { return size(); }
    void sync(CUDA_HOST_SITE) const { cuda_host::meet_grid({file, line}); }
};

inline grid_group this_grid() { return {}; }

class cluster_group {
public:
    unsigned block_rank() const { return cuda_host::cluster_rank(); }
    unsigned num_blocks() const { return cuda_host::cluster_size(); }
    void sync(CUDA_HOST_SITE) const { cuda_host::meet_cluster({file, line}); }
    void barrier_arrive() const {}
    void barrier_wait(CUDA_HOST_SITE) const { sync(file, line); }
    template <typename T>
    T* map_shared_rank(T* variable, int rank, CUDA_HOST_SITE) const
    {
        return static_cast<T*>(cuda_host::shared_of(variable, rank, {file, line}));
    }
};

inline cluster_group this_cluster() { return {}; }

template <unsigned SIZE, typename Parent = void>
class thread_block_tile {
    static_assert(SIZE <= 32 && (SIZE & (SIZE - 1)) == 0, "tiles of 1, 2, 4, 8, 16 or 32 threads");

public:
    unsigned thread_rank() const { return detail::thread_of_block() % SIZE; }
    unsigned meta_group_rank() const { return detail::thread_of_block() / SIZE; }
    unsigned meta_group_size() const { return (detail::threads_of_block() + SIZE - 1) / SIZE; }
    static constexpr unsigned size() { return SIZE; }
    static constexpr unsigned num_threads() { return SIZE; }
    void sync(CUDA_HOST_SITE) const { __syncwarp(mask(), file, line); }
    template <typename T>
    T shfl(T value, unsigned rank, CUDA_HOST_SITE) const { return __shfl_sync(mask(), value, rank, SIZE, file, line); }
    template <typename T>
    T shfl_up(T value, unsigned delta, CUDA_HOST_SITE) const { return __shfl_up_sync(mask(), value, delta, SIZE, file, line); }
    template <typename T>
    T shfl_down(T value, unsigned delta, CUDA_HOST_SITE) const { return __shfl_down_sync(mask(), value, delta, SIZE, file, line); }
    template <typename T>
    T shfl_xor(T value, unsigned lanes, CUDA_HOST_SITE) const { return __shfl_xor_sync(mask(), value, lanes, SIZE, file, line); }
    int any(int predicate, CUDA_HOST_SITE) const { return __any_sync(mask(), predicate, file, line); }
    int all(int predicate, CUDA_HOST_SITE) const { return __all_sync(mask(), predicate, file, line); }
    unsigned ballot(int predicate, CUDA_HOST_SITE) const { return __ballot_sync(mask(), predicate, file, line) >> first(); }

private:
    static unsigned first() { return detail::thread_of_block() % 32 / SIZE * SIZE; }
    static unsigned mask() { return (SIZE == 32 ? 0xffffffffu : (1u << SIZE % 32) - 1) << first(); }
};

template <unsigned SIZE, typename Parent>
thread_block_tile<SIZE> tiled_partition(const Parent&)
{
    return {};
}

template <typename Group>
void sync(const Group& group, CUDA_HOST_SITE)
{
    group.sync(file, line);
}

}  // namespace cooperative_groups
