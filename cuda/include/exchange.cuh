// Numbers that blocks tell each other through global memory while they run: PTX ISA, "Memory Consistency Model". All of
// them have to be resident, which a cooperative launch sees to. A word has a number and, above it, a mark; 64 bits are
// written and read as one, so that nothing else has to be ordered. It is 0 until then.
#pragma once

__device__ inline void publish(unsigned long long* word, float number)
{
    const unsigned long long marked = 1ull << 32 | __float_as_uint(number);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(marked) : "memory");
}

// Waits until the word has a number.
__device__ inline float published(const unsigned long long* word)
{
    unsigned long long marked;
    do {
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(marked) : "l"(word) : "memory");
    } while (marked == 0);
    return __uint_as_float(static_cast<unsigned>(marked));
}
