// Warp matrix fragments on a CPU. Which lane holds which element is nobody's business, as in CUDA: here element i of
// the matrix, rows first, is lane i % 32's element i / 32. Products are summed in float32, one after the other.
#pragma once

namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };

template <typename Use, int M, int N, int K, typename T, typename Layout = void>
struct fragment {
    static constexpr int rows = std::is_same_v<Use, matrix_b> ? K : M;
    static constexpr int cols = std::is_same_v<Use, matrix_a> ? K : N;
    static constexpr int num_elements = rows * cols / 32;
    T x[num_elements];
};

template <typename Use, int M, int N, int K, typename T, typename Layout>
void fill_fragment(fragment<Use, M, N, K, T, Layout>& f, std::common_type_t<T> value)
{
    for (T& x : f.x) x = value;
}

namespace detail {
template <typename Fragment, typename T>
void move(Fragment& f, T* memory, unsigned stride, bool by_rows, bool loads)
{
    for (int j = 0; j < Fragment::num_elements; ++j) {
        const int i = j * 32 + cuda_host::lane(), row = i / Fragment::cols, col = i % Fragment::cols;
        T& place = memory[by_rows ? static_cast<std::size_t>(row) * stride + col : static_cast<std::size_t>(col) * stride + row];
        if (loads)
            f.x[j] = place;
        else
            place = f.x[j];
    }
}
}  // namespace detail

template <typename Use, int M, int N, int K, typename T, typename Layout>
void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& f, const T* memory, unsigned stride, CUDA_HOST_SITE)
{
    __syncwarp(cuda_host::ALL_LANES, file, line);
    detail::move(f, const_cast<T*>(memory), stride, std::is_same_v<Layout, row_major>, true);
}

template <int M, int N, int K, typename T>
void load_matrix_sync(fragment<accumulator, M, N, K, T>& f, const T* memory, unsigned stride, layout_t layout, CUDA_HOST_SITE)
{
    __syncwarp(cuda_host::ALL_LANES, file, line);
    detail::move(f, const_cast<T*>(memory), stride, layout == mem_row_major, true);
}

template <int M, int N, int K, typename T>
void store_matrix_sync(T* memory, const fragment<accumulator, M, N, K, T>& f, unsigned stride, layout_t layout, CUDA_HOST_SITE)
{
    detail::move(const_cast<fragment<accumulator, M, N, K, T>&>(f), memory, stride, layout == mem_row_major, false);
    __syncwarp(cuda_host::ALL_LANES, file, line);
}

template <int M, int N, int K, typename T, typename A, typename B, typename R, typename RC>
void mma_sync(fragment<accumulator, M, N, K, R>& d, const fragment<matrix_a, M, N, K, T, A>& a,
              const fragment<matrix_b, M, N, K, T, B>& b, const fragment<accumulator, M, N, K, RC>& c, CUDA_HOST_SITE)
{
    using D = fragment<accumulator, M, N, K, R>;
    using FragmentA = fragment<matrix_a, M, N, K, T, A>;
    using FragmentB = fragment<matrix_b, M, N, K, T, B>;
    using C = fragment<accumulator, M, N, K, RC>;
    struct Operands {
        D* out;
        const FragmentA* left;
        const FragmentB* right;
        const C* start;
    } mine{&d, &a, &b, &c};
    cuda_host::collect(cuda_host::ALL_LANES, "mma_sync", {file, line}, &mine, [](void* const* lanes, unsigned there) {
        if (there != cuda_host::ALL_LANES) cuda_host::fail("mma_sync by a warp of which threads are missing");
        const auto of = [&](int i) -> const Operands& { return *static_cast<const Operands*>(lanes[i % 32]); };
        static thread_local float result[M * N];
        for (int m = 0; m < M; ++m)
            for (int n = 0; n < N; ++n) {
                const int i = m * N + n;
                float sum = static_cast<float>(of(i).start->x[i / 32]);
                for (int k = 0; k < K; ++k) {
                    const int ia = m * K + k, ib = k * N + n;
                    sum += static_cast<float>(of(ia).left->x[ia / 32]) * static_cast<float>(of(ib).right->x[ib / 32]);
                }
                result[i] = sum;
            }
        for (int i = 0; i < M * N; ++i) of(i).out->x[i / 32] = static_cast<R>(result[i]);
    });
}

}  // namespace nvcuda::wmma
