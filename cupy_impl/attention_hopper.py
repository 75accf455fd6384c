"""Attention's rungs for Hopper's tensor cores, ``cuda/attention/5_wgmma.cu`` and on: variants and the launches of a call.

TMA reads both layouts where they lie, along four axes, and clips at a sequence's end on both ways.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np

from cupy_impl.launches import CXX_TYPES, NULL, Kernel, Launch, TensorMap
from cupy_impl.rows import ceil_div
from reference.attention import DTYPES
from reference.contract import ArrayInfo, Unsupported, Variant, row_major

HOPPER = ("sm_90a",)
KEPT = {"spill_bytes": 0, "HGMMA": ">0", "UTMALDG": ">0", "UTMASTG": ">0"}

VARIANTS = (
    Variant("5_wgmma", "TMA and wgmma: softmax under the products of other warpgroups", DTYPES, HOPPER, KEPT),
    Variant("6_persistent", "blocks take work after work, the longest rows first", DTYPES, HOPPER, KEPT),
)

WARPGROUP = 128  # threads
WARPGROUP_ROWS = 64  # of queries
COLUMN = 64  # elements of head_dim in the swizzle's 128 bytes
STORED_ROWS = 16  # of out, that a warp stores at once
L2 = 32 << 20  # bytes of keys and values that stay in L2 while others pass
DEALT = 64  # works of a block from which on blocks come to about the same anyway


@dataclass(frozen=True)
class Config:
    """How a call is cut up.

    consumers: warpgroups of a block that compute, 64 queries each. tile_k: keys of a tile. stages: tiles of keys or of
    values in shared memory.
    """

    consumers: int
    tile_k: int
    stages: int

    @property
    def tile_q(self) -> int:
        return WARPGROUP_ROWS * self.consumers

    def shared_bytes(self, head_dim: int, query_stages: int) -> int:
        """Tiles and queries, two barriers each."""
        return self.stages * (self.tile_k * head_dim * 2 + 16) + query_stages * (self.tile_q * head_dim * 2 + 16)


# By head_dim and causal.
CONFIGS = {
    (64, True): Config(3, 128, 8),
    (64, False): Config(3, 128, 8),
    (128, True): Config(2, 128, 4),
    (128, False): Config(2, 128, 4),
}
QUERY_STAGES = {"5_wgmma": 1, "6_persistent": 2}


def plan(
    q: ArrayInfo,
    k: ArrayInfo,
    v: ArrayInfo,
    out: ArrayInfo,
    lse: ArrayInfo | None = None,
    *,
    causal: bool,
    scale: float | None = None,
    layout: str = "bhsd",
    variant: Variant,
    multiprocessors: int = 132,
    config: Config | None = None,
) -> tuple[Launch, ...]:
    """The launches of a call. config: by default that of CONFIGS.

    Raises Unsupported for what TMA cannot address.
    """
    for name, info in (("q", q), ("k", k), ("v", v), ("out", out)):
        if info.address % 16:
            raise Unsupported(f"{name} starts at {info.address}; TMA takes multiples of 16")
    return _launches(
        config or CONFIGS[q.shape[3], bool(causal)],
        variant.name,
        q.shape,
        q.dtype,
        layout,
        causal,
        scale,
        lse is not None,
        multiprocessors,
    )


def tiles_of_blocks(config: Config, sequence: int, heads: int, group: int, blocks: int) -> np.ndarray:
    """How many tiles of keys each block comes to, (blocks,), where rung 6 deals causal works by groups of heads.

    A work counts as one tile more, for its queries and its output.
    """
    rows = ceil_div(sequence, config.tile_q)
    first, inside = np.divmod(np.arange(rows * heads), group * rows)
    row = rows - 1 - inside // np.minimum(group, heads - first * group)
    turn, block = np.divmod(inside, blocks)
    block = np.where((first + turn) % 2 == 0, block, blocks - 1 - block)
    tiles = -(-np.minimum((row + 1) * config.tile_q, sequence) // config.tile_k) + 1
    return np.bincount(block, tiles, blocks)


def heads_at_a_time(config: Config, sequence: int, heads: int, in_l2: int, blocks: int) -> int:
    """Of how many heads, all batches' counted, rung 6 takes the works together, so that blocks come to equal numbers of tiles.

    in_l2: of how many keys and values stay in L2.
    """
    rows, most = ceil_div(sequence, config.tile_q), min(in_l2, heads)
    groups = sorted({min(max(1, rounds * blocks // rows), most) for rounds in range(1, 9)})  # about whole rounds
    if heads * rows > DEALT * blocks:
        return groups[-1]
    return min(groups, key=lambda group: tiles_of_blocks(config, sequence, heads, group, blocks).max())


@functools.lru_cache(1024)
def _launches(
    config: Config,
    rung: str,
    shape: tuple[int, ...],
    dtype: str,
    layout: str,
    causal: bool,
    scale: float | None,
    lse: bool,
    multiprocessors: int,
) -> tuple[Launch, ...]:
    length = dict(zip(layout, shape))
    stride = dict(zip(layout, row_major(shape)))
    heads, sequence, head_dim = length["h"], length["s"], length["d"]
    all_heads = length["b"] * heads
    if all_heads * sequence == 0:
        return ()
    axes = tuple(length[axis] for axis in "dshb")
    pitches = tuple(2 * stride[axis] for axis in "shb")
    boxes = {"q": WARPGROUP_ROWS, "k": config.tile_k, "v": config.tile_k, "out": STORED_ROWS}
    maps = [TensorMap(name, dtype, axes, pitches, (COLUMN, rows)) for name, rows in boxes.items()]
    defines = {
        "SCALAR": CXX_TYPES[dtype],
        "HEAD_DIM": head_dim,
        "CAUSAL": int(causal),
        "CONSUMERS": config.consumers,
        "TILE_K": config.tile_k,
        "STAGES": config.stages,
    }
    scaled = np.float32((1 / math.sqrt(head_dim) if scale is None else scale) * math.log2(math.e))
    arguments = [*maps, "lse" if lse else NULL, scaled, np.int32(heads), np.int32(sequence)]
    blocks = ceil_div(sequence, config.tile_q) * all_heads
    if rung == "6_persistent":
        blocks, in_l2 = min(blocks, multiprocessors), max(1, L2 // (4 * sequence * head_dim))
        group = heads_at_a_time(config, sequence, all_heads, in_l2, blocks) if causal else all_heads
        arguments += [np.int32(all_heads), np.int32(group)]
    return (
        Launch(
            kernel=Kernel(
                f"attention/{rung}.cu", "attention", tuple((name, str(value)) for name, value in defines.items())
            ),
            grid=(blocks, 1, 1),
            block=((config.consumers + 1) * WARPGROUP, 1, 1),
            arguments=tuple(arguments),
            shared_bytes=config.shared_bytes(head_dim, QUERY_STAGES[rung]),
        ),
    )
