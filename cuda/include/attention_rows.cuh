// What attention's rungs share that multiply in registers: 4 threads a query, their tiles of keys and values in shared memory.
//
// Defines: those of attention.cuh.
#pragma once

#include "attention.cuh"

constexpr int TILE = 32, PARTS = 4, THREADS = TILE * PARTS;  // queries of a block and keys of a tile; threads of a query
constexpr int WIDTH = 8;                                     // elements of a vector, 16 bytes
constexpr int PITCH = HEAD_DIM + WIDTH;                      // of a row in shared memory: 4 rows lie in different banks

// A query's thread: of a tile of keys it has every PARTS-th, of out's row every PARTS-th vector.
struct Row {
    static constexpr int KEYS = TILE / PARTS, VECTORS = HEAD_DIM / WIDTH / PARTS;
    const int row = threadIdx.x / PARTS, part = threadIdx.x % PARTS;
    State state;
    float out[VECTORS][WIDTH] = {};

    // query: its position. queries, keys, values: (TILE, PITCH); p: (TILE, TILE + 1). start: the tile's first key.
    __device__ void take(const SCALAR* queries, const SCALAR* keys, const SCALAR* values, float* p, int query, int start,
                         float scale, const Layout& layout)
    {
        using Vec = Packed<SCALAR, WIDTH>;
        float scores[KEYS] = {};
        // --- scores
#pragma unroll 1
        for (int d = 0; d < HEAD_DIM; d += WIDTH) {
            const Vector<float, WIDTH> left = widen(*reinterpret_cast<const Vec*>(queries + row * PITCH + d));
#pragma unroll
            for (int i = 0; i < KEYS; ++i) {
                const Vector<float, WIDTH> right = widen(*reinterpret_cast<const Vec*>(keys + (part + i * PARTS) * PITCH + d));
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) {
                    scores[i] += left.values[j] * right.values[j];
                }
            }
        }
        // --- mask
        float top = Max::neutral();
#pragma unroll
        for (int i = 0; i < KEYS; ++i) {
            scores[i] = layout.seen(query, start + part + i * PARTS) ? scores[i] : Max::neutral();
            top = fmaxf(top, scores[i]);
        }
        // --- merge the states
        const float factor = state.raise(warp_reduce<PARTS>(top, Max()), scale), shift = state.shift(scale);
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < KEYS; ++i) {
            const float e = exp2_approx(fmaf(scores[i], scale, -shift));
            sum += e;
            p[row * (TILE + 1) + part + i * PARTS] = static_cast<float>(static_cast<SCALAR>(e));
        }
        state.l += warp_reduce<PARTS>(sum, Sum());
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) {
                out[i][j] *= factor;
            }
        }
        __syncwarp();  // a query's threads are in one warp
        // --- times the values
#pragma unroll 4
        for (int key = 0; key < TILE; ++key) {
            const float weight = p[row * (TILE + 1) + key];
#pragma unroll
            for (int i = 0; i < VECTORS; ++i) {
                const Vector<float, WIDTH> v =
                    widen(*reinterpret_cast<const Vec*>(values + key * PITCH + (part + i * PARTS) * WIDTH));
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) {
                    out[i][j] += weight * v.values[j];
                }
            }
        }
        __syncwarp();  // p is read
    }

    // to: the query's row.
    __device__ void store(SCALAR* to) const
    {
        // --- divide and store
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            Vector<float, WIDTH> wide;
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) {
                wide.values[j] = out[i][j] / state.l;
            }
            reinterpret_cast<Packed<SCALAR, WIDTH>*>(to)[part + i * PARTS] = narrow<SCALAR>(wide);
        }
    }
};

// Of a tile's row and vector the i-th that is this thread's.
constexpr int VECTORS_OF_ROW = HEAD_DIM / WIDTH, COPIES = TILE * VECTORS_OF_ROW / THREADS;
__device__ inline int copied_row(int i) { return (threadIdx.x + i * THREADS) / VECTORS_OF_ROW; }
__device__ inline int copied_column(int i) { return (threadIdx.x + i * THREADS) % VECTORS_OF_ROW * WIDTH; }
