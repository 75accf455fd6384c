// What follows a product's sum in float32, before the one rounding: reference/matmul.py.
//
// Defines: ACTIVATION (0 none, 1 GELU, 2 its tanh form).
#pragma once

__device__ inline float activate(float z)
{
    // --- activation
    if constexpr (ACTIVATION == 1) {
        return 0.5f * z * (1.0f + erff(z * 0.70710678118654752f));
    } else if constexpr (ACTIVATION == 2) {
        return 0.5f * z * (1.0f + tanhf(0.79788456080286536f * (z + 0.044715f * z * z * z)));
    } else {
        return z;
    }
}
