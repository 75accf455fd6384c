// cuda/include/wgmma.cuh on a CPU: a thread computes its own sums when it waits for them, so that a stage that was filled again
// before that shows. What a descriptor says is read as PTX ISA, "canonical layouts", has it.
#pragma once

#include "mbarrier.cuh"
#include "tile_layout.cuh"

namespace cuda_host {

// A thread's products: not committed yet, and groups not waited for yet.
struct Products {
    std::vector<std::function<void()>> open;
    std::vector<std::vector<std::function<void()>>> groups;
};

inline Products& products_of_thread()
{
    static thread_local std::map<std::pair<const void*, unsigned>, Products> all;
    return all[{dynamic_shared_memory(), linear_thread()}];
}

// Element (row, k) of the tile of a descriptor.
template <typename T, bool K_MAJOR>
float element(unsigned long long descriptor, int row, int k)
{
    const int start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
    const int inside = K_MAJOR ? row % 8 * 128 + row / 8 * stride + k * static_cast<int>(sizeof(T))
                               : row % 64 * static_cast<int>(sizeof(T)) + row / 64 * leading + k % 8 * 128 + k / 8 * stride;
    const int place = start + inside;
    const void* address = static_cast<const char*>(dynamic_shared_memory()) + (place ^ (place >> 7 & 7) << 4);
    if constexpr (sizeof(T) == 4) {
        return __uint_as_float(*static_cast<const unsigned*>(address) & 0xffffe000u);
    } else {
        return static_cast<float>(*static_cast<const T*>(address));
    }
}

// What a lane brings to a product of A in registers.
template <int N>
struct Share {
    const unsigned (&a)[4];
    float (&d)[N];
    unsigned long long b;
    int add;
};

template <bool B_K_MAJOR, typename T, int N>
void multiply_shares(void* const* lanes, unsigned there)
{
    if (there != ALL_LANES) fail("a product of a warpgroup without all of a warp's lanes: 0x%08x", there);
    const auto share = [&](int lane) -> const Share<N>& { return *static_cast<const Share<N>*>(lanes[lane]); };
    float a[16][16], b[2 * N][16];
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 8; ++i) {
            T number;
            std::memcpy(&number, reinterpret_cast<const T*>(share(lane).a) + i, sizeof number);
            a[lane / 4 + i / 2 % 2 * 8][lane % 4 * 2 + i % 2 + i / 4 * 8] = static_cast<float>(number);
        }
    for (int col = 0; col < 2 * N; ++col)
        for (int k = 0; k < 16; ++k) b[col][k] = element<T, B_K_MAJOR>(share(0).b, col, k);
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < N; ++i) {
            float sum = share(lane).add ? share(lane).d[i] : 0.0f;
            for (int k = 0; k < 16; ++k) sum += a[wgmma_row(lane, i)][k] * b[wgmma_col(lane, i)][k];
            share(lane).d[i] = sum;
        }
}

}  // namespace cuda_host

inline void wgmma_fence() {}

inline void wgmma_commit()
{
    auto& products = cuda_host::products_of_thread();
    products.groups.push_back(std::move(products.open));
    products.open.clear();
}

template <int PENDING>
void wgmma_wait()
{
    auto& groups = cuda_host::products_of_thread().groups;
    while (groups.size() > PENDING) {
        for (auto& product : groups.front()) product();
        groups.erase(groups.begin());
    }
}

template <int N>
void wgmma_keep(float (&)[N])
{
}

template <int PENDING, int N>
void wgmma_wait(float (&)[N])
{
    wgmma_wait<PENDING>();
}

template <bool A_K_MAJOR, bool B_K_MAJOR, typename T, int N>
void wgmma(T, float (&d)[N], unsigned long long a, unsigned long long b, int add)
{
    cuda_host::products_of_thread().open.push_back([=, &d] {
        const int thread = threadIdx.x % 128;
        for (int i = 0; i < N; ++i) {
            float sum = add ? d[i] : 0.0f;
            for (int k = 0; k < static_cast<int>(32 / sizeof(T)); ++k)
                sum += cuda_host::element<T, A_K_MAJOR>(a, wgmma_row(thread, i), k) * cuda_host::element<T, B_K_MAJOR>(b, wgmma_col(thread, i), k);
            d[i] = sum;
        }
    });
}

// A warp's lanes have its rows of A together; they too are read when the product is waited for.
template <bool B_K_MAJOR, typename T, int N>
void wgmma(T, float (&d)[N], const unsigned (&a)[4], unsigned long long b, int add, CUDA_HOST_SITE)
{
    cuda_host::products_of_thread().open.push_back([=, &d, &a] {
        cuda_host::Share<N> mine{a, d, b, add};
        cuda_host::collect(cuda_host::ALL_LANES, "wgmma", {file, line}, &mine, cuda_host::multiply_shares<B_K_MAJOR, T, N>);
    });
}

template <int>
void registers_give()
{
}

template <int>
void registers_take()
{
}
