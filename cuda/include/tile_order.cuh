// The order in which blocks take the tiles of a matrix.
#pragma once

struct Place {
    int row, col;
};

// Of the tile that comes as number `index` of rows x cols tiles: HEIGHT rows at a time, column by column, there and back in
// turn. Tiles that are under way together share as few rows and columns as can be, and what the last ones of a group have
// read is still in L2 for the first ones of the next.
template <int HEIGHT>
__device__ inline Place tile_place(int index, int rows, int cols)
{
    const int group = index / (HEIGHT * cols), first = group * HEIGHT;
    const int height = min(HEIGHT, rows - first), inside = index - first * cols;
    const int col = inside / height;
    return {first + inside % height, group % 2 == 0 ? col : cols - 1 - col};
}
