// CUDA C++ on a CPU: what a kernel needs to build under a plain C++ compiler and run thread by thread.
//
// Compiled with -DSOURCE="the .cu file" -DKERNEL=its kernel; exports cuda_host_launch, which takes a grid, a
// block and the addresses of the arguments as cuLaunchKernel does. Threads of a block run one after another:
// barriers and shuffles are not declared, so that a kernel that needs them does not build.

#include <cuda_runtime.h>  // the vector types, dim3, and __global__ and friends as nothing

#include <tuple>
#include <type_traits>
#include <utility>

#undef __launch_bounds__
#define __launch_bounds__(...)

namespace cuda_host {
thread_local uint3 thread_index, block_index;
thread_local dim3 block_size, grid_size;
}  // namespace cuda_host

#define threadIdx cuda_host::thread_index
#define blockIdx cuda_host::block_index
#define blockDim cuda_host::block_size
#define gridDim cuda_host::grid_size

#include SOURCE

namespace cuda_host {

template <typename... Parameters, std::size_t... I>
void run(void (*kernel)(Parameters...), void** arguments, std::index_sequence<I...>)
{
    kernel(*static_cast<std::remove_cv_t<Parameters>*>(arguments[I])...);
}

template <typename... Parameters>
void launch(void (*kernel)(Parameters...), const unsigned* grid, const unsigned* block, void** arguments)
{
    grid_size = dim3(grid[0], grid[1], grid[2]);
    block_size = dim3(block[0], block[1], block[2]);
    for (block_index.z = 0; block_index.z < grid[2]; ++block_index.z)
        for (block_index.y = 0; block_index.y < grid[1]; ++block_index.y)
            for (block_index.x = 0; block_index.x < grid[0]; ++block_index.x)
                for (thread_index.z = 0; thread_index.z < block[2]; ++thread_index.z)
                    for (thread_index.y = 0; thread_index.y < block[1]; ++thread_index.y)
                        for (thread_index.x = 0; thread_index.x < block[0]; ++thread_index.x)
                            run(kernel, arguments, std::index_sequence_for<Parameters...>{});
}

}  // namespace cuda_host

extern "C" void cuda_host_launch(const unsigned* grid, const unsigned* block, void** arguments)
{
    cuda_host::launch(KERNEL, grid, block, arguments);
}
