// One small kernel for each feature of the host build; NVRTC compiles them too, so they are CUDA.

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include "async_copy.cuh"
#include "bulk_store.cuh"
#include "named_barrier.cuh"
#include "vector.cuh"

namespace cg = cooperative_groups;

constexpr unsigned FULL = 0xffffffffu;

extern "C" __global__ void indices(int* out)
{
    const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread;
}

extern "C" __global__ void static_shared_sum(const float* x, float* out)
{
    __shared__ float parts[256];
    parts[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
    for (int half = 128; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = parts[0];
}

extern "C" __global__ void dynamic_shared_reverse(const float* x, float* out)
{
    extern __shared__ __align__(128) unsigned char memory[];
    float* values = reinterpret_cast<float*>(memory);
    values[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void transpose(const float* x, float* out)
{
    __shared__ alignas(16) float tile[8][8 + 1];
    tile[threadIdx.y][threadIdx.x] = x[threadIdx.y * 8 + threadIdx.x];
    __syncthreads();
    out[threadIdx.y * 8 + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}

extern "C" __global__ void warp_collectives(const int* x, int* out)
{
    const int i = threadIdx.x, lane = i % 32, v = x[i], n = blockDim.x;
    int sum = v;
    for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_xor_sync(FULL, sum, lanes);
    int scan = v;
    for (int delta = 1; delta < 32; delta *= 2) {
        const int other = __shfl_up_sync(FULL, scan, delta);
        if (lane >= delta) scan += other;
    }
    out[i] = sum;
    out[n + i] = scan;
    out[2 * n + i] = __shfl_sync(FULL, v, 3, 8);
    out[3 * n + i] = __shfl_down_sync(FULL, v, 1, 16);
    out[4 * n + i] = __ballot_sync(FULL, v > 0);
    out[5 * n + i] = __any_sync(FULL, v > 90) + 2 * __all_sync(FULL, v > -100);
    out[6 * n + i] = __reduce_max_sync(FULL, v);
    out[7 * n + i] = lane < 8 ? __reduce_add_sync(0xffu, v) : 0;
    __syncwarp();
}

extern "C" __global__ void counting_barriers(const int* x, int* out)
{
    const int v = x[threadIdx.x];
    out[threadIdx.x] = __syncthreads_count(v > 0) * 100 + __syncthreads_or(v > 1000) * 10 + __syncthreads_and(v > -1000);
}

extern "C" __global__ void atomics(const int* x, int* counts, float* sum, int* top, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    atomicAdd(&counts[x[i] & 7], 1);
    atomicAdd(sum, 0.5f);
    atomicMax(top, x[i]);
    atomicCAS(&counts[8], 0, 42);
}

extern "C" __global__ void vectors(const float4* x, float* out)
{
    const float4 v = __ldg(x + threadIdx.x);
    const Vector<float, 4> w = *reinterpret_cast<const Vector<float, 4>*>(x + threadIdx.x);
    out[threadIdx.x] = v.x + v.y + v.z + v.w + w.values[3] + make_float2(1.0f, 2.0f).y;
}

extern "C" __global__ void sixteen_bits(const __half* a, const __nv_bfloat16* b, float* out)
{
    const __half h = __hfma(a[threadIdx.x], a[threadIdx.x], __float2half(0.25f));
    const __half2 both = __hadd2(__halves2half2(h, h), __float2half2_rn(1.0f));
    out[2 * threadIdx.x] = __low2float(both);
    out[2 * threadIdx.x + 1] = static_cast<float>(__float2bfloat16(__bfloat162float(b[threadIdx.x]) * 1.001f));
}

extern "C" __global__ void intrinsics(const float* x, float* out)
{
    const float v = x[threadIdx.x];
    float* mine = out + 8 * threadIdx.x;
    mine[0] = __expf(v);
    mine[1] = rsqrtf(v);
    mine[2] = __fdividef(v, 3.0f);
    mine[3] = fmaf(v, v, 1.0f);
    mine[4] = exp2f(v) + __logf(v) + tanhf(v) + erff(v);
    mine[5] = __int_as_float(__float_as_int(v) ^ 0x80000000);
    mine[6] = __popc(__float_as_uint(v)) + __clz(255) + __ffs(8);
    mine[7] = max(v, 1.0f) + min(3, 4) + fmaxf(v, 2.0f);
}

extern "C" __global__ void groups(const float* x, float* out)
{
    const cg::thread_block block = cg::this_thread_block();
    const auto tile = cg::tiled_partition<8>(block);
    const float sum = cg::reduce(tile, x[block.thread_rank()], cg::plus<float>());
    block.sync();
    out[block.thread_rank()] = sum + 1000.0f * tile.meta_group_rank() + 100000.0f * tile.shfl(x[block.thread_rank()], 7);
}

extern "C" __global__ void grid_sum(const float* x, float* parts, float* out)
{
    const cg::grid_group grid = cg::this_grid();
    atomicAdd(&parts[blockIdx.x], x[grid.thread_rank()]);
    grid.sync();
    float sum = 0.0f;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += parts[i];
    out[grid.thread_rank()] = sum;
}

extern "C" __global__ void fragments(const __half* a, const __half* b, float* out)
{
    using namespace nvcuda;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.5f);
    for (int k = 0; k < 32; k += 16) {
        wmma::load_matrix_sync(fa, a + k, 32);
        wmma::load_matrix_sync(fb, b + k, 32);
        wmma::mma_sync(sum, fa, fb, sum);
    }
    for (int i = 0; i < sum.num_elements; ++i) sum.x[i] *= 2.0f;
    wmma::store_matrix_sync(out, sum, 16, wmma::mem_row_major);
}

extern "C" __global__ void async_copies(const float* x, float* out, int tiles)
{
    __shared__ alignas(16) float buffer[2][32 * 4];
    const auto fetch = [&](int tile) {
        async_copy_16(&buffer[tile % 2][4 * threadIdx.x], x + tile * 128 + 4 * threadIdx.x);
        async_copy_commit();
    };
    float sum = 0.0f;
    fetch(0);
    for (int tile = 0; tile < tiles; ++tile) {
        if (tile + 1 < tiles) {
            fetch(tile + 1);
            async_copy_wait<1>();
        } else {
            async_copy_wait<0>();
        }
        __syncthreads();
        sum += buffer[tile % 2][127 - 4 * threadIdx.x];
        __syncthreads();
    }
    out[threadIdx.x] = sum;
}

extern "C" __global__ void bulk_stores(const float* x, float* out, int vectors)
{
    using Vec = Vector<float, 4>;
    __shared__ Vec rows[64];
    const Vec* from = reinterpret_cast<const Vec*>(x);  // (2, vectors)
    Vec* to = reinterpret_cast<Vec*>(out);
    const int first = threadIdx.x / 32 * 32;  // of this warp's vectors
    for (int turn = 0; turn < 2; ++turn) {
        bulk_store_wait();
        if (static_cast<int>(threadIdx.x) < vectors) rows[threadIdx.x] = from[turn * vectors + threadIdx.x];
        bulk_store(to + turn * vectors + first, rows + first, min(vectors - first, 32));
    }
    bulk_store_wait();
}

extern "C" __global__ void named_barriers(const float* x, float* out, int rounds)
{
    __shared__ float slot[32];
    const int lane = threadIdx.x % 32;
    for (int round = 0; round < rounds; ++round) {
        if (threadIdx.x < 32) {  // the producer
            if (round) named_barrier_sync(2, 64);
            slot[lane] = x[round * 32 + lane];
            named_barrier_arrive(1, 64);
        } else {  // the consumer
            named_barrier_sync(1, 64);
            out[round * 32 + lane] = slot[31 - lane];
            if (round + 1 < rounds) named_barrier_arrive(2, 64);
        }
    }
}

extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n)
{
    constexpr int TILE = 16;
    __shared__ float ta[TILE][TILE], tb[TILE][TILE + 1];
    const int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < n; k += TILE) {
        ta[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
        tb[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + col];
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += ta[threadIdx.y][i] * tb[i][threadIdx.x];
        __syncthreads();
    }
    c[row * n + col] = sum;
}

extern "C" __global__ void row_softmax(const float* x, float* out, int cols)
{
    __shared__ float parts[8];
    const float* row = x + static_cast<long long>(blockIdx.x) * cols;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float top = __int_as_float(0xff800000), sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += 256) top = fmaxf(top, row[i]);
    for (int lanes = 16; lanes; lanes /= 2) top = fmaxf(top, __shfl_xor_sync(FULL, top, lanes));
    if (lane == 0) parts[warp] = top;
    __syncthreads();
    for (int i = 0; i < 8; ++i) top = fmaxf(top, parts[i]);
    __syncthreads();
    for (int i = threadIdx.x; i < cols; i += 256) sum += __expf(row[i] - top);
    for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_xor_sync(FULL, sum, lanes);
    if (lane == 0) parts[warp] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int i = 0; i < 8; ++i) sum += parts[i];
    for (int i = threadIdx.x; i < cols; i += 256) out[blockIdx.x * cols + i] = __expf(row[i] - top) / sum;
}
