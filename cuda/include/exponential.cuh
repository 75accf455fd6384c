// exp for arguments of 0 and below, good for a few units in the last place: PTX ISA, "ex2".
#pragma once

#include "exp2_approx.cuh"

// d is what is left after the maximum has been subtracted: scaling x and the maximum apart would overflow.
__device__ inline float exponential(float d) { return exp2_approx(d * 1.44269504088896340736f); }

// m for the subtraction: where nothing is above -inf, 0, since -inf - -inf would be NaN.
__device__ inline float finite(float m) { return m == __int_as_float(0xff800000) ? 0.0f : m; }
