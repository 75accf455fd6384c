// CUDA C++ on a CPU: the names a kernel needs, on top of engine.h.
//
// Compiled with -DSOURCE="the .cu file" and -DKERNEL=its kernel; exports cuda_host_launch. `__shared__` declarations
// are rewritten before compiling (cupy_impl/host/__init__.py) into references to guarded, poisoned memory. What is
// exact here and approximate on a GPU: the __expf family, rsqrtf, division; nothing flushes subnormal numbers.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine.h"

#undef __shared__  // all have been rewritten; one that is left is an error and no thread's own variable
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __cluster_dims__
#define __cluster_dims__(...)
#undef __grid_constant__
#define __grid_constant__

#define threadIdx (::cuda_host::thread_index())
#define blockIdx (::cuda_host::block_index())
#define blockDim (::cuda_host::block_size())
#define gridDim (::cuda_host::grid_size())
constexpr int warpSize = 32;

using std::max;
using std::min;

// --- barriers

inline void __syncthreads(CUDA_HOST_SITE) { cuda_host::meet_block("__syncthreads", {file, line}); }

namespace cuda_host {

inline int how_many(void** values, std::size_t count)
{
    return std::count_if(values, values + count, [](void* value) { return *static_cast<int*>(value) != 0; });
}

inline void give_all(void** values, std::size_t count, int result)
{
    for (std::size_t i = 0; i < count; ++i) *static_cast<int*>(values[i]) = result;
}

}  // namespace cuda_host

inline int __syncthreads_count(int predicate, CUDA_HOST_SITE)
{
    cuda_host::meet_block("__syncthreads_count", {file, line}, &predicate, [](void** values, std::size_t count) {
        cuda_host::give_all(values, count, cuda_host::how_many(values, count));
    });
    return predicate;
}

inline int __syncthreads_or(int predicate, CUDA_HOST_SITE) { return __syncthreads_count(predicate, file, line) > 0; }

inline int __syncthreads_and(int predicate, CUDA_HOST_SITE) { return __syncthreads_count(!predicate, file, line) == 0; }

inline void __syncwarp(unsigned mask = cuda_host::ALL_LANES, CUDA_HOST_SITE)
{
    int nothing = 0;
    cuda_host::collect(mask, "__syncwarp", {file, line}, &nothing, [](void* const*, unsigned) {});
}

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

// --- warp collectives

namespace cuda_host {

template <typename T>
struct Exchange {
    T value, result;
    int source;  // a lane of the warp
    bool reads;  // or the value stays
    unsigned mask;
    Site site;
};

// Everybody gets the value of the lane it asks for.
template <typename T>
T shuffle(const char* what, unsigned mask, T value, int source, bool reads, Site site)
{
    Exchange<T> mine{value, value, source, reads, mask, site};
    collect(mask, what, site, &mine, [](void* const* lanes, unsigned there) {
        for (int lane = 0; lane < 32; ++lane) {
            if (!(there >> lane & 1)) continue;
            auto& one = *static_cast<Exchange<T>*>(lanes[lane]);
            if (!one.reads) continue;
            if (!(there >> one.source & 1))
                fail("lane %d shuffles from lane %d at %s:%d, which mask 0x%08x does not name or which has returned", lane, one.source, one.site.name(), one.site.line, one.mask);
            one.result = static_cast<Exchange<T>*>(lanes[one.source])->value;
        }
    });
    return mine.result;
}

// Everybody gets combine(all values, in the order of the lanes).
template <typename T, typename R>
R reduce(const char* what, unsigned mask, T value, Site site, R (*combine)(const T*, const int* lanes, int count))
{
    struct Part {
        T value;
        R result;
        R (*combine)(const T*, const int*, int);
    } mine{value, R{}, combine};
    collect(mask, what, site, &mine, [](void* const* lanes, unsigned there) {
        T values[32];
        int which[32], count = 0;
        R (*combine)(const T*, const int*, int) = nullptr;
        for (int lane = 0; lane < 32; ++lane)
            if (there >> lane & 1) {
                const Part& part = *static_cast<Part*>(lanes[lane]);
                which[count] = lane;
                values[count++] = part.value;
                combine = part.combine;
            }
        const R result = count ? combine(values, which, count) : R{};
        for (int i = 0; i < count; ++i) static_cast<Part*>(lanes[which[i]])->result = result;
    });
    return mine.result;
}

inline int lane() { return linear_thread() % 32; }

}  // namespace cuda_host

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, CUDA_HOST_SITE)
{
    const int lane = cuda_host::lane();
    return cuda_host::shuffle("__shfl_sync", mask, value, lane / width * width + (source & (width - 1)), true, {file, line});
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDA_HOST_SITE)
{
    const int lane = cuda_host::lane(), source = lane - static_cast<int>(delta);
    return cuda_host::shuffle("__shfl_up_sync", mask, value, source, source >= lane / width * width, {file, line});
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDA_HOST_SITE)
{
    const int lane = cuda_host::lane(), source = lane + static_cast<int>(delta);
    return cuda_host::shuffle("__shfl_down_sync", mask, value, source, source < lane / width * width + width, {file, line});
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, CUDA_HOST_SITE)
{
    const int lane = cuda_host::lane(), source = lane ^ lanes;
    return cuda_host::shuffle("__shfl_xor_sync", mask, value, source, source < lane / width * width + width, {file, line});
}

inline unsigned __ballot_sync(unsigned mask, int predicate, CUDA_HOST_SITE)
{
    return cuda_host::reduce<int, unsigned>("__ballot_sync", mask, predicate, {file, line}, [](const int* values, const int* lanes, int count) {
        unsigned bits = 0;
        for (int i = 0; i < count; ++i) bits |= (values[i] != 0 ? 1u : 0u) << lanes[i];
        return bits;
    });
}

inline int __any_sync(unsigned mask, int predicate, CUDA_HOST_SITE) { return __ballot_sync(mask, predicate, file, line) != 0; }

inline int __all_sync(unsigned mask, int predicate, CUDA_HOST_SITE) { return __ballot_sync(mask, !predicate, file, line) == 0; }

inline unsigned __activemask() { return cuda_host::lanes_there(); }

#define CUDA_HOST_REDUCE(NAME, TYPE, EXPRESSION)                                                                      \
    inline TYPE NAME(unsigned mask, TYPE value, CUDA_HOST_SITE)                                                       \
    {                                                                                                                 \
        return cuda_host::reduce<TYPE, TYPE>(#NAME, mask, value, {file, line}, [](const TYPE* v, const int*, int n) { \
            TYPE a = v[0];                                                                                            \
            for (int i = 1; i < n; ++i) {                                                                             \
                const TYPE b = v[i];                                                                                  \
                a = EXPRESSION;                                                                                       \
            }                                                                                                         \
            return a;                                                                                                 \
        });                                                                                                           \
    }
CUDA_HOST_REDUCE(__reduce_add_sync, unsigned, a + b)
CUDA_HOST_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
CUDA_HOST_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
CUDA_HOST_REDUCE(__reduce_and_sync, unsigned, a& b)
CUDA_HOST_REDUCE(__reduce_or_sync, unsigned, a | b)
CUDA_HOST_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
CUDA_HOST_REDUCE(__reduce_add_sync, int, a + b)
CUDA_HOST_REDUCE(__reduce_min_sync, int, a < b ? a : b)
CUDA_HOST_REDUCE(__reduce_max_sync, int, a > b ? a : b)
#undef CUDA_HOST_REDUCE

// --- atomics: blocks run on several cores

namespace cuda_host {

template <typename T, typename Change>
T exchange(T* address, Change change)
{
    using Bits = std::conditional_t<sizeof(T) == 2, std::uint16_t, std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;
    static_assert(sizeof(T) == sizeof(Bits));
    Bits* place = reinterpret_cast<Bits*>(address);
    Bits before = __atomic_load_n(place, __ATOMIC_RELAXED), after;
    T old;
    do {
        std::memcpy(&old, &before, sizeof old);
        const T now = change(old);
        std::memcpy(&after, &now, sizeof after);
    } while (!__atomic_compare_exchange_n(place, &before, after, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    return old;
}

}  // namespace cuda_host

template <typename T>
using CudaHostSame = typename std::common_type<T>::type;  // the address decides the type, not the value

template <typename T>
T atomicAdd(T* address, CudaHostSame<T> value)
{
    return cuda_host::exchange(address, [=](T old) { return static_cast<T>(old + value); });
}
template <typename T>
T atomicSub(T* address, CudaHostSame<T> value)
{
    return cuda_host::exchange(address, [=](T old) { return static_cast<T>(old - value); });
}
template <typename T>
T atomicMax(T* address, CudaHostSame<T> value)
{
    return cuda_host::exchange(address, [=](T old) { return old < value ? value : old; });
}
template <typename T>
T atomicMin(T* address, CudaHostSame<T> value)
{
    return cuda_host::exchange(address, [=](T old) { return value < old ? value : old; });
}
template <typename T>
T atomicExch(T* address, CudaHostSame<T> value)
{
    return cuda_host::exchange(address, [=](T) { return value; });
}
template <typename T>
T atomicCAS(T* address, CudaHostSame<T> compare, CudaHostSame<T> value)
{
    return cuda_host::exchange(address, [=](T old) { return old == compare ? value : old; });
}
template <typename T>
T atomicAnd(T* address, CudaHostSame<T> value)
{
    return cuda_host::exchange(address, [=](T old) { return old & value; });
}
template <typename T>
T atomicOr(T* address, CudaHostSame<T> value)
{
    return cuda_host::exchange(address, [=](T old) { return old | value; });
}
template <typename T>
T atomicXor(T* address, CudaHostSame<T> value)
{
    return cuda_host::exchange(address, [=](T old) { return old ^ value; });
}
inline unsigned atomicInc(unsigned* address, unsigned top)
{
    return cuda_host::exchange(address, [=](unsigned old) { return old >= top ? 0u : old + 1; });
}
inline unsigned atomicDec(unsigned* address, unsigned top)
{
    return cuda_host::exchange(address, [=](unsigned old) { return old == 0 || old > top ? top : old - 1; });
}

// --- loads and stores with a cache's name

template <typename T>
T __ldg(const T* address) { return *address; }
template <typename T>
T __ldca(const T* address) { return *address; }
template <typename T>
T __ldcg(const T* address) { return *address; }
template <typename T>
T __ldcs(const T* address) { return *address; }
template <typename T>
void __stcg(T* address, CudaHostSame<T> value) { *address = value; }
template <typename T>
void __stcs(T* address, CudaHostSame<T> value) { *address = value; }
template <typename T>
void __stwt(T* address, CudaHostSame<T> value) { *address = value; }

// --- numbers

inline float __expf(float x) { return std::exp(x); }
inline float __exp10f(float x) { return std::pow(10.0f, x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __log10f(float x) { return std::log10(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __tanhf(float x) { return std::tanh(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __frsqrt_rn(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
inline float rsqrtf(float x) { return __frsqrt_rn(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x)
{
    unsigned reversed = 0;
    for (int i = 0; i < 32; ++i) reversed |= (x >> i & 1u) << (31 - i);
    return reversed;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector)
{
    const std::uint64_t bytes = static_cast<std::uint64_t>(y) << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return result;
}

namespace cuda_host {
template <typename To, typename From>
To same_bits(From value)
{
    static_assert(sizeof(To) == sizeof(From));
    To result;
    std::memcpy(&result, &value, sizeof result);
    return result;
}
}  // namespace cuda_host

inline int __float_as_int(float x) { return cuda_host::same_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return cuda_host::same_bits<unsigned>(x); }
inline float __int_as_float(int x) { return cuda_host::same_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return cuda_host::same_bits<float>(x); }

// What NVIDIA's headers have for the device alone: one rounding, which the exact product and sum in float64 survive.
inline __half __hfma(__half x, __half y, __half z) { return __double2half(static_cast<double>(x) * static_cast<double>(y) + static_cast<double>(z)); }
inline __half2 __hfma2(__half2 x, __half2 y, __half2 z) { return __half2(__hfma(x.x, y.x, z.x), __hfma(x.y, y.y, z.y)); }
inline __nv_bfloat16 __hfma(__nv_bfloat16 x, __nv_bfloat16 y, __nv_bfloat16 z)
{
    return __double2bfloat16(static_cast<double>(static_cast<float>(x)) * static_cast<double>(static_cast<float>(y)) + static_cast<double>(static_cast<float>(z)));
}

inline void __nanosleep(unsigned) {}
[[noreturn]] inline void __trap() { cuda_host::fail("__trap()"); }

#include SOURCE

// --- the launch that Python calls

namespace cuda_host {

template <typename... Parameters, std::size_t... I>
void call(void (*kernel)(Parameters...), void** arguments, std::index_sequence<I...>)
{
    kernel(*static_cast<std::remove_cv_t<Parameters>*>(arguments[I])...);
}

template <typename... Parameters>
void call(void (*kernel)(Parameters...), void** arguments)
{
    call(kernel, arguments, std::index_sequence_for<Parameters...>{});
}

// Whether the arguments are as many as the parameters and each of its parameter's size.
template <typename... Parameters>
bool fit(void (*)(Parameters...), const unsigned* sizes, unsigned count)
{
    const unsigned wanted[] = {sizeof(Parameters)..., 0};
    return count == sizeof...(Parameters) && std::equal(sizes, sizes + count, wanted);
}

}  // namespace cuda_host

// Returns what was reported, empty if nothing was.
extern "C" __attribute__((visibility("default"))) const char* cuda_host_launch(
    const unsigned* grid, const unsigned* block, unsigned shared_bytes, int cooperative, unsigned cluster, void** arguments,
    const unsigned* sizes, unsigned count)
{
    if (!cuda_host::fit(KERNEL, sizes, count)) return "its parameters are other in number or size than the arguments";
    return cuda_host::run({grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared_bytes, cooperative != 0, cluster,
                          [](void** given) { cuda_host::call(KERNEL, given); }, arguments);
}
