"""Matmul in CUDA C++: ``cuda/matmul/*.cu``. Contract and errors: ``reference/matmul.py``."""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cupy_impl import device, matmul_hopper
from cupy_impl.launches import CXX_TYPES, NULL, Kernel, Launch
from cupy_impl.matmul_hopper import FILLED
from cupy_impl.rows import WARP, ceil_div
from reference.contract import ArrayInfo, Unsupported, Variant, pick, row_major, scalar
from reference.matmul import ACTIVATIONS, DTYPES, check

PORTABLE, KEPT = ("sm_80",), {"spill_bytes": 0}

LADDER = (
    Variant("1_naive", "a thread an element", DTYPES, PORTABLE),
    Variant("2_tiles", "tiles through shared memory", DTYPES, PORTABLE, KEPT),
    Variant("3_registers", "8 by 8 sums of a thread in registers, vector loads", DTYPES, PORTABLE, KEPT),
    Variant("4_async", "float32: cp.async fills a ring of stages", ("float32",), PORTABLE, {**KEPT, "LDGSTS": ">0"}),
    Variant(
        "5_wmma",
        "16-bit: tensor cores through C++'s warp matrix functions",
        ("float16", "bfloat16"),
        PORTABLE,
        {**KEPT, "HMMA": ">0"},
    ),
    Variant(
        "6_mma",
        "mma and ldmatrix out of swizzled stages that cp.async fills",
        DTYPES,
        PORTABLE,
        {**KEPT, "HMMA": ">0", "LDGSTS": ">0"},
    ),
)

VARIANTS = {"matmul": (*LADDER, *matmul_hopper.VARIANTS)}

BLOCK = 128  # threads of rung 1
SIDE = 16  # rows and columns of rung 2's tiles
GROUP = 8  # rows of tiles that are taken together


@dataclass(frozen=True)
class Config:
    """How a block of rungs 3 to 6 cuts its tile up.

    tile_m, tile_n: rows and columns of the tile. warp_m, warp_n: those of each warp. stages: of the ring, 0 without one.
    """

    tile_m: int
    tile_n: int
    warp_m: int
    warp_n: int
    stages: int = 0

    @property
    def block(self) -> int:
        """Threads of a block."""
        return self.tile_m // self.warp_m * (self.tile_n // self.warp_n) * WARP

    def tiles(self, m: int, n: int) -> int:
        return ceil_div(m, self.tile_m) * ceil_div(n, self.tile_n)


# The last one is for products of too few tiles to fill the GPU with those before.
CONFIGS = {
    "3_registers": (Config(128, 128, 32, 64), Config(64, 64, 32, 64)),
    "4_async": (Config(128, 256, 32, 128, 3), Config(128, 128, 32, 64, 3), Config(64, 64, 32, 64, 4)),
    "5_wmma": (Config(128, 128, 64, 32), Config(64, 64, 32, 32)),
    "6_mma": (Config(128, 128, 64, 32, 3), Config(64, 64, 32, 32, 4)),
}


def configuration(rung: str, m: int, n: int, multiprocessors: int = 132) -> Config:
    """How rung ``rung``, 3 or above, computes out (m, n)."""
    *large, small = CONFIGS[rung]
    return next((c for c in large if c.tiles(m, n) >= FILLED * multiprocessors), small)


class Lines(NamedTuple):
    """A or B as the portable rungs see it: lines of neighbours in memory.

    k_major: neighbours are neighbours along K, otherwise along M or N. pitch: elements from one line to the next.
    vector: elements, at most 16 bytes of them, of which all lines are made.
    """

    k_major: bool
    pitch: int
    vector: int


def lines(info: ArrayInfo, k_axis: int) -> Lines:
    """An array's lines; k_axis: which of its axes is K."""
    strides = info.strides or row_major(info.shape)
    k_major = strides[k_axis] == 1 or info.shape[k_axis] == 1
    near, far = (k_axis, 1 - k_axis) if k_major else (1 - k_axis, k_axis)
    pitch, itemsize = strides[far] if info.shape[far] > 1 else 0, scalar(info.dtype).itemsize
    return Lines(k_major, pitch, math.gcd(info.shape[near] * itemsize, pitch * itemsize, info.address, 16) // itemsize)


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
    """The launches of a call; multiprocessors: of the device, 132 an H200's. config: by default :func:`configuration`'s.

    Raises Unsupported as the rungs' limits say.
    """
    given = {"transpose_a": transpose_a, "transpose_b": transpose_b, "bias": bias, "activation": activation}
    rung = variant.name
    if variant in matmul_hopper.VARIANTS:
        return matmul_hopper.plan(
            a, b, out, **given, precision=precision, variant=variant, multiprocessors=multiprocessors
        )
    if rung == "6_mma" and a.dtype == "float32" and precision != "tf32":
        raise Unsupported(f"precision is {precision!r}; {rung} takes float32 as 'tf32'")
    (m, n), k = out.shape, a.shape[0 if transpose_a else 1]
    defines = {
        "SCALAR": CXX_TYPES[a.dtype],
        "OUT": CXX_TYPES[out.dtype],
        "BIAS": int(bias is not None),
        "ACTIVATION": ACTIVATIONS.index(activation),
    }
    if rung in ("1_naive", "2_tiles"):
        a_strides, b_strides = (info.strides or row_major(info.shape) for info in (a, b))
        a_row, a_col = a_strides[::-1] if transpose_a else a_strides
        b_row, b_col = b_strides[::-1] if transpose_b else b_strides
        if rung == "1_naive":
            grid, block, own = ceil_div(m * n, BLOCK), BLOCK, {"BLOCK": BLOCK}
        else:
            grid, block = ceil_div(m, SIDE) * ceil_div(n, SIDE), SIDE * SIDE
            own = {"TILE": SIDE, "A_ALONG_K": int(a_col == 1), "B_ALONG_K": int(b_row == 1)}
        return (_launch(rung, {**defines, **own}, grid, block, (m, n, k), (a_row, a_col, b_row, b_col)),)
    config = config or configuration(rung, m, n, multiprocessors)
    left, right = lines(a, 0 if transpose_a else 1), lines(b, 1 if transpose_b else 0)
    itemsize = scalar(out.dtype).itemsize
    store = math.gcd(n * itemsize, out.address, 16) // itemsize
    return _tiled(rung, config, left, right, tuple(defines.items()), min(4, store), m, n, k)


@functools.lru_cache(1024)
def _tiled(
    rung: str, config: Config, left: Lines, right: Lines, defines: tuple, store: int, m: int, n: int, k: int
) -> tuple[Launch, ...]:
    """The launches of a rung from 3 on. store: elements of out that store as one."""
    own = {
        "A_K_MAJOR": int(left.k_major),
        "B_K_MAJOR": int(right.k_major),
        "A_VECTOR": left.vector,
        "B_VECTOR": right.vector,
        "STORE": store,
        "GROUP": GROUP,
    }
    if rung in ("5_wmma", "6_mma"):
        own |= {"TILE_M": config.tile_m, "TILE_N": config.tile_n, "WARP_M": config.warp_m, "WARP_N": config.warp_n}
        shared = config.stages * (config.tile_m + config.tile_n) * 128
    else:
        own |= {"WARPS_M": config.tile_m // config.warp_m, "WARPS_N": config.tile_n // config.warp_n}
        own["COLS"] = config.warp_n // 8  # of a thread
        shared = config.stages * (config.tile_m + config.tile_n + 8) * 16 * 4  # 16 slices of K, 4 floats apart
    if config.stages:
        own["STAGES"] = config.stages
    pitches = (left.pitch, right.pitch)
    return (_launch(rung, {**dict(defines), **own}, config.tiles(m, n), config.block, (m, n, k), pitches, shared),)


def _launch(rung: str, defines: dict, grid: int, block: int, lengths, strides, shared_bytes: int = 0) -> Launch:
    return Launch(
        kernel=Kernel(f"matmul/{rung}.cu", "matmul", tuple((name, str(value)) for name, value in defines.items())),
        grid=(grid, 1, 1),
        block=(block, 1, 1),
        arguments=(
            "a",
            "b",
            "bias" if dict(defines)["BIAS"] else NULL,
            "out",
            *(np.int32(length) for length in lengths),
            *(np.int64(stride) for stride in strides),
        ),
        shared_bytes=shared_bytes,
    )


def matmul(
    a,
    b,
    transpose_a: bool = False,
    transpose_b: bool = False,
    bias=None,
    activation: str | None = None,
    out_dtype: str | None = None,
    precision: str = "ieee",
    *,
    out=None,
    variant: str | None = None,
    runtime=device,
):
    """f(A B + bias), f none, GELU or its tanh form, on CuPy's current stream; returns out (M, N) of out_dtype.

    a: (M, K), with transpose_a (K, M); b: (K, N), with transpose_b (N, K); bias: (N,); row-major with rows any distance
    apart, or the transposed view of such an array. activation: ``"gelu"`` or ``"gelu_tanh"``. out_dtype: a dtype's name,
    by default a's. precision: ``"tf32"`` for float32 on tensor cores. out: written and returned where given. variant: a
    name in VARIANTS, by default the last one that the device and the arrays allow. runtime: ``cupy_impl.device``, or
    ``cupy_impl.host`` for NumPy arrays on a CPU.
    Raises TypeError, ValueError and Unsupported as the contract says.
    """
    arrays = {"a": a, "b": b} | ({} if bias is None else {"bias": bias})
    infos = {name: runtime.describe(name, array) for name, array in arrays.items()}
    numbers = {"transpose_a": transpose_a, "transpose_b": transpose_b, "activation": activation, "precision": precision}
    given = None if out is None else runtime.describe("out", out, written=True)
    m, n, _ = check(**infos, **numbers, out_dtype=out_dtype, out=given, platform=runtime.PLATFORM)
    dtype = infos["a"].dtype
    best = pick(VARIANTS["matmul"], variant, dtype, runtime.arch(a))
    if out is None:
        out = runtime.empty((m, n), out_dtype or dtype, a)
    arrays["out"] = out
    infos["out"] = runtime.describe("out", out)
    below = () if variant else tuple(v for v in reversed(LADDER) if dtype in v.dtypes)
    for i, rung in enumerate((best, *below)):
        try:
            launches = plan(**infos, **numbers, variant=rung, multiprocessors=runtime.multiprocessors(a))
            break
        except Unsupported:
            if i == len(below):
                raise
    runtime.launch(launches, arrays, rung)
    return out
