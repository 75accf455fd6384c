// Matrix products of a warpgroup, four warps, on tensor cores (sm_90a alone): PTX ISA, "wgmma". A (64, k) and B (k, n) are
// tiles in shared memory, 128 bytes wide and swizzled as TMA writes them, D (64, n) float32 in registers; A may be, too.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "tile_layout.cuh"

// Before a warpgroup's first product, and whenever its registers were touched since.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes a group of products.
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most PENDING groups are under way.
template <int PENDING>
__device__ inline void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from computing d, or reading it, on the other side of this line, where products start or are waited for.
template <int N>
__device__ inline void wgmma_keep(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; ++i) {
        asm volatile("" : "+f"(d[i])::"memory");
    }
}

// Waits, and then for sums d.
template <int PENDING, int N>
__device__ inline void wgmma_wait(float (&d)[N])
{
    wgmma_wait<PENDING>();
    wgmma_keep(d);
}

// wgmma<A_K_MAJOR, B_K_MAJOR>(T(), d, a, b, add) for T __half, __nv_bfloat16 and float, which is cut to TF32 and has to be
// K-major: d = a b, or with add d + a b. Of descriptors a and b, 32 bytes of K.
#define DIGITS(tens) \
    "%" #tens "0, %" #tens "1, %" #tens "2, %" #tens "3, %" #tens "4, " \
    "%" #tens "5, %" #tens "6, %" #tens "7, %" #tens "8, %" #tens "9, "
#define PLACES_4 "%0, %1, %2, %3"
#define PLACES_8 PLACES_4 ", %4, %5, %6, %7"
#define PLACES_16 DIGITS() "%10, %11, %12, %13, %14, %15"
#define PLACES_32 DIGITS() DIGITS(1) DIGITS(2) "%30, %31"
#define PLACES_64 DIGITS() DIGITS(1) DIGITS(2) DIGITS(3) DIGITS(4) DIGITS(5) "%60, %61, %62, %63"
#define PLACES_72 DIGITS() DIGITS(1) DIGITS(2) DIGITS(3) DIGITS(4) DIGITS(5) DIGITS(6) "%70, %71"
#define PLACES_80 PLACES_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define PLACES_88 PLACES_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define PLACES_96 PLACES_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define PLACES_128 \
    DIGITS() DIGITS(1) DIGITS(2) DIGITS(3) DIGITS(4) DIGITS(5) DIGITS(6) DIGITS(7) DIGITS(8) DIGITS(9) DIGITS(10) \
        DIGITS(11) "%120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS_8(i) SUMS_4(i), SUMS_4(i + 4)
#define SUMS_16(i) SUMS_8(i), SUMS_8(i + 8)
#define SUMS_32(i) SUMS_16(i), SUMS_16(i + 16)
#define SUMS_64(i) SUMS_32(i), SUMS_32(i + 32)
#define SUMS_88(i) SUMS_64(i), SUMS_16(i + 64), SUMS_8(i + 80)
#define SUMS_96(i) SUMS_64(i), SUMS_32(i + 64)
#define SUMS_128(i) SUMS_64(i), SUMS_64(i + 64)

#define WGMMA_16(T, NAME, N, SUMS, A, B, ADD, A_MAJOR, B_MAJOR) \
    template <bool A_K_MAJOR, bool B_K_MAJOR> \
    __device__ inline void wgmma(T, float (&d)[SUMS], unsigned long long a, unsigned long long b, int add) \
    { \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #ADD ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" PLACES_##SUMS "}, %" #A \
                     ", %" #B ", add, 1, 1, %" #A_MAJOR ", %" #B_MAJOR ";\n}" \
                     : SUMS_##SUMS(0) \
                     : "l"(a), "l"(b), "r"(add), "n"(A_K_MAJOR ? 0 : 1), "n"(B_K_MAJOR ? 0 : 1)); \
    }
#define WGMMA(N, SUMS, A, B, ADD, A_MAJOR, B_MAJOR) \
    WGMMA_16(__half, "f16", N, SUMS, A, B, ADD, A_MAJOR, B_MAJOR) \
    WGMMA_16(__nv_bfloat16, "bf16", N, SUMS, A, B, ADD, A_MAJOR, B_MAJOR) \
    template <bool A_K_MAJOR, bool B_K_MAJOR> \
    __device__ inline void wgmma(float, float (&d)[SUMS], unsigned long long a, unsigned long long b, int add) \
    { \
        static_assert(A_K_MAJOR && B_K_MAJOR, "no transposes of 32-bit numbers"); \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #ADD ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 {" PLACES_##SUMS "}, %" #A ", %" #B \
                     ", add, 1, 1;\n}" \
                     : SUMS_##SUMS(0) \
                     : "l"(a), "l"(b), "r"(add)); \
    }

// wgmma<B_K_MAJOR>(T(), d, a, b, add) for T __half and __nv_bfloat16: the same with A in registers, 16 of K. A thread has
// words of two neighbours along K: those of columns 2 (lane % 4) and the next, rows lane / 4 and lane / 4 + 8 of its warp's
// 16, then the same 8 columns on.
#define WGMMA_A_16(T, NAME, N, SUMS, A, A1, A2, A3, B, ADD, B_MAJOR) \
    template <bool B_K_MAJOR> \
    __device__ inline void wgmma(T, float (&d)[SUMS], const unsigned (&a)[4], unsigned long long b, int add) \
    { \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #ADD ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" PLACES_##SUMS "}, {%" #A \
                     ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", add, 1, 1, %" #B_MAJOR ";\n}" \
                     : SUMS_##SUMS(0) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(B_K_MAJOR ? 0 : 1)); \
    }
#define WGMMA_A(...) \
    WGMMA_A_16(__half, "f16", __VA_ARGS__) \
    WGMMA_A_16(__nv_bfloat16, "bf16", __VA_ARGS__)
WGMMA_A(64, 32, 32, 33, 34, 35, 36, 37, 38)
WGMMA_A(128, 64, 64, 65, 66, 67, 68, 69, 70)
WGMMA(8, 4, 4, 5, 6, 7, 8)
WGMMA(16, 8, 8, 9, 10, 11, 12)
WGMMA(32, 16, 16, 17, 18, 19, 20)
WGMMA(64, 32, 32, 33, 34, 35, 36)
WGMMA(128, 64, 64, 65, 66, 67, 68)
WGMMA(176, 88, 88, 89, 90, 91, 92)
WGMMA(192, 96, 96, 97, 98, 99, 100)
WGMMA(256, 128, 128, 129, 130, 131, 132)

// Registers of each thread, for the whole warpgroup to call: gives back those above N, or takes up to N.
template <int N>
__device__ inline void registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N>
__device__ inline void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
