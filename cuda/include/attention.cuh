// What attention's kernels share: where a head's rows lie, which keys a query sees, and the state of a row of scores.
//
// Defines: SCALAR (__half, __nv_bfloat16), HEAD_DIM (64 or 128), CAUSAL (0 or 1).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "exponential.cuh"
#include "reduce.cuh"
#include "vector.cuh"

// Where q, k, v and out lie, all of them alike: elements from one batch, head and position to the next.
struct Layout {
    long long batch, head, row;
    int heads, sequence;

    // The first row of a head, counted over all batches.
    __device__ long long first(int index) const { return index / heads * batch + index % heads * head; }

    __device__ bool seen(int query, int key) const { return key < sequence && (!CAUSAL || key <= query); }
};

constexpr float LOG2E = 1.44269504088896340736f, LN2 = 0.69314718055994530942f;

// Of a query's scores so far, unscaled: m their maximum, l the sum of exp(scale (score - m)). A score that is no number makes
// l none. scale: times log2 e, for exponentials of 2.
struct State {
    float m = Max::neutral(), l = 0.0f;

    // Takes a new maximum; returns what is to be multiplied with what was summed under the old one.
    __device__ float raise(float top, float scale)
    {
        const float before = m;
        m = fmaxf(m, top);
        const float factor = exp2_approx((before - finite(m)) * scale);
        l *= factor;
        return factor;
    }

    // What is subtracted from scale times a score.
    __device__ float shift(float scale) const { return finite(m) * scale; }

    // The natural logarithm of the sum of exp(scale score).
    __device__ float log_sum(float scale) const { return (m * scale + log2f(l)) * LN2; }
};
