"""What the matmul kernels share: how a tile of out gets its strips of A and B, and how it is finished and stored.

Tiles of A and B lie in shared memory as their arrays do in memory, K along the rows or down them: tensor cores read
16-bit ones either way. TMA fills with zeros what a tile has beyond the array's end, and clips what is stored there.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

ACROSS = plgpu.Layout.WGMMA.reduce(0)  # of a row's numbers, one a column of a tile
DOWN = plgpu.Layout.WGMMA.reduce(1)
SWIZZLED = 128  # bytes: the widest row that TMA swizzles
EPILOGUE_ROWS = 64  # of a slot that out leaves by

# log2(erfc(x)) / x for x >= 0, lowest power first: erfc is good for 0.8 * 2^-24 of 1. A least-squares fit on [0, 6],
# weighted by erfc and reweighted where it is worst; the last coefficient takes erfc(inf) to 0.
ERFC = (
    -1.6279072761535645,
    -0.9184429049491882,
    -0.14830534160137177,
    0.027706479653716087,
    0.00013785278133582324,
    -0.0023568798787891865,
    0.0009197989711537957,
    -0.0001881504722405225,
    2.0670386220444925e-05,
    -9.478763445258664e-07,
)


@dataclass(frozen=True)
class Config:
    """How matmul is carried out.

    tile_m, tile_n: of out, a block's; tile_k: of a step along K. stages: steps in shared memory. consumers:
    warpgroups that multiply, side by side along N. cluster: blocks along N that share their rows of A. width: tiles
    along N that the order of tiles goes through before it moves on along M.
    """

    kernel: str
    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    consumers: int = 1
    cluster: int = 1
    width: int = 8


class Problem(NamedTuple):
    """What is multiplied. k: 1 at least, for a sum of zeros."""

    m: int
    n: int
    k: int
    transpose_a: bool
    transpose_b: bool
    activation: str | None


class Shared(NamedTuple):
    """The shapes of a block's slots for tiles of A, B and out, and how many bytes TMA swizzles in each; 0: none."""

    a: tuple[int, int]
    b: tuple[int, int]
    out: tuple[int, int]
    swizzle_a: int
    swizzle_b: int
    swizzle_out: int

    @classmethod
    def of(cls, config: Config, problem: Problem, size: int, out_size: int) -> "Shared":
        """size, out_size: bytes of an element."""
        a, b = (config.tile_m, config.tile_k), (config.tile_k, config.tile_n)
        a, b = a[::-1] if problem.transpose_a else a, b[::-1] if problem.transpose_b else b
        out = EPILOGUE_ROWS, min(config.tile_n // config.consumers, SWIZZLED // out_size)
        if config.kernel == "plain":
            # Loaded by row as it is, or turned. Mosaic swizzles what is loaded as a tile, told to or not.
            swizzles = (config.tile_k * size * turned for turned in (not problem.transpose_a, problem.transpose_b))
        else:
            swizzles = [min(SWIZZLED, a[1] * size, b[1] * size)] * 2  # a wgmma has one for both
        return cls(a, b, out, *swizzles, out[1] * out_size)

    def scratch(self, config: Config, dtype, out_dtype) -> list:
        """What :class:`Tiles` takes, and a barrier that tells when a slot is filled."""

        def slots(shape, dtype, swizzle):
            width = swizzle // np.dtype(dtype).itemsize
            transforms = (plgpu.TilingTransform((8, width)), plgpu.SwizzleTransform(swizzle)) if swizzle else ()
            return plgpu.SMEM(shape, dtype, transforms=transforms)

        return [
            slots((config.stages, *self.a), dtype, self.swizzle_a),
            slots((config.stages, *self.b), dtype, self.swizzle_b),
            slots((config.consumers, 2, *self.out), out_dtype, self.swizzle_out),
            plgpu.Barrier(num_arrivals=2, num_barriers=config.stages),
        ]


def fitting(shape: tuple[int, int], size: int, swizzle: int) -> tuple[int, int]:
    """The least shape from ``shape`` on that TMA takes: rows of a multiple of 16 bytes; swizzled, Mosaic cuts it into
    pieces of 8 rows by ``swizzle`` bytes, whole ones unless one is enough.
    """
    rows, cols = (max(length, 1) for length in shape)
    unit = swizzle // size
    if swizzle and rows > 8:
        rows = pl.cdiv(rows, 8) * 8
    if not swizzle or cols <= unit:
        unit = 16 // size
    return rows, pl.cdiv(cols, unit) * unit


class Tiles(NamedTuple):
    """A kernel's arrays and its shared memory; bias is None where there is none."""

    a: object
    b: object
    bias: object
    out: object
    slots_a: object  # (stages, tile_m, tile_k), or (stages, tile_k, tile_m)
    slots_b: object  # (stages, tile_k, tile_n), or (stages, tile_n, tile_k)
    slots_out: object  # (consumers, 2, rows, cols)
    filled: object
    problem: Problem
    config: Config

    @property
    def steps(self) -> int:
        """Along K."""
        return pl.cdiv(self.problem.k, self.config.tile_k)

    def slot(self, i):
        """Of the i-th step of a block."""
        return lax.rem(i, self.config.stages)

    def fetch(self, m, n, step, i) -> None:
        """Start the copies of a step of the tile (m, n), the i-th of this block."""
        config, problem, slot = self.config, self.problem, self.slot(i)
        along = pl.ds(step * config.tile_k, config.tile_k)
        rows, cols = pl.ds(m * config.tile_m, config.tile_m), pl.ds(n * config.tile_n, config.tile_n)
        # --- load A and B
        everybody = "cluster" if config.cluster > 1 else None  # each block fetches its share of A for all
        a = self.a.at[(along, rows) if problem.transpose_a else (rows, along)]
        b = self.b.at[(cols, along) if problem.transpose_b else (along, cols)]
        plgpu.copy_gmem_to_smem(a, self.slots_a.at[slot], self.filled.at[slot], collective_axes=everybody)
        plgpu.copy_gmem_to_smem(b, self.slots_b.at[slot], self.filled.at[slot])

    def multiply(self, me, i, acc) -> None:
        """Add the product of the i-th step, this warpgroup's columns of it, to acc (tile_m, cols)."""
        slot, cols = self.slot(i), self.cols(me)
        plgpu.barrier_wait(self.filled.at[slot])
        # --- multiply and accumulate
        a, b = self.slots_a.at[slot], self.slots_b.at[slot]
        a = a.T if self.problem.transpose_a else a
        b = b.at[cols].T if self.problem.transpose_b else b.at[:, cols]
        plgpu.wgmma(acc, a, b)

    def accumulate(self, me, first, acc, after) -> None:
        """All steps of a tile, the first of which is the block's first-th. ``after(i)``: its slot has been read."""

        # --- multiply and accumulate
        @pl.loop(0, self.steps)
        def _(step):
            self.multiply(me, first + step, acc)
            plgpu.wgmma_wait(1)  # of two steps the one before is done
            pl.when(step > 0)(lambda: after(first + step - 1))

        plgpu.wgmma_wait(0)
        after(first + self.steps - 1)

    def cols(self, me):
        """This warpgroup's, of a tile."""
        each = self.config.tile_n // self.config.consumers
        return pl.ds(me * each, each)

    def store(self, me, m, n, z) -> None:
        """Finish z (tile_m, cols), this warpgroup's part of the tile (m, n), and start the stores of it."""
        height, width = self.slots_out.shape[2:]
        row, col = m * self.config.tile_m, n * self.config.tile_n + me * z.shape[1]
        for turn, (i, j) in enumerate(np.ndindex(z.shape[0] // height, z.shape[1] // width)):
            part = z[i * height : (i + 1) * height, j * width : (j + 1) * width]
            to = pl.ds(row + i * height, height), pl.ds(col + j * width, width)
            # --- bias
            if self.bias is not None:
                bias = plgpu.load(self.bias.at[to[1]], layout=ACROSS, optimized=False).astype(jnp.float32)
                part = part + lax.broadcast_in_dim(bias, part.shape, (1,))
            # --- activation
            part = activate(part, self.problem.activation)
            # --- store
            slot = self.slots_out.at[me, turn % 2]
            plgpu.wait_smem_to_gmem(1, wait_read_only=True)  # the store before the last has left this slot
            slot[...] = part.astype(slot.dtype)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(slot, self.out.at[to])


def activate(z, activation: str | None):
    """f(z), float32."""
    # --- activation
    if activation == "gelu":
        # z/2 erfc(-z / sqrt 2), in which nothing cancels below 0. Mosaic has no erf.
        x = jnp.abs(z) * np.float32(math.sqrt(0.5))
        power = jnp.full_like(x, ERFC[-1])
        for coefficient in ERFC[-2::-1]:
            power = power * x + np.float32(coefficient)
        erfc = jnp.exp2(power * x)
        return z * np.float32(0.5) * jnp.where(z < 0, erfc, 2 - erfc)
    if activation == "gelu_tanh":
        # z / (1 + exp(-2t)): nothing cancels below 0 here either.
        factor = -2 * math.sqrt(2 / math.pi) * math.log2(math.e)
        return z / (1 + jnp.exp2(z * (np.float32(factor) + np.float32(0.044715 * factor) * (z * z))))
    return z
