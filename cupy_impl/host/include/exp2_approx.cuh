// cuda/include/exp2_approx.cuh on a CPU.
#pragma once

inline float exp2_approx(float x)
{
    const float y = std::exp2(x);
    return y < 0x1p-126f ? 0.0f : y;  // NaN is not below
}
