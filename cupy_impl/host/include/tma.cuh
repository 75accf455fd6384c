// cuda/include/tma.cuh on a CPU.
#pragma once

#include "mbarrier.cuh"
#include "tile_layout.cuh"

// What cupy_impl/host/__init__.py makes of a tensor map, in the 128 bytes of one.
struct alignas(64) TensorMap {
    unsigned char* array;
    long long dims[4], pitches[3], box[2], itemsize, unused[5];
};

namespace cuda_host {

// The first axes of a place in an array; where it has two, z and w are 0.
struct At {
    long long x, y, z, w;
};

// Calls copy(in shared memory, in global memory, bytes) for every element of a box that lies in the array, and for those
// outside with nullptr.
template <typename Copy>
void box(unsigned char* shared, const TensorMap& map, At at, Copy copy)
{
    const auto& [x, y, z, w] = at;
    if (shared_address(shared) % 1024) fail("a box lies %u bytes from the start of shared memory, no multiple of 1024", shared_address(shared));
    for (int row = 0; row < map.box[1]; ++row)
        for (int i = 0; i < map.box[0]; ++i) {
            const bool inside = x + i >= 0 && x + i < map.dims[0] && y + row >= 0 && y + row < map.dims[1] && z >= 0 &&
                                z < map.dims[2] && w >= 0 && w < map.dims[3];
            unsigned char* element =
                map.array + (x + i) * map.itemsize + (y + row) * map.pitches[0] + z * map.pitches[1] + w * map.pitches[2];
            copy(shared + swizzled(row, i * map.itemsize), inside ? element : nullptr, map.itemsize);
        }
}

struct Store {
    const TensorMap* map;
    unsigned char* shared;
    At at;
};

// A thread's stores that it has not waited for.
inline std::vector<Store>& stores_of_thread()
{
    static thread_local std::map<std::pair<const void*, unsigned>, std::vector<Store>> all;
    return all[{dynamic_shared_memory(), linear_thread()}];
}

}  // namespace cuda_host

inline void tma_load(void* shared, const TensorMap& map, int x, int y, int z, int w, Barrier* barrier)
{
    cuda_host::box(static_cast<unsigned char*>(shared), map, {x, y, z, w}, [](unsigned char* here, const unsigned char* there, int bytes) {
        there ? std::memcpy(here, there, bytes) : std::memset(here, 0, bytes);
    });
    cuda_host::changed(barrier, 0, -map.box[0] * map.box[1] * map.itemsize);
}

inline void tma_load(void* shared, const TensorMap& map, int x, int y, Barrier* barrier) { tma_load(shared, map, x, y, 0, 0, barrier); }

inline void tma_load_multicast(void* shared, const TensorMap& map, int x, int y, Barrier* barrier, unsigned short blocks, CUDA_HOST_SITE)
{
    for (unsigned block = 0; block < cuda_host::cluster_size(); ++block) {
        if (!(blocks >> block & 1)) continue;
        void* place = cuda_host::shared_of(shared, block, {file, line});
        cuda_host::box(static_cast<unsigned char*>(shared), map, {x, y, 0, 0}, [&](unsigned char* here, const unsigned char* there, int bytes) {
            here = static_cast<unsigned char*>(place) + (here - static_cast<unsigned char*>(shared));
            there ? std::memcpy(here, there, bytes) : std::memset(here, 0, bytes);
        });
        cuda_host::changed(static_cast<Barrier*>(cuda_host::shared_of(barrier, block, {file, line})), 0, -map.box[0] * map.box[1] * map.itemsize);
    }
}

inline void tma_store_fence() {}

inline void tma_store(const TensorMap& map, const void* shared, int x, int y, int z = 0, int w = 0)
{
    cuda_host::stores_of_thread().push_back({&map, static_cast<unsigned char*>(const_cast<void*>(shared)), {x, y, z, w}});
}

// Done when they are waited for, so that what is written there before that goes too.
template <int PENDING>
void tma_store_wait()
{
    auto& stores = cuda_host::stores_of_thread();
    while (stores.size() > PENDING) {
        const cuda_host::Store& store = stores.front();
        cuda_host::box(store.shared, *store.map, store.at, [](const unsigned char* here, unsigned char* there, int bytes) {
            if (there) std::memcpy(there, here, bytes);
        });
        stores.erase(stores.begin());
    }
}
