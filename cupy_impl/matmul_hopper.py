"""Matmul's rungs for Hopper's tensor cores, ``cuda/matmul/7_wgmma.cu`` and on: their variants and the launches of a call.

TMA reads both operands where they lie, row by row or column by column, so no transpose is copied.
"""

import functools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cupy_impl.launches import CXX_TYPES, NULL, Kernel, Launch, TensorMap
from cupy_impl.rows import MOST_CLUSTER, WARP, ceil_div, power_of_2_from, resident
from reference.contract import ArrayInfo, Unsupported, Variant, row_major, scalar
from reference.matmul import ACTIVATIONS

DTYPES = ("float16", "bfloat16", "float32")  # float32 as TF32
HOPPER = ("sm_90a",)
TENSOR_CORES = {"spill_bytes": 0, "HGMMA": ">0", "UTMALDG": ">0"}

VARIANTS = (
    Variant("7_wgmma", "TMA and wgmma: warpgroups multiply out of a ring of stages", DTYPES, HOPPER, TENSOR_CORES),
    Variant("8_specialised", "one warpgroup only loads, others only multiply", DTYPES, HOPPER, TENSOR_CORES),
    Variant(
        "9_persistent",
        "blocks take tile after tile in an order for L2, TMA stores them",
        DTYPES,
        HOPPER,
        {**TENSOR_CORES, "UTMASTG": ">0"},
    ),
    Variant(
        "10_cluster",
        "blocks of a cluster read what they share of A and B once",
        DTYPES,
        HOPPER,
        {**TENSOR_CORES, "UTMASTG": ">0"},
    ),
    Variant("11_split", "few tiles: blocks of a cluster share one along K", DTYPES, HOPPER, TENSOR_CORES),
)

WARPGROUP = 128  # threads
ROW_BYTES = 128  # of a stage's rows, the width of the swizzle
BUFFER_ROWS = 16  # that a warp stages for a TMA store, ROW_BYTES of each
FILLED = 0.7  # of the multiprocessors: the share that a choice of tiles has to keep busy


@dataclass(frozen=True)
class Config:
    """How a product is cut up.

    rung: whose kernel. consumers: warpgroups of a block that multiply, 64 rows of the tile each. tile_n: columns of the tile. stages: of the
    ring. group: rows of tiles that are taken together. buffers: of a warp for TMA stores, 0 for stores by threads.
    cluster: blocks, which share rows of A and columns of B in rung 10 and a tile along K in rung 11. along: those of a
    cluster that lie side by side in rung 10, 1 or 2. swap: out's transpose is computed. blocks: of a multiprocessor.
    """

    rung: str
    consumers: int = 2
    tile_n: int = 256
    stages: int = 4
    group: int = 8
    buffers: int = 0
    cluster: int = 1
    swap: bool = False
    blocks: int = 1
    along: int = 1

    @property
    def tile_m(self) -> int:
        return 64 * self.consumers

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * ROW_BYTES

    @property
    def shared_bytes(self) -> int:
        """The stages, the buffers, two barriers a stage."""
        return self.stages * (self.stage_bytes + 16) + self.buffers * self.tile_m * ROW_BYTES

    def tiles(self, rows: int, cols: int) -> int:
        return ceil_div(rows, self.tile_m) * ceil_div(cols, self.tile_n)


LADDER = (
    Config("7_wgmma", 2, 128, 3),
    Config("8_specialised", 2, 256, 4),
    Config("9_persistent", 2, 256, 4, 16, 2),
    Config("10_cluster", 2, 256, 4, 8, 2, 2),
)


class Operand(NamedTuple):
    """A or B as TMA sees it: rows of A, or columns of B, by K.

    name: in the call. k_major: neighbours in memory are neighbours along K, otherwise along rows. pitch: bytes between
    lines of neighbours.
    """

    name: str
    dtype: str
    rows: int
    depth: int
    k_major: bool
    pitch: int

    def map(self, rows: int) -> TensorMap:
        """Its tensor map, for boxes of up to so many rows."""
        width = ROW_BYTES // scalar(self.dtype).itemsize
        if self.k_major:
            return TensorMap(self.name, self.dtype, (self.depth, self.rows), (self.pitch,), (width, rows))
        return TensorMap(self.name, self.dtype, (self.rows, self.depth), (self.pitch,), (width, width))


def operand(name: str, info: ArrayInfo, k_axis: int) -> Operand:
    """An array as TMA sees it; k_axis: which of its axes is K. Raises Unsupported for what TMA cannot address."""
    itemsize = scalar(info.dtype).itemsize
    strides = info.strides or row_major(info.shape)
    rows, depth = info.shape[1 - k_axis], info.shape[k_axis]
    if info.address % 16:
        raise Unsupported(f"{name} starts at {info.address}; TMA takes multiples of 16")
    for k_major, near, far in ((True, k_axis, 1 - k_axis), (False, 1 - k_axis, k_axis)):
        if strides[near] == 1 or info.shape[near] == 1:
            # With a single line there is no next one.
            pitch = ceil_div(info.shape[near] * itemsize, 16) * 16 if info.shape[far] == 1 else strides[far] * itemsize
            if pitch % 16 == 0:
                return Operand(name, info.dtype, rows, depth, k_major, pitch)
    raise Unsupported(
        f"{name} has strides {info.strides}, {itemsize} bytes each; TMA takes rows a multiple of 16 bytes apart"
    )


@functools.lru_cache(1024)
def configuration(rung: str, left: Operand, right: Operand, multiprocessors: int = 132) -> Config:
    """How a product is computed on rung ``rung``, which leaves those of many tiles to the one before; left, right: A, B."""
    for config in LADDER:
        if config.rung == rung:
            return config
    if LADDER[-1].tiles(left.rows, right.rows) >= FILLED * multiprocessors:
        return LADDER[-1]
    return split(left, right, multiprocessors)


def split(left: Operand, right: Operand, multiprocessors: int) -> Config:
    """Rung 11's configuration: out's few rows or columns become the tile's columns, K is shared until the GPU is full."""
    few, many = (left, right) if left.rows <= right.rows else (right, left)
    steps = ceil_div(left.depth * scalar(left.dtype).itemsize, ROW_BYTES)
    if few.rows <= 32 and few.k_major:
        tile = Config("11_split", 1, max(8, power_of_2_from(few.rows)), swap=few is left, blocks=2)
        return _filled(tile, many.rows, few.rows, steps, multiprocessors)
    for consumers, tile_n in ((2, 128), (1, 128), (1, 64)):
        tile = Config("11_split", consumers, tile_n)
        if tile.tile_m > 64 and left.rows <= 64:
            continue
        chosen = _filled(tile, left.rows, right.rows, steps, multiprocessors)
        if chosen.tiles(left.rows, right.rows) * chosen.cluster >= FILLED * multiprocessors:
            break
    return chosen


def _filled(tile: Config, rows: int, cols: int, steps: int, multiprocessors: int) -> Config:
    """A tile's configuration with as many blocks a tile as fill the GPU and as many stages as fill shared memory."""
    cluster = 1
    while (
        cluster < MOST_CLUSTER
        and 2 * cluster * tile.tiles(rows, cols) <= tile.blocks * multiprocessors
        and steps >= 8 * cluster  # 4 or more of each block
    ):
        cluster *= 2
    # Of 228 KiB the system takes 1 KiB a block.
    room = (228 * 1024 // tile.blocks - 1024) // (tile.stage_bytes + 16)
    # The blocks' sums take the place of the stages.
    return replace(tile, cluster=cluster, stages=max(2, min(room, ceil_div(steps, cluster), 12)))


def plan(
    a: ArrayInfo,
    b: ArrayInfo,
    out: ArrayInfo,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    bias: ArrayInfo | None = None,
    activation: str | None = None,
    precision: str = "ieee",
    variant: Variant,
    multiprocessors: int = 132,
    config: Config | None = None,
) -> tuple[Launch, ...]:
    """The launches of a call. config: by default :func:`configuration`'s.

    Raises Unsupported for what TMA or wgmma cannot do: K of 0, rows not a multiple of 16 bytes apart, IEEE float32.
    """
    if a.dtype == "float32" and precision != "tf32":
        raise Unsupported(f"precision is {precision!r}; {variant.name} takes float32 as 'tf32'")
    left, right = operand("a", a, 0 if transpose_a else 1), operand("b", b, 1 if transpose_b else 0)
    if left.depth == 0:
        raise Unsupported(f"K is 0; {variant.name} takes 1 or more")
    if a.dtype == "float32" and not (left.k_major and right.k_major):
        raise Unsupported(f"a or b has its rows along M or N; {variant.name} takes float32 with rows along K")
    itemsize = scalar(out.dtype).itemsize
    aligned = math.gcd(out.address, out.shape[1] * itemsize, 16) // itemsize
    config = config or configuration(variant.name, left, right, multiprocessors)
    return _launches(config, left, right, out.dtype, aligned, bias is not None, activation, multiprocessors)


@functools.lru_cache(1024)
def _launches(
    config: Config,
    left: Operand,
    right: Operand,
    out_dtype: str,
    aligned: int,
    bias: bool,
    activation: str | None,
    multiprocessors: int,
) -> tuple[Launch, ...]:
    """The launches of a plan. aligned: elements at whose multiples rows of out start, as many as 16 bytes hold or fewer."""
    rung, m, n, itemsize = config.rung, left.rows, right.rows, scalar(out_dtype).itemsize
    staged = aligned * itemsize == 16
    if not staged:
        config = replace(config, buffers=0)
    if config.swap:
        left, right = right, left
    rows, cols = left.rows, right.rows
    down, along = (config.cluster // config.along, config.along) if rung == "10_cluster" else (1, 1)
    maps = [left.map(config.tile_m // along), right.map(config.tile_n // down)]
    tiles = ceil_div(rows, down * config.tile_m) * ceil_div(cols, along * config.tile_n)
    defines = {
        "SCALAR": CXX_TYPES[left.dtype],
        "OUT": CXX_TYPES[out_dtype],
        "LEFT_K_MAJOR": int(left.k_major),
        "RIGHT_K_MAJOR": int(right.k_major),
        "CONSUMERS": config.consumers,
        "TILE_N": config.tile_n,
        "STAGES": config.stages,
        "VECTOR": min(2, aligned),
        "BIAS": int(bias),
        "ACTIVATION": ACTIVATIONS.index(activation),
    }
    blocks, threads = tiles * config.cluster, (config.consumers + 1) * WARPGROUP
    if rung in ("9_persistent", "10_cluster"):
        store = (
            TensorMap("out", out_dtype, (n, m), (n * itemsize,), (ROW_BYTES // itemsize, BUFFER_ROWS)) if staged else None
        )
        maps.append(store or maps[0])  # which nobody looks at
        defines |= {"GROUP": config.group, "BUFFERS": config.buffers}
        blocks = min(tiles, resident(config.cluster, multiprocessors)) * config.cluster
    elif rung == "11_split":
        defines |= {"GROUP": config.group, "SWAP": int(config.swap), "BLOCKS": config.blocks}
        threads -= WARPGROUP - WARP
    elif rung == "7_wgmma":
        threads -= WARPGROUP
    if rung in ("10_cluster", "11_split"):
        defines["CLUSTER"] = config.cluster
    if rung == "10_cluster":
        defines["ALONG"] = along
    return (
        Launch(
            kernel=Kernel(f"matmul/{rung}.cu", "matmul", tuple((name, str(value)) for name, value in defines.items())),
            grid=(blocks, 1, 1),
            block=(threads, 1, 1),
            arguments=(
                *maps,
                "bias" if bias else NULL,
                "out",
                np.int32(rows),
                np.int32(cols),
                np.int32(left.depth),
            ),
            shared_bytes=config.shared_bytes,
            cluster=(config.cluster, 1, 1),
        ),
    )
