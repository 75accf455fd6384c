// Softmax, rung 6: rows in registers as they lie in memory, as many threads as each needs, and a grid of all rows.
//
// contract  reference/softmax.py
// mapping   TEAM threads of each of CLUSTER blocks own a row, a thread VECTORS vectors of it, the vectors of a warp side by
//           side; a block has TEAMS such teams. Two rows of 64 KiB are on a multiprocessor: while one is computed, the
//           other one is on its way. Where float32 would not fit into the registers, exponentials are computed twice
// traffic   rows x cols elements read, as many written
// limits    GPUs from sm_90; rows of up to 8 blocks' 1024 threads' 128 bytes, wider ones take rung 3
//
// Defines: SCALAR (float, __half, __nv_bfloat16), VECTOR (elements), TEAM, TEAMS, VECTORS, CLUSTER.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cluster.cuh"
#include "exponential.cuh"
#include "forget.cuh"
#include "reduce.cuh"
#include "vector.cuh"

constexpr int BLOCK = TEAM * TEAMS;
constexpr int LANES = TEAM < 32 ? TEAM : 32;
constexpr bool TIGHT = VECTORS * VECTOR > 32;  // in float32 a row does not fit into the registers

// The state of two parts of a row, (maximum, sum of exponentials relative to it).
struct Merge {
    __device__ float2 operator()(float2 a, float2 b) const
    {
        const float m = fmaxf(a.x, b.x);
        return float2{m, a.y * exponential(a.x - finite(m)) + b.y * exponential(b.x - finite(m))};
    }
};

extern "C" __global__ CLUSTER_DIMS __launch_bounds__(BLOCK, 1024 / BLOCK)
void softmax(const SCALAR* __restrict__ x, SCALAR* __restrict__ out, long long rows, int cols)
{
    using Vec = Packed<SCALAR, VECTOR>;
    __shared__ float maxima[BLOCK / 32], sums[BLOCK / 32];
    __shared__ float2 parts[CLUSTER];

    const int vectors = cols / VECTOR;
    const int lane = threadIdx.x % LANES;
    // This thread's vectors are here and every LANES from here on.
    const int run = blockIdx.x % CLUSTER * (VECTORS * TEAM) + (threadIdx.x % TEAM - lane) * VECTORS + lane;
    const long long row = static_cast<long long>(blockIdx.x / CLUSTER) * TEAMS + threadIdx.x / TEAM;
    const bool there = TEAMS == 1 || row < rows;

    // --- load the row
    const Vec* from = reinterpret_cast<const Vec*>(x + row * cols);  // (cols / VECTOR,)
    Vec v[VECTORS];  // (VECTORS, VECTOR)
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const bool inside = there && run + i * LANES < vectors;
        v[i] = inside ? from[run + i * LANES] : filled<SCALAR, VECTOR>(Max::neutral());
    }
    cluster_sync();

    // --- maximum of the row
    float m = Max::neutral();
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const Vector<float, VECTOR> value = widen(v[i]);
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
            m = fmaxf(m, value.values[j]);
        }
    }
    m = team_reduce<TEAM>(m, Max(), maxima);

    // --- exponentials and their sum
    const auto exponentials = [&](const Vec& packed) {
        Vector<float, VECTOR> value = widen(packed);
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
            value.values[j] = exponential(value.values[j] - finite(m));
        }
        return value;
    };
    Vector<float, VECTOR> e[TIGHT ? 1 : VECTORS];  // (VECTORS, VECTOR), or a vector at a time, twice
    float l = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (TIGHT) {
            forget(v[i]);
        }
        Vector<float, VECTOR>& terms = e[TIGHT ? 0 : i];
        terms = exponentials(v[i]);
        float part = 0.0f;
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
            part += terms.values[j];
        }
        l += part;
    }
    l = team_reduce<TEAM>(l, Sum(), sums);
    const float2 all = cluster_reduce(float2{m, l}, Merge(), parts);

    // --- divide and store
    const float scale = exponential(m - finite(all.x)) / all.y;
    Vec* to = reinterpret_cast<Vec*>(out + row * cols);  // (cols / VECTOR,)
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (there && run + i * LANES < vectors) {
            Vector<float, VECTOR>& terms = e[TIGHT ? 0 : i];
            if (TIGHT) {
                forget(v[i]);
                terms = exponentials(v[i]);
            }
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) {
                terms.values[j] *= scale;
            }
            to[run + i * LANES] = narrow<SCALAR>(terms);
        }
    }
}
