// Runs a CUDA kernel on a CPU: one fiber for each CUDA thread, so that barriers and warp collectives really wait.
//
// A block's fibers take turns on one OS thread, blocks are spread over the cores. A fiber gives way only where it
// waits, so a kernel that orders its threads as CUDA asks gets CUDA's results; one that does not is reported: threads
// that wait for others which do not come, threads at different barriers, a lane that its mask does not name, shared
// memory accessed outside a variable. Shared memory is poisoned (all bits set, a NaN in every floating-point type)
// before a block starts.
#pragma once

#include <cuda_runtime.h>  // the vector types, dim3, and __global__ and friends as nothing

#include <cstddef>

#pragma GCC visibility push(default)  // kernels find these; nothing else of the engine is seen by other libraries

namespace cuda_host {

constexpr unsigned ALL_LANES = 0xffffffffu;

struct Site {
    const char* file;
    int line;
    const char* name() const;  // the file without its directories
};

// Last parameters of what a kernel calls, so that a report can say where.
#define CUDA_HOST_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

// Reports what CUDA leaves undefined, with the block and thread, and gives the launch up.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

const uint3& thread_index();
const uint3& block_index();
const dim3& block_size();
const dim3& grid_size();
unsigned linear_thread();
std::size_t threads_of_block();
bool cooperative();
unsigned lanes_there();  // of the thread's warp, those that have not returned

// Called by the last thread to come, on what all of them brought.
using Together = void (*)(void** values, std::size_t count);

// All threads of the block come to the same line.
void meet_block(const char* what, Site site, void* value = nullptr, Together last = nullptr);

// All threads of a cooperative launch.
void meet_grid(Site site);

// All threads of the block's cluster.
void meet_cluster(Site site);
unsigned cluster_size();
unsigned cluster_rank();

// What a shared variable of this block is in the block of that rank in the cluster.
void* shared_of(const void* variable, unsigned rank, Site site);

// Waits until over(subject, value) is true.
void wait_until(bool (*over)(const void* subject, unsigned value), const void* subject, unsigned value, const char* what,
                Site site);

// `threads` threads of the block come to barrier `id`; those that do not wait go on.
void meet_named(int id, unsigned threads, bool waits, Site site);

// The lanes of a warp that `mask` names bring a value each; `last` sees them by lane and changes them in place.
using Lanes = void (*)(void* const* lanes, unsigned there);
void collect(unsigned mask, const char* what, Site site, void* value, Lanes last);

// A __shared__ variable of the block; id tells it from others.
void* shared(const void* id, std::size_t bytes, std::size_t alignment);
void* dynamic_shared_memory();

template <typename T, int KEY, std::size_t ALIGNMENT>
T& static_shared()
{
    static const char id = 0;
    return *static_cast<T*>(shared(&id, sizeof(T), ALIGNMENT > alignof(T) ? ALIGNMENT : alignof(T)));
}

template <typename T>
T* dynamic_shared()
{
    return static_cast<T*>(dynamic_shared_memory());
}

// Asynchronous copies: done when they are waited for, so that a read before that sees what was there.
void copy_later(void* to, const void* from, std::size_t bytes);
void copies_commit();
void copies_wait(std::size_t pending);

// Asynchronous stores: done when they are waited for, so that what is written there before that goes too.
void store_later(void* to, const void* from, std::size_t bytes);
void stores_wait();

// Runs kernel(arguments) for every thread of a launch. Returns what was reported, empty if nothing was.
const char* run(dim3 grid, dim3 block, std::size_t shared_bytes, bool cooperative, unsigned cluster, void (*kernel)(void**),
                void** arguments);

}  // namespace cuda_host

#pragma GCC visibility pop
