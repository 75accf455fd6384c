// Barriers in shared memory that count arrivals and bytes (from sm_90 on): PTX ISA, "mbarrier". A phase is over once all
// arrivals have come and all bytes that they announced are there; the phases of a barrier are told apart by their parity.
#pragma once

using Barrier = unsigned long long;

__device__ inline unsigned shared_address(const void* shared)
{
    return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

// arrivals: of one phase.
__device__ inline void mbarrier_init(Barrier* barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Shows this thread's initialised barriers to asynchronous copies and to the blocks of the cluster.
__device__ inline void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void mbarrier_arrive(Barrier* barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// The same at the barrier of another block of the cluster, or of this one. What this thread has written before is not
// shown to that block, which would take a fence of the whole GPU each time.
__device__ inline void mbarrier_arrive_at(Barrier* barrier, int block)
{
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
        "}" ::"r"(shared_address(barrier)),
        "r"(block)
        : "memory");
}

// Arrives, and announces bytes that copies will bring.
__device__ inline void mbarrier_expect(Barrier* barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

// Waits until the phase of that parity is over. A new barrier counts as one whose phase of parity 1 is over.
__device__ inline void mbarrier_wait(Barrier* barrier, unsigned parity)
{
    unsigned over;
    do {
        asm volatile(
            "{\n"
            ".reg .pred over;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
            "selp.u32 %0, 1, 0, over;\n"
            "}"
            : "=r"(over)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
    } while (!over);
}
