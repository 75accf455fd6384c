// 2^x in one instruction; results below float32's normal range are 0: PTX ISA, "ex2".
#pragma once

__device__ inline float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
