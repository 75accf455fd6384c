// N scalars that load and store as one access of N * sizeof(T) bytes.
#pragma once

template <typename T, int N>
struct alignas(N * sizeof(T)) Vector {
    T values[N];
};
