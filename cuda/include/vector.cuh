// N scalars that load and store together, 16 bytes at a time where they are that many.
#pragma once

template <typename T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Vector {
    T values[N];
};
