// What attention's Hopper kernels share: a warpgroup that loads, and CONSUMERS others with 64 queries each. Queries and tiles
// of TILE_K keys or values lie in shared memory as columns of 128 bytes of head_dim, as TMA brings them.
//
// Defines: those of attention.cuh, and CONSUMERS, TILE_K (keys of a tile), STAGES (tiles in shared memory).
#pragma once

#include "attention.cuh"
#include "named_barrier.cuh"
#include "ring.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

constexpr int TILE_Q = 64 * CONSUMERS, COLUMNS = HEAD_DIM / 64;
constexpr int OWN_BYTES = COLUMNS * COLUMN_BYTES;  // of a warpgroup's queries
constexpr int QUERY_BYTES = CONSUMERS * OWN_BYTES, TILE_BYTES = TILE_K * HEAD_DIM * 2;
constexpr int SCORES = TILE_K / 2, SUMS = HEAD_DIM / 2, WEIGHTS = TILE_K / 16;  // of a thread; weights are four words each

// Registers of a thread that the consumers take from the loading warpgroup.
constexpr int REGISTERS_LOADING = CONSUMERS <= 2 ? 24 : 32, REGISTERS_CONSUMING = CONSUMERS <= 2 ? 240 : 160;

// Named barriers, the first one's of the consumers: for its turn to start products, and for its own four warps.
constexpr int TURN_BARRIER = 1, OWN_BARRIER = TURN_BARRIER + CONSUMERS;

using Queries = Ring<QUERY_STAGES, QUERY_BYTES>;
using Tiles = Ring<STAGES, TILE_BYTES>;

// What a block computes at a time: TILE_Q queries of a head, from `query` on, against the keys of `tiles` tiles.
struct Work {
    int batch, head, query, tiles;

    // index: of the head, over all batches. row: of TILE_Q queries.
    __device__ Work(int index, int row, int heads, int sequence)
        : batch(index / heads), head(index % heads), query(row * TILE_Q),
          tiles(((CAUSAL ? min(query + TILE_Q, sequence) : sequence) + TILE_K - 1) / TILE_K)
    {
    }
};

// Starts the copy of ROWS rows of a head, from `row` on, in boxes of BOX of them: all of a box's columns before the next.
template <int ROWS, int BOX>
__device__ inline void load_rows(unsigned char* place, const TensorMap& map, const Work& work, int row, Barrier* full)
{
    mbarrier_expect(full, ROWS * HEAD_DIM * 2);
#pragma unroll
    for (int i = 0; i < ROWS; i += BOX) {
#pragma unroll
        for (int column = 0; column < COLUMNS; ++column) {
            tma_load(place + (i * COLUMNS + column * BOX) * 128, map, column * 64, row + i, work.head, work.batch, full);
        }
    }
}

// One thread loads what the consumers need, in the order in which they do: values a tile after their keys.
__device__ inline void load_work(const Queries& queries, Turn<QUERY_STAGES>& query_turn, const Tiles& ring, Turn<STAGES>& turn,
                                 const TensorMap& q, const TensorMap& k, const TensorMap& v, const Work& work)
{
    // --- load the queries
    mbarrier_wait(queries.empty + query_turn.stage, query_turn.parity ^ 1);
    load_rows<TILE_Q, 64>(queries.stage(query_turn.stage), q, work, work.query, queries.full + query_turn.stage);
    query_turn.next();

    // --- tiles of keys
    const auto load = [&](const TensorMap& map, int tile) {
        mbarrier_wait(ring.empty + turn.stage, turn.parity ^ 1);
        load_rows<TILE_K, TILE_K>(ring.stage(turn.stage), map, work, tile * TILE_K, ring.full + turn.stage);
        turn.next();
    };
    load(k, 0);
    for (int tile = 1; tile < work.tiles; ++tile) {
        load(k, tile);
        load(v, tile - 1);
    }
    load(v, work.tiles - 1);
}

// This warp has read a stage.
__device__ inline void release(Barrier* empty)
{
    if (threadIdx.x % 32 == 0) {
        mbarrier_arrive(empty);
    }
}

// A warpgroup's 64 queries. Four neighbours share two of them: `row` and the one 8 rows on.
struct Consumer {
    const Tiles& ring;
    Turn<STAGES>& turn;
    const int consumer, row;  // row: the thread's first query, within the work
    const float scale;
    State states[2];
    float scores[SCORES], sums[SUMS];  // (64, TILE_K) and (64, HEAD_DIM) of the warpgroup
    unsigned weights[WEIGHTS][4];      // P in the inputs' dtype, pairs of a row

    __device__ Consumer(const Tiles& ring, Turn<STAGES>& turn, int consumer, float scale)
        : ring(ring), turn(turn), consumer(consumer), row(consumer * 64 + wgmma_row(threadIdx.x % WARPGROUP, 0)), scale(scale)
    {
    }

    // Waits for the next stage.
    __device__ void wait() const { mbarrier_wait(ring.full + turn.stage, turn.parity); }

    // The next stage's number, which is full.
    __device__ int take()
    {
        const int stage = turn.stage;
        turn.next();
        return stage;
    }

    // Starts scores = Q K^T.
    __device__ void start_scores(const unsigned char* queries, int stage)
    {
        // --- scores
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; ++i) {
            const int column = i / 4, step = i % 4 * WGMMA_STEP<SCALAR, true>;
            const auto left = wgmma_descriptor<true>(shared_address(queries + column * COLUMN_BYTES));
            const auto right = wgmma_descriptor<true>(shared_address(ring.stage(stage) + column * (TILE_K * 128)));
            wgmma<true, true>(SCALAR(), scores, left + step, right + step, i > 0);
        }
        wgmma_commit();
    }

    // Starts sums += P V, or without add sums = P V.
    __device__ void start_values(int stage, bool add)
    {
        // --- times the values
        const auto right = wgmma_descriptor<false>(shared_address(ring.stage(stage)), TILE_K * 128);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < WEIGHTS; ++i) {
            wgmma<false>(SCALAR(), sums, weights[i], right + i * WGMMA_STEP<SCALAR, false>, add || i > 0);
        }
        wgmma_commit();
    }

    // tile: of keys.
    __device__ void mask(const Work& work, int tile, int sequence)
    {
        // --- mask
        const int first = tile * TILE_K + wgmma_col(threadIdx.x % WARPGROUP, 0);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int seen = (CAUSAL ? min(work.query + row + half * 8 + 1, sequence) : sequence) - first;
#pragma unroll
            for (int i = 2 * half; i < SCORES; i += 4) {
#pragma unroll
                for (int j = i; j < i + 2; ++j) {
                    scores[j] = wgmma_col(0, j) < seen ? scores[j] : Max::neutral();
                }
            }
        }
    }

    // Scores become exponentials; factors are what sums under the maxima before are multiplied with.
    __device__ void merge(float (&factors)[2])
    {
        // --- merge the states
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float top[2] = {Max::neutral(), Max::neutral()}, sum[2] = {};
#pragma unroll
            for (int i = 2 * half; i < SCORES; i += 4) {
                top[0] = fmaxf(top[0], scores[i]);
                top[1] = fmaxf(top[1], scores[i + 1]);
            }
            factors[half] = states[half].raise(warp_reduce<4>(fmaxf(top[0], top[1]), Max()), scale);
            const float shift = states[half].shift(scale);
#pragma unroll
            for (int i = 2 * half; i < SCORES; i += 4) {
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    scores[i + j] = exp2_approx(fmaf(scores[i + j], scale, -shift));
                    sum[j] += scores[i + j];
                }
            }
            states[half].l += sum[0] + sum[1];  // this thread's share: the factor is the same for all four of a query
        }
    }

    // The exponentials as the second product takes them.
    __device__ void round()
    {
#pragma unroll
        for (int i = 0; i < SCORES; i += 2) {
            Vector<float, 2> pair;
            pair.values[0] = scores[i];
            pair.values[1] = scores[i + 1];
            weights[i / 8][i / 2 % 4] = narrow<SCALAR>(pair).parts[0];
        }
    }

    // Lets the consumers start products one after the other.
    __device__ void await_turn() const { named_barrier_sync(TURN_BARRIER + consumer, 2 * WARPGROUP); }
    __device__ void end_turn() const
    {
        named_barrier_arrive(TURN_BARRIER + (consumer + 1) % CONSUMERS, 2 * WARPGROUP);
    }

    // A tile's scores, under them the product of the one before and the values, and under that this one's softmax.
    template <bool MASKED>
    __device__ void step(const Work& work, const unsigned char* queries, int tile, int sequence)
    {
        const int keys = take();
        await_turn();
        start_scores(queries, keys);
        wait();
        const int values = take();
        start_values(values, tile > 1);
        end_turn();
        wgmma_wait<1>(scores);
        release(ring.empty + keys);
        if constexpr (MASKED) {
            mask(work, tile, sequence);
        }
        float factors[2];
        merge(factors);
        wgmma_keep(scores);
        wait();  // here, since the compiler moves the next wait up to the last branch
        wgmma_wait<0>(sums);
        release(ring.empty + values);
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            sums[i] *= factors[i / 2 % 2];
        }
        round();
    }

    // Passes on a stage that the others read.
    __device__ void pass()
    {
        wait();
        release(ring.empty + take());
    }

    // The last tile's values.
    __device__ void finish(bool add)
    {
        wait();
        start_values(turn.stage, add);
        wgmma_wait<0>(sums);
        release(ring.empty + take());
    }

    // Starts the first tile's scores.
    __device__ void start(const unsigned char* queries)
    {
        wait();
        start_scores(queries, turn.stage);
    }

    // From there on all tiles of a work: sums and states.
    __device__ void attend(const Work& work, const unsigned char* queries, int sequence)
    {
        // The tiles that the mask leaves whole come first, then others; those after `own` are hidden from this warpgroup.
        const int query = work.query + consumer * 64;
        const int whole = (CAUSAL ? min(query + 1, sequence) : sequence) / TILE_K;
        const int own = query >= sequence ? 0 : CAUSAL ? (min(query + 64, sequence) + TILE_K - 1) / TILE_K : work.tiles;

        // --- tiles of keys
        wgmma_wait<0>(scores);
        release(ring.empty + take());
        if (own > 0) {
            if (whole == 0) {
                mask(work, 0, sequence);
            }
            float factors[2];
            merge(factors);
            round();
        }
        wait();
        int tile = 1;
#pragma unroll 1
        for (; tile < whole; ++tile) {
            step<false>(work, queries, tile, sequence);
        }
#pragma unroll 1
        for (; tile < own; ++tile) {
            step<true>(work, queries, tile, sequence);
        }
#pragma unroll 1
        for (; tile < work.tiles; ++tile) {
            await_turn();
            end_turn();
            pass();
            if (tile == own) {
                finish(own > 1);
            } else {
                pass();
            }
        }
        if (tile == own) {
            finish(own > 1);
        } else {
            pass();
        }
    }

    // Divides and stores: out by TMA from the queries' place, a warp's 16 rows in columns, and the log-sum-exp.
    __device__ void store(const Work& work, unsigned char* queries, const TensorMap& out, float* lse, int heads, int sequence)
    {
        // --- divide and store
        const int thread = threadIdx.x % WARPGROUP, lane = thread % 32, warp_row = thread / 32 * 16;
        float inverse[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            states[half].l = warp_reduce<4>(states[half].l, Sum());
            inverse[half] = 1.0f / states[half].l;
            const int query = work.query + row + half * 8;
            if (lse != nullptr && lane % 4 == 0 && query < sequence) {
                lse[(static_cast<long long>(work.batch) * heads + work.head) * sequence + query] =
                    states[half].log_sum(scale);
            }
        }
        named_barrier_sync(OWN_BARRIER + consumer, WARPGROUP);  // all have read the queries
        unsigned char* place = queries + warp_row * 128;
#pragma unroll
        for (int i = 0; i < SUMS; i += 2) {
            Vector<float, 2> pair;
            pair.values[0] = sums[i] * inverse[i / 2 % 2];
            pair.values[1] = sums[i + 1] * inverse[i / 2 % 2];
            const int col = wgmma_col(lane, i);
            const int at = col / 64 * COLUMN_BYTES + swizzled(wgmma_row(lane, i), col % 64 * 2);
            *reinterpret_cast<Packed<SCALAR, 2>*>(place + at) = narrow<SCALAR>(pair);
        }
        tma_store_fence();
        __syncwarp();
        if (lane == 0) {
#pragma unroll
            for (int column = 0; column < COLUMNS; ++column) {
                tma_store(out, place + column * COLUMN_BYTES, column * 64, work.query + consumer * 64 + warp_row, work.head,
                          work.batch);
            }
        }
    }
};
