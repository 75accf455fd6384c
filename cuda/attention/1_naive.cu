// Attention, rung 1: three launches, with all scores in memory between them.
//
// contract  reference/attention.py
// mapping   one thread computes a score, another one all exponentials of a row, a third an element of out
// traffic   q, k, v and out once, and heads x sequence^2 float32 written, read twice and written again: 16 bytes a score,
//           where the arithmetic on it is 4 head_dim FLOPs
// limits    any GPU from sm_80; scores that fit into memory
//
// Defines: SCALAR, HEAD_DIM, CAUSAL (include/attention.cuh), BLOCK (threads).

#include "attention.cuh"

// scores (heads, sequence, sequence), heads counted over all batches.
extern "C" __global__ __launch_bounds__(BLOCK)
void scores(const SCALAR* __restrict__ q, const SCALAR* __restrict__ k, float* __restrict__ scores, Layout layout,
            long long count)
{
    const long long at = blockIdx.x * static_cast<long long>(BLOCK) + threadIdx.x;
    if (at >= count) {
        return;
    }
    const int key = at % layout.sequence, query = at / layout.sequence % layout.sequence;
    const long long first = layout.first(at / layout.sequence / layout.sequence);
    // --- scores
    float sum = 0.0f;
    for (int d = 0; d < HEAD_DIM; ++d) {
        sum += static_cast<float>(q[first + query * layout.row + d]) * static_cast<float>(k[first + key * layout.row + d]);
    }
    // --- mask
    scores[at] = layout.seen(query, key) ? sum : Max::neutral();
}

// In the place of the scores their exponentials; state (rows): of each row, rows those of all heads.
extern "C" __global__ __launch_bounds__(BLOCK)
void exponentials(float* __restrict__ scores, float* __restrict__ sums, float* __restrict__ lse, float scale, Layout layout,
                  long long rows)
{
    const long long row = blockIdx.x * static_cast<long long>(BLOCK) + threadIdx.x;
    if (row >= rows) {
        return;
    }
    float* own = scores + row * layout.sequence;
    // --- merge the states
    State state;
    for (int key = 0; key < layout.sequence; ++key) {
        state.m = fmaxf(state.m, own[key]);
    }
    for (int key = 0; key < layout.sequence; ++key) {
        own[key] = exp2_approx(fmaf(own[key], scale, -state.shift(scale)));
        state.l += own[key];
    }
    sums[row] = state.l;
    if (lse != nullptr) {
        lse[row] = state.log_sum(scale);
    }
}

// out, laid out as v, count elements.
extern "C" __global__ __launch_bounds__(BLOCK)
void values(const float* __restrict__ scores, const float* __restrict__ sums, const SCALAR* __restrict__ v,
            SCALAR* __restrict__ out, Layout layout, long long count)
{
    const long long at = blockIdx.x * static_cast<long long>(BLOCK) + threadIdx.x;
    if (at >= count) {
        return;
    }
    const long long row = at / HEAD_DIM;
    const int d = at % HEAD_DIM, query = row % layout.sequence;
    const long long first = layout.first(row / layout.sequence) + d;
    // --- times the values
    float sum = 0.0f;
    for (int key = 0; key < (CAUSAL ? query + 1 : layout.sequence); ++key) {
        const SCALAR p = static_cast<SCALAR>(scores[row * layout.sequence + key]);
        sum += static_cast<float>(p) * static_cast<float>(v[first + key * layout.row]);
    }
    // --- divide and store
    out[first + query * layout.row] = static_cast<SCALAR>(sum / sums[row]);
}
