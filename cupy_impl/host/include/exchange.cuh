// As in cuda/include/exchange.cuh. What waits gives way to the other threads.
#pragma once

inline void publish(unsigned long long* word, float number)
{
    *word = 1ull << 32 | __float_as_uint(number);
}

inline float published(const unsigned long long* word, CUDA_HOST_SITE)
{
    const cuda_host::Site site{file, line};
    if (!cuda_host::cooperative())
        cuda_host::fail("waits for another block at %s:%d in a launch that is not cooperative", site.name(), line);
    const auto there = [](const void* word, unsigned) { return *static_cast<const unsigned long long*>(word) != 0; };
    cuda_host::wait_until(there, word, 0, "a number of another block", site);
    return __uint_as_float(static_cast<unsigned>(*word));
}
