"""How matmul's Triton kernels are carried out, by shape and dtype; as measured on an H200."""

import functools
from dataclasses import dataclass, replace

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

FILL = 128  # programs that are enough for an H200's 132 multiprocessors: with fewer K is split


class Rows:
    """A matrix as the kernels take it: row-major, rows ``stride`` elements apart; ``down`` if K goes down them.

    array: (M, K) or (N, K), and where K goes down (K, M) or (K, N).
    """

    def __init__(self, array: torch.Tensor, down: bool):
        rows, cols = array.shape
        by_row, by_col = array.stride()
        if (cols > 1 and by_col != 1) or (rows > 1 and by_row < cols):
            array, down, by_row = array.T, not down, by_col
        self.array, self.down = array, down
        rows, cols = array.shape
        # Where there is no second row it may be anywhere.
        self.stride = by_row if rows > 1 else triton.cdiv(cols, 8) * 8

    def in_vectors(self) -> bool:
        """Whether Triton knows that 16-byte accesses reach its rows: it asks whether 16 divides their lengths."""
        return self.array.shape[1] % 16 == 0 and self.stride % 16 == 0 and self.array.data_ptr() % 16 == 0

    def by_tma(self) -> bool:
        """Whether TMA takes it."""
        distance = self.stride * self.array.element_size()
        return 0 not in self.array.shape and self.array.data_ptr() % 16 == 0 and distance % 16 == 0 < distance < 2**40

    def descriptor(self, block: int, block_k: int) -> TensorDescriptor:
        """TMA's descriptor of it, by tiles of ``block`` of M or N and ``block_k`` of K."""
        shape = [block_k, block] if self.down else [block, block_k]
        return TensorDescriptor(self.array, list(self.array.shape), [self.stride, 1], shape)


@dataclass(frozen=True)
class Tile:
    """A program's share of a product.

    block_m, block_n: of out, (M, N). block_k: of K in a step. warps: of a program. stages: steps of A and B in shared
    memory or on their way there. programs: for so many times FILL of them K is split, 0 splits nothing. group: rows of
    tiles that programs take together, column by column.
    """

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    programs: int = 0
    group: int = 8

    def tiles(self, m: int, n: int) -> int:
        """How many out has."""
        return triton.cdiv(m, self.block_m) * triton.cdiv(n, self.block_n)

    def splits(self, m: int, n: int, k: int) -> int:
        """Into how many parts K goes: a power of two, and at least 4 steps in each."""
        parts = min(self.programs * FILL // self.tiles(m, n), k // (4 * self.block_k), 32)
        return 1 << max(1, parts).bit_length() - 1

    @property
    def kernel(self) -> dict:
        """As the kernels take it."""
        return {"BLOCK_M": self.block_m, "BLOCK_N": self.block_n, "BLOCK_K": self.block_k, "GROUP": self.group}

    @property
    def options(self) -> dict:
        """As Triton takes it."""
        return {"num_warps": self.warps, "num_stages": self.stages}


# By the rows of out: up to so many, one after the other.
TILED = {
    "16-bit": {16: Tile(16, 64, 128, 4, 5, 4), 64: Tile(64, 64, 64, 4, 5, 2), None: Tile(128, 128, 64, 8, 4, 1)},
    "tf32": {64: Tile(64, 64, 32, 4, 4, 2), None: Tile(128, 128, 32, 8, 4, 1)},
    "ieee": {64: Tile(64, 64, 16, 4, 3, 2), None: Tile(128, 128, 16, 8, 3, 1)},
}
DESCRIPTORS = {16: Tile(64, 64, 128, 4, 5, 2), 64: Tile(64, 128, 64, 4, 5, 2), None: Tile(64, 128, 64, 4, 5, 1)}
MANY = Tile(128, 128, 64, 8, 4)  # where out has enough of them
PERSISTENT = Tile(128, 256, 64, 8, 4)


def _of_rows(table: dict, m: int) -> Tile:
    return next(tile for rows, tile in table.items() if rows is None or m <= rows)


@functools.cache
def tiled_tile(m: int, dtype: torch.dtype, precision: str, vectors: bool, shared_bytes: int) -> Tile:
    """For tiles by pointers, with as many stages as there is shared memory for."""
    t = _of_rows(TILED[precision if dtype == torch.float32 else "16-bit"], m)
    if not vectors:
        # What is loaded one by one takes a register each and more for its address.
        t = replace(t, block_m=max(16, t.block_m // 2), block_k=max(16, t.block_k // 2))
    stage = (t.block_m + t.block_n) * t.block_k * dtype.itemsize
    return replace(t, stages=max(2, min(t.stages, (shared_bytes - 2048) // stage)))


@functools.cache
def descriptors_tile(m: int, n: int, dtype: torch.dtype) -> Tile:
    """For tiles by TMA."""
    t = MANY if MANY.tiles(m, n) >= FILL else _of_rows(DESCRIPTORS, m)
    return replace(t, block_k=t.block_k * 2 // dtype.itemsize)


@functools.cache
def persistent_tile(m: int, n: int, dtype: torch.dtype, out_dtype: torch.dtype, multiprocessors: int) -> Tile | None:
    """For persistent programs. None where there is less than a tile for almost each."""
    if 16 * PERSISTENT.tiles(m, n) < 15 * multiprocessors:
        return None
    # Half a tile of out needs room too: in float32 that of a stage.
    stages = PERSISTENT.stages - (out_dtype == torch.float32)
    return replace(PERSISTENT, block_k=PERSISTENT.block_k * 2 // dtype.itemsize, stages=stages)
