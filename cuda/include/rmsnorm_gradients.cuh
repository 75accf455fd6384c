// RMSNorm's gradients of one vector of a row: reference/rmsnorm.py, backward.
#pragma once

#include "vector.cuh"

// What the vector adds to the mean of g x, times rstd and cols. x rstd is of moderate size.
template <typename T, typename W, int N>
__device__ inline float mean_part(Packed<T, N> dy, Packed<T, N> x, Packed<W, N> weight, float rstd)
{
    // --- mean of g x
    const Vector<float, N> up = widen(dy), v = widen(x), factor = widen(weight);
    float part = 0.0f;
#pragma unroll
    for (int j = 0; j < N; ++j) {
        part += up.values[j] * factor.values[j] * (v.values[j] * rstd);
    }
    return part;
}

// The vector's dx; its terms of dweight are added to ``sums``. mean: of g x, times rstd.
template <typename T, typename W, int N>
__device__ inline Packed<T, N> gradients(Packed<T, N> dy, Packed<T, N> x, Packed<W, N> weight, float rstd, float mean,
                                         Vector<float, N>& sums)
{
    const Vector<float, N> up = widen(dy), factor = widen(weight);
    Vector<float, N> v = widen(x);
#pragma unroll
    for (int j = 0; j < N; ++j) {
        const float normed = v.values[j] * rstd;
        // --- dx
        v.values[j] = rstd * (up.values[j] * factor.values[j] - normed * mean);
        // --- dweight
        sums.values[j] += up.values[j] * normed;
    }
    return narrow<T>(v);
}
