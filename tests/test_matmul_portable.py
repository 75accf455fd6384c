"""Matmul's portable rungs without a GPU: where registers' tiles lie, and every configuration, which few cases are large enough for."""

import re
from pathlib import Path

import numpy as np
import pytest

from crosscheck.compare import judge
from cupy_impl import host
from cupy_impl.launches import Kernel, Launch
from cupy_impl.matmul import CONFIGS, LADDER, configuration, plan
from reference.contract import ArrayInfo, row_major
from reference.matmul import expect

SOURCE = str(Path(__file__).parent / "host_kernels" / "register_tiles.cu")
RUNGS = {variant.name: variant for variant in LADDER}
EVERY = [
    pytest.param(rung, config, id=f"{rung}-{config.tile_m}x{config.tile_n}")
    for rung, configs in CONFIGS.items()
    for config in configs
]

needs_compiler = pytest.mark.skipif(host.unavailable() is not None, reason=str(host.unavailable()))


@needs_compiler
@pytest.mark.parametrize("warps_m, warps_n, cols", ((4, 2, 8), (4, 2, 16), (2, 1, 8)))
def test_sums_in_registers_cover_the_tile_and_are_read_without_bank_conflicts(warps_m, warps_n, cols):
    threads, tile_m, tile_n = 32 * warps_m * warps_n, 32 * warps_m, 8 * cols * warps_n
    corners = np.full((threads, 2), -1, np.int32)
    defines = {"WARPS_M": warps_m, "WARPS_N": warps_n, "COLS": cols, "OUT": "float", "STORE": 4}
    defines |= {"GROUP": 8, "BIAS": 0, "ACTIVATION": 0}
    kernel = Kernel(SOURCE, "corners", tuple((name, str(value)) for name, value in defines.items()))
    host.launch((Launch(kernel, (1, 1, 1), (threads, 1, 1), ("corners",)),), {"corners": corners}, None)
    step = lambda count, apart: np.arange(count) // 4 * apart + np.arange(count) % 4
    row, col = corners[:, :1] + step(8, 16), corners[:, 1:] + step(cols, 32)  # (threads, 8), (threads, cols)
    own = row[:, :, None] * tile_n + col[:, None]
    assert np.array_equal(np.sort(own.ravel()), np.arange(tile_m * tile_n))
    # Half a warp reads 16 bytes a lane in one turn: where lanes share what they read, in different words of 32 banks at most.
    for index in (row, col):
        for words in index.reshape(threads // 16, 16, -1, 4).swapaxes(1, 2).reshape(-1, 64):
            assert np.bincount(np.unique(words) % 32).max() == 1


@pytest.mark.parametrize(
    "rung, m, n, tile",
    (
        ("4_async", 4096, 4096, (128, 256)),
        ("4_async", 1024, 2048, (128, 128)),
        ("4_async", 1024, 1024, (64, 64)),
        ("4_async", 1, 1, (64, 64)),
        ("3_registers", 4096, 4096, (128, 128)),
    ),
)
def test_tiles_shrink_until_they_fill_the_gpu(rung, m, n, tile):
    config = configuration(rung, m, n)
    assert (config.tile_m, config.tile_n) == tile


@needs_compiler
@pytest.mark.parametrize("ta, tb, more", ((False, True, 0), (True, False, 0), (False, False, 1)))
@pytest.mark.parametrize("rung, config", EVERY)
def test_every_configuration_is_right(rung, config, ta, tb, more):
    """Two tiles of out each way, and steps along K, with tails; more: an element that takes vectors away."""
    m, n, k = config.tile_m + 8 + more, config.tile_n + 8 + more, 72 + more
    dtype = RUNGS[rung].dtypes[0]
    rng = np.random.default_rng(0)
    shapes = {"a": (k, m) if ta else (m, k), "b": (n, k) if tb else (k, n), "bias": (n,)}
    arrays = {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    out = np.full((m, n), np.nan, dtype)
    infos = {name: host.describe(name, array) for name, array in {**arrays, "out": out}.items()}
    flags = {"transpose_a": ta, "transpose_b": tb, "activation": "gelu"}
    launches = plan(**infos, **flags, variant=RUNGS[rung], config=config)
    host.launch(launches, {**arrays, "out": out}, RUNGS[rung])
    judgement = judge(out, expect(**arrays, **flags)["out"])
    assert judgement.ok, judgement


@pytest.mark.parametrize("rung, config", EVERY)
def test_every_configuration_compiles_without_spills(rung, config):
    """The compile report's case takes the largest tiles, with both operands as they come."""
    pytest.importorskip("cuda.bindings.nvrtc")
    from cupy_impl import nvrtc

    for length, ta, tb in ((4096, False, False), (4096, False, True), (4096, True, False), (4095, False, False)):
        shape = length, length
        array = ArrayInfo(shape, RUNGS[rung].dtypes[0], row_major(shape), "cuda:0", 0)
        (launch,) = plan(array, array, array, transpose_a=ta, transpose_b=tb, variant=RUNGS[rung], config=config)
        assert launch.shared_bytes <= 99 * 1024  # sm_89's
        _, log = nvrtc.compile(launch.kernel, "sm_90", "--ptxas-options=-v")
        assert re.findall(r"(\d+) bytes spill", log) == ["0", "0"], log
