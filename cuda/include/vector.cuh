// N scalars that load and store together, 16 bytes at a time where they are that many.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Vector {
    T values[N];
};

template <typename T, bool IN_PAIRS>
struct Part {
    using Type = T;
};

template <typename T>
struct Part<T, true> {
    using Type = unsigned;
};

// The same as they lie in memory, 16-bit numbers in pairs, a word each: moved one by one they cost twice the
// instructions.
template <typename T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Packed {
    static constexpr bool IN_PAIRS = sizeof(T) == 2 && N % 2 == 0;
    typename Part<T, IN_PAIRS>::Type parts[IN_PAIRS ? N / 2 : N];
};

__device__ inline float low_half(unsigned word, __nv_bfloat16) { return __uint_as_float(word << 16); }

__device__ inline float high_half(unsigned word, __nv_bfloat16) { return __uint_as_float(word & 0xffff0000u); }

__device__ inline float low_half(unsigned word, __half) { return __half2float(__ushort_as_half(word & 0xffffu)); }

__device__ inline float high_half(unsigned word, __half) { return __half2float(__ushort_as_half(word >> 16)); }

// To float32, exactly.
template <typename T, int N>
__device__ inline Vector<float, N> widen(const Packed<T, N>& packed)
{
    Vector<float, N> wide;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        if constexpr (Packed<T, N>::IN_PAIRS) {
            const unsigned word = packed.parts[i / 2];
            wide.values[i] = i % 2 == 0 ? low_half(word, T()) : high_half(word, T());
        } else {
            wide.values[i] = static_cast<float>(packed.parts[i]);
        }
    }
    return wide;
}

// From float32, rounded once.
template <typename T, int N>
__device__ inline Packed<T, N> narrow(const Vector<float, N>& wide)
{
    Packed<T, N> packed;
    if constexpr (Packed<T, N>::IN_PAIRS) {
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            const T pair[2] = {static_cast<T>(wide.values[i]), static_cast<T>(wide.values[i + 1])};
            memcpy(&packed.parts[i / 2], pair, sizeof pair);
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            packed.parts[i] = static_cast<T>(wide.values[i]);
        }
    }
    return packed;
}

// All of them one number.
template <typename T, int N>
__device__ inline Packed<T, N> filled(float number)
{
    Vector<float, N> wide;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        wide.values[i] = number;
    }
    return narrow<T>(wide);
}
