// Sums and maxima over the threads that share a row.
#pragma once

struct Sum {
    static __device__ float neutral() { return 0.0f; }
    __device__ float operator()(float a, float b) const { return a + b; }
};

// NaN loses against numbers here; it comes back through the sum of the exponentials.
struct Max {
    static __device__ float neutral() { return __int_as_float(0xff800000); }  // -inf
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Over every LANES neighbours of a warp, a power of 2; all of them get the result.
template <int LANES, typename Op>
__device__ inline float warp_reduce(float value, Op op)
{
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2) {
        value = op(value, __shfl_xor_sync(0xffffffff, value, distance));
    }
    return value;
}

constexpr __host__ __device__ int power_of_2_from(int n) { return n <= 1 ? 1 : 2 * power_of_2_from((n + 1) / 2); }

// Over every THREADS neighbours of a block: lanes of a warp, or whole warps. scratch: a float for each warp of the block,
// in shared memory, which the block may write again once it has met at another barrier.
template <int THREADS, typename Op>
__device__ inline float team_reduce(float value, Op op, float* scratch)
{
    static_assert(THREADS % 32 == 0 || THREADS == power_of_2_from(THREADS), "lanes of a warp, or whole warps");
    if constexpr (THREADS <= 32) {
        return warp_reduce<THREADS>(value, op);
    } else {
        constexpr int WARPS = THREADS / 32, LANES = power_of_2_from(WARPS);
        value = warp_reduce<32>(value, op);
        if (threadIdx.x % 32 == 0) {
            scratch[threadIdx.x / 32] = value;
        }
        __syncthreads();
        const int warp = threadIdx.x % LANES;  // every thread reads and adds up the same: no second barrier
        return warp_reduce<LANES>(warp < WARPS ? scratch[threadIdx.x / THREADS * WARPS + warp] : Op::neutral(), op);
    }
}

// A sum in which no chain of additions is longer than CHAIN, up to CHAIN^3 terms.
struct LongSum {
    static constexpr int CHAIN = 256;
    float total = 0.0f, sums = 0.0f, sum = 0.0f;
    int terms = 0;

    __device__ void add(float term)
    {
        sum += term;
        if (++terms % CHAIN == 0) {
            sums += sum;
            sum = 0.0f;
            if (terms % (CHAIN * CHAIN) == 0) {
                total += sums;
                sums = 0.0f;
            }
        }
    }
    __device__ void scale(float factor)
    {
        total *= factor;
        sums *= factor;
        sum *= factor;
    }
    __device__ float value() const { return total + (sums + sum); }
};
