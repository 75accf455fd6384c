// cuda/include/mbarrier.cuh on a CPU.
#pragma once

struct Barrier {
    short arrivals, pending;  // of a phase; not there yet
    int bytes : 31;           // announced and not there yet
    unsigned phase : 1;
};
static_assert(sizeof(Barrier) == 8);

// Places in shared memory count from its start, which is as well aligned as on a GPU.
inline unsigned shared_address(const void* shared)
{
    return static_cast<const char*>(shared) - static_cast<const char*>(cuda_host::dynamic_shared_memory());
}

inline void mbarrier_init(Barrier* barrier, int arrivals) { *barrier = {static_cast<short>(arrivals), static_cast<short>(arrivals), 0, 0}; }

inline void mbarrier_init_fence() {}

namespace cuda_host {

inline void changed(Barrier* barrier, int arrived, int bytes)
{
    barrier->pending -= arrived;
    barrier->bytes += bytes;
    if (barrier->pending < 0) fail("more arrivals at a barrier than the %d of its phase", barrier->arrivals);
    if (barrier->pending == 0 && barrier->bytes == 0) {
        barrier->pending = barrier->arrivals;
        barrier->phase ^= 1;
    }
}

}  // namespace cuda_host

inline void mbarrier_arrive(Barrier* barrier) { cuda_host::changed(barrier, 1, 0); }

inline void mbarrier_arrive_at(Barrier* barrier, int block, CUDA_HOST_SITE)
{
    cuda_host::changed(static_cast<Barrier*>(cuda_host::shared_of(barrier, block, {file, line})), 1, 0);
}

inline void mbarrier_expect(Barrier* barrier, int bytes) { cuda_host::changed(barrier, 1, bytes); }

inline void mbarrier_wait(Barrier* barrier, unsigned parity, CUDA_HOST_SITE)
{
    const auto over = [](const void* it, unsigned parity) { return static_cast<const Barrier*>(it)->phase != parity; };
    cuda_host::wait_until(over, barrier, parity, "a barrier's phase", {file, line});
}
