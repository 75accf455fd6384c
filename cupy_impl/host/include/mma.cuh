// cuda/include/mma.cuh on a CPU.
#pragma once

namespace cuda_host {

struct Matrices {
    const unsigned char* row;
    unsigned* words;
};

// What a lane brings to a product and takes from it.
struct Factors {
    unsigned a[4], b[2];
    float* d;
};

template <typename T>
float factor(unsigned word, int half)
{
    if constexpr (sizeof(T) == 4) {
        return __uint_as_float(word & 0xffffe000u);
    } else {
        T number;
        const unsigned short bits = word >> 16 * half;
        std::memcpy(&number, &bits, sizeof number);
        return static_cast<float>(number);
    }
}

template <typename T>
void multiply(void* const* lanes, unsigned there)
{
    if (there != ALL_LANES) fail("a product of a warp's matrices without all of its lanes: 0x%08x", there);
    constexpr int HALVES = 4 / sizeof(T);
    float a[16][8 * HALVES], b[8][8 * HALVES];
    for (int lane = 0; lane < 32; ++lane) {
        const Factors& one = *static_cast<const Factors*>(lanes[lane]);
        for (int part = 0; part < 2; ++part)
            for (int half = 0; half < HALVES; ++half) {
                const int k = (part * 4 + lane % 4) * HALVES + half;
                a[lane / 4][k] = factor<T>(one.a[2 * part], half);
                a[lane / 4 + 8][k] = factor<T>(one.a[2 * part + 1], half);
                b[lane / 4][k] = factor<T>(one.b[part], half);
            }
    }
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i) {
            const float *row = a[lane / 4 + i / 2 * 8], *col = b[lane % 4 * 2 + i % 2];
            float& sum = static_cast<const Factors*>(lanes[lane])->d[i];
            for (int k = 0; k < 8 * HALVES; ++k) sum += row[k] * col[k];
        }
}

}  // namespace cuda_host

template <bool TRANSPOSED>
void load_matrices(unsigned (&words)[4], const void* row, CUDA_HOST_SITE)
{
    if (reinterpret_cast<std::uintptr_t>(row) % 16) cuda_host::fail("a matrix's row starts off a multiple of 16 bytes");
    cuda_host::Matrices mine{static_cast<const unsigned char*>(row), words};
    cuda_host::collect(cuda_host::ALL_LANES, "load_matrices", {file, line}, &mine, [](void* const* lanes, unsigned there) {
        if (there != cuda_host::ALL_LANES) cuda_host::fail("a warp's load of matrices without all of its lanes: 0x%08x", there);
        const auto row = [&](int matrix, int i) { return static_cast<cuda_host::Matrices*>(lanes[matrix * 8 + i])->row; };
        for (int lane = 0; lane < 32; ++lane)
            for (int matrix = 0; matrix < 4; ++matrix) {
                unsigned* word = static_cast<cuda_host::Matrices*>(lanes[lane])->words + matrix;
                if constexpr (TRANSPOSED) {
                    unsigned short pair[2];
                    for (int i = 0; i < 2; ++i) std::memcpy(pair + i, row(matrix, lane % 4 * 2 + i) + lane / 4 * 2, 2);
                    std::memcpy(word, pair, 4);
                } else {
                    std::memcpy(word, row(matrix, lane / 4) + lane % 4 * 4, 4);
                }
            }
    });
}

template <typename T>
void mma(T, float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, CUDA_HOST_SITE)
{
    cuda_host::Factors mine{{a[0], a[1], a[2], a[3]}, {b0, b1}, d};
    cuda_host::collect(cuda_host::ALL_LANES, "mma", {file, line}, &mine, cuda_host::multiply<T>);
}
