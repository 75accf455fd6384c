// Which blocks of a grid that runs at once compute which works: in rounds, in each of which a block gets one work or none,
// there and back in turn.
#pragma once

// `rows` works of each head, the heads counted over all batches; a group of heads starts with a new round. LONGEST_FIRST, works
// get longer from row to row, and of a group's those of the last rows come first; otherwise they come head by head.
template <bool LONGEST_FIRST>
struct Dealer {
    const int rows, heads, group, turns;  // turns: rounds of a group

    __device__ Dealer(int rows, int heads, int group)
        : rows(rows), heads(heads), group(group), turns((group * rows + gridDim.x - 1) / gridDim.x)
    {
    }
    __device__ int rounds() const { return (heads + group - 1) / group * turns; }

    // Whether this block has a work in a round: of which head, which row.
    __device__ bool deal(int round, int& head, int& row) const
    {
        const int first = round / turns, turn = round % turns, width = min(group, heads - first * group);
        const int inside = turn * gridDim.x + ((first + turn) % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
        head = first * group + (LONGEST_FIRST ? inside % width : inside / rows);
        row = LONGEST_FIRST ? rows - 1 - inside / width : inside % rows;
        return inside < width * rows;
    }
};
