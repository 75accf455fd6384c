"""Matmul's Hopper rungs without a GPU: where tiles lie and in which order they come, and what a call launches."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from crosscheck.compare import judge
from crosscheck.tables.matmul import BENCH
from cupy_impl import host
from cupy_impl.launches import Kernel, Launch, TensorMap
from cupy_impl.matmul_hopper import VARIANTS, Config, operand, plan
from reference.contract import ArrayInfo, Unsupported, row_major, scalar
from reference.matmul import expect

TILES = str(Path(__file__).parent / "host_kernels" / "tiles.cu")

needs_compiler = pytest.mark.skipif(host.unavailable() is not None, reason=str(host.unavailable()))


def run(name, grid, block, *arguments, **defines):
    names = tuple(f"a{i}" if isinstance(a, np.ndarray) else a for i, a in enumerate(arguments))
    arrays = {f"a{i}": a for i, a in enumerate(arguments) if isinstance(a, np.ndarray)}
    kernel = Kernel(TILES, name, tuple({"GROUP": "1", **defines}.items()))
    host.launch((Launch(kernel, (grid, 1, 1), (block, 1, 1), names),), arrays, None)


def info(shape, dtype="bfloat16", strides=None, address=0):
    return ArrayInfo(shape, dtype, strides or row_major(shape), "cuda:0", address)


def launches(m, n, k, variant="11_split", dtype="bfloat16", out_dtype=None, address=0, **more):
    """The one launch of a call; more: plan's keywords, and transposes, which decide the shapes."""
    a = info((k, m) if more.get("transpose_a") else (m, k), dtype)
    b = info((n, k) if more.get("transpose_b") else (k, n), dtype)
    out = info((m, n), out_dtype or dtype, address=address)
    (launch,) = plan(a, b, out, variant=next(v for v in VARIANTS if v.name == variant), **more)
    return launch


# --- places


@needs_compiler
@pytest.mark.parametrize("height", (1, 4, 8, 16))
@pytest.mark.parametrize("rows, cols", ((1, 1), (3, 5), (8, 7), (17, 2), (16, 16), (33, 9)))
def test_every_tile_comes_once(rows, cols, height):
    places = np.full((rows * cols, 2), -1, np.int32)
    run("order", -(-rows * cols // 64), 64, places, np.int32(rows), np.int32(cols), GROUP=str(height))
    assert {tuple(place) for place in places} == {(row, col) for row in range(rows) for col in range(cols)}


@needs_compiler
def test_neighbours_in_the_order_share_rows_or_columns():
    places = np.zeros((32 * 24, 2), np.int32)
    run("order", 12, 64, places, np.int32(32), np.int32(24), GROUP="8")
    for first in range(0, len(places) - 64, 64):
        rows, cols = (len(set(along)) for along in places[first : first + 64].T)
        assert rows + cols == 16  # a square of 64 tiles reads the fewest
    assert (np.abs(np.diff(places[:, 1])) <= 1).all()  # there and back, no jumps


@needs_compiler
def test_the_swizzle_keeps_rows_and_spreads_columns_over_banks():
    places = np.zeros((64, 128), np.int32)
    run("swizzle", 64, 128, places)
    assert np.array_equal(np.sort(places.ravel()), np.arange(64 * 128))
    assert np.array_equal(places // 128, np.repeat(np.arange(64), 128).reshape(64, 128))
    # PTX ISA: bits 4 to 6 of the address change with bits 7 to 9.
    address = np.arange(64 * 128)
    assert np.array_equal(places.ravel(), address ^ (address >> 7 & 7) << 4)
    for pieces in (places[:, ::16] // 16 % 8).reshape(8, 8, 8):  # 8 rows by 8 pieces of 16 bytes
        assert all(len(set(column)) == 8 for column in pieces.T)


@needs_compiler
@pytest.mark.parametrize("sums", (4, 128))
def test_fragments_cover_the_tile_once(sums):
    rows, cols = np.zeros((2, 128, sums), np.int32)
    run("fragments", sums, 128, rows, cols)
    assert np.array_equal(np.sort((rows * 2 * sums + cols).ravel()), np.arange(64 * 2 * sums))
    assert (cols[:, 1::2] == cols[:, ::2] + 1).all() and (rows[:, 1::2] == rows[:, ::2]).all()
    # PTX ISA, the fragment of D: thread 37 is lane 5 of warp 1.
    assert [(rows[37, i], cols[37, i]) for i in range(4)] == [(17, 2), (17, 3), (25, 2), (25, 3)]


@needs_compiler
def test_descriptors_find_what_tma_has_written():
    """An operand of 128 rows, 64 elements of K, as TMA writes it and as wgmma reads it: PTX ISA, canonical layouts."""
    found = np.zeros((2, 4), np.uint64)
    start = 3 * 1024
    run("descriptors", 1, 1, found, np.int32(start))
    row, k = np.mgrid[:128, :64]
    swizzle = lambda address: address ^ (address >> 7 & 7) << 4
    along_k = swizzle(start + row * 128 + k * 2)  # one box of (128, 64)
    along_rows = swizzle(start + row // 64 * 8192 + k * 128 + row % 64 * 2)  # two of (64, 64)
    for k_major, written, own in ((True, along_k, found[0]), (False, along_rows, found[1])):
        for step, descriptor in enumerate(own):
            descriptor = int(descriptor)
            place, leading, stride = (((descriptor >> at) & 0x3FFF) << 4 for at in (0, 16, 32))
            assert descriptor >> 62 == 1  # the swizzle of 128 bytes
            row, k = np.mgrid[:128, :16]
            if k_major:
                read = place + row % 8 * 128 + row // 8 * stride + k * 2
            else:
                read = place + row % 64 * 2 + row // 64 * leading + k % 8 * 128 + k // 8 * stride
            assert np.array_equal(swizzle(read), written[:, 16 * step : 16 * step + 16])


# --- launches


@pytest.mark.parametrize("variant", [v.name for v in VARIANTS])
@pytest.mark.parametrize(
    "shape", (*BENCH, (1, 8, 8), (8192, 16, 8192), (300, 24, 5000), (256, 256, 8192), (2, 100000, 8))
)
def test_what_a_call_launches_fits_a_multiprocessor(variant, shape):
    for transposes in ({}, {"transpose_a": True, "transpose_b": True}):
        if transposes and shape[0] % 8:
            continue
        launch = launches(*shape, variant, **transposes)
        defines = {name: value for name, value in launch.kernel.defines}
        stages, consumers, tile_n = (int(defines[name]) for name in ("STAGES", "CONSUMERS", "TILE_N"))
        blocks = int(defines.get("BLOCKS", 1))
        assert stages >= 2 and launch.shared_bytes <= 227 * 1024
        assert blocks * (launch.shared_bytes + 1024) <= 228 * 1024
        assert blocks * launch.block[0] <= 2048 and launch.grid[0] % launch.cluster[0] == 0
        # The boxes of a stage are as many bytes as the kernel waits for.
        along = int(defines.get("ALONG", 1))
        down = launch.cluster[0] // along if launch.kernel.source == "matmul/10_cluster.cu" else 1
        for box, k_major, rows in (
            (launch.arguments[0].box, defines["LEFT_K_MAJOR"], 64 * consumers // along),
            (launch.arguments[1].box, defines["RIGHT_K_MAJOR"], tile_n // down),
        ):
            assert box == (64, rows if k_major == "1" else 64) and rows % box[1] == 0
        if launch.kernel.source == "matmul/11_split.cu":
            assert 4 * 64 * consumers * tile_n <= stages * (64 * consumers + tile_n) * 128  # the sums' place
            assert int(defines["CLUSTER"]) <= -(-shape[2] // 64)


def test_tensor_maps_of_both_majors():
    launch = launches(200, 320, 136, "10_cluster")
    left, right, out = launch.arguments[:3]
    assert left == TensorMap("a", "bfloat16", (136, 200), (272,), (64, 128))
    assert right == TensorMap("b", "bfloat16", (320, 136), (640,), (64, 64))
    assert out == TensorMap("out", "bfloat16", (320, 200), (640,), (64, 16))
    launch = launches(200, 320, 136, "10_cluster", out_dtype="float32", transpose_a=True, transpose_b=True)
    left, right, out = launch.arguments[:3]
    assert left == TensorMap("a", "bfloat16", (200, 136), (400,), (64, 64))
    assert right == TensorMap("b", "bfloat16", (136, 320), (272,), (64, 128))  # each block of the cluster loads half
    assert out == TensorMap("out", "float32", (320, 200), (1280,), (32, 16))


def test_views_are_read_where_they_lie():
    padded = operand("a", info((100, 50), strides=(64, 1)), 1)
    assert (padded.k_major, padded.pitch, padded.rows, padded.depth) == (True, 128, 100, 50)
    transposed = operand("a", info((100, 50), strides=(1, 104)), 1)
    assert (transposed.k_major, transposed.pitch, transposed.rows) == (False, 208, 100)
    single = operand("a", info((1, 50)), 1)  # its row has no next one
    assert (single.k_major, single.pitch) == (True, 112)
    column = operand("a", info((104, 1)), 1)
    assert (column.k_major, column.pitch) == (False, 208)


def test_rows_of_out_that_tma_cannot_address_are_stored_by_threads():
    for n, address, buffers, vector in ((264, 0, "2", "2"), (262, 0, "0", "2"), (262, 2, "0", "1"), (264, 8, "0", "2")):
        b = info((n, 64))  # so that B can be addressed
        (launch,) = plan(info((256, 64)), b, info((256, n), address=address), transpose_b=True, variant=VARIANTS[2])
        defines = {name: value for name, value in launch.kernel.defines}
        assert (defines["BUFFERS"], defines["VECTOR"]) == (buffers, vector)


@pytest.mark.parametrize(
    "shape, more, reason",
    [
        ((64, 64, 0), {}, "K is 0"),
        ((64, 64, 63), {}, "a has strides"),
        ((64, 63, 64), {}, "b has strides"),
        ((64, 64, 64), {"dtype": "float32"}, "precision is 'ieee'"),
        ((64, 64, 64), {"dtype": "float32", "precision": "tf32"}, "rows along K"),
    ],
)
def test_what_tma_and_wgmma_cannot_do_is_refused_by_name(shape, more, reason):
    for variant in VARIANTS:
        with pytest.raises(Unsupported, match=reason):
            launches(*shape, variant.name, **more)


def test_a_misaligned_operand_is_refused():
    with pytest.raises(Unsupported, match="a starts at 2"):
        operand("a", info((64, 64), address=2), 1)


def test_small_products_are_shared_until_the_gpu_is_full():
    for shape in BENCH:
        launch = launches(*shape)
        assert launch.grid[0] >= 0.9 * 128, shape


def test_tensor_maps_refuse_what_the_driver_would():
    for wrong in (
        {"box": (64, 257)},
        {"box": (32, 64)},
        {"pitches": (130,)},
        {"dims": (0, 64)},
        {"dims": (64, 64, 64), "pitches": (128, 8192)},
        {"dims": (64, 64, 2, 1), "pitches": (128, 8192)},
    ):
        with pytest.raises(ValueError, match="accepted: "):
            TensorMap(
                **{"array": "a", "dtype": "bfloat16", "dims": (64, 64), "pitches": (128,), "box": (64, 64)} | wrong
            )


@pytest.mark.parametrize("shape", [shape for shape in BENCH if math.prod(shape) < 2**34])
def test_products_of_few_tiles_compile_as_promised(shape):
    """The compile report's largest case takes rung 10; these take 11. ptxas says (C75..) where it makes wgmma wait."""
    pytest.importorskip("cuda.bindings.nvrtc")
    from cupy_impl import nvrtc

    image, log = nvrtc.compile(launches(*shape).kernel, "sm_90a", "--ptxas-options=-v")
    assert image and re.findall(r"(\d+) bytes spill", log) == ["0", "0"] and "(C75" not in log, log


# --- the kernels on a CPU, where TMA and wgmma do what PTX ISA says of them


def aligned(shape, dtype):
    """An array of ones in every bit, NaN, that starts at a multiple of 16."""
    size = math.prod(shape) * scalar(dtype).itemsize
    memory = np.full(size + 16, 0xFF, np.uint8)
    start = -memory.ctypes.data % 16
    return memory[start : start + size].view(scalar(dtype)).reshape(shape)


SMALL = {
    "7_wgmma": Config("7_wgmma", 2, 64, 3),
    "8_specialised": Config("8_specialised", 1, 64, 3),
    "9_persistent": Config("9_persistent", 1, 64, 3, 2, 1),
    "10_cluster": Config("10_cluster", 1, 128, 3, 1, 2, 2),
    "11_split": Config("11_split", 1, 64, 3, 2, 0, 2),
}


@needs_compiler
@pytest.mark.parametrize(
    "variant, shape, dtype, out_dtype, transpose_a, transpose_b, activation, config",
    [
        ("7_wgmma", (136, 136, 264), "bfloat16", None, False, False, None, SMALL["7_wgmma"]),
        ("7_wgmma", (66, 67, 136), "float16", None, False, True, "gelu", SMALL["7_wgmma"]),
        ("8_specialised", (72, 136, 264), "float16", "float32", True, False, None, SMALL["8_specialised"]),
        ("9_persistent", (200, 136, 264), "bfloat16", None, False, False, "gelu_tanh", SMALL["9_persistent"]),
        ("9_persistent", (66, 67, 136), "bfloat16", None, False, True, None, SMALL["9_persistent"]),
        ("9_persistent", (66, 68, 72), "float32", None, False, True, None, SMALL["9_persistent"]),
        ("10_cluster", (392, 264, 264), "bfloat16", None, False, False, None, SMALL["10_cluster"]),
        ("10_cluster", (136, 136, 200), "float16", "float32", True, True, "gelu", SMALL["10_cluster"]),
        (
            "10_cluster",
            (264, 264, 264),
            "bfloat16",
            None,
            True,
            False,
            None,
            Config("10_cluster", 2, 64, 3, 1, 1, 2, along=2),
        ),
        (
            "10_cluster",
            (264, 392, 200),
            "bfloat16",
            None,
            False,
            True,
            None,
            Config("10_cluster", 2, 128, 3, 1, 2, 4, along=2),
        ),
        ("11_split", (72, 72, 264), "bfloat16", None, False, False, "gelu", SMALL["11_split"]),
        ("11_split", (1, 72, 1024), "bfloat16", None, False, False, None, None),
        ("11_split", (7, 66, 520), "float16", "float32", False, True, "gelu", None),
        ("11_split", (70, 7, 520), "bfloat16", None, False, True, None, None),
    ],
)
def test_products_on_a_cpu(variant, shape, dtype, out_dtype, transpose_a, transpose_b, activation, config):
    m, n, k = shape
    rng = np.random.default_rng(0)
    arrays = {"a": (k, m) if transpose_a else (m, k), "b": (n, k) if transpose_b else (k, n), "bias": (n,)}
    arrays = {name: aligned(shape, dtype) for name, shape in arrays.items()}
    for array in arrays.values():
        array[...] = rng.standard_normal(array.shape)
    out = aligned((m, n), out_dtype or dtype)
    own = {name: host.describe(name, array) for name, array in {**arrays, "out": out}.items()}
    precision = "tf32" if dtype == "float32" else "ieee"
    flags = {"transpose_a": transpose_a, "transpose_b": transpose_b, "activation": activation, "precision": precision}
    rung = next(v for v in VARIANTS if v.name == variant)
    host.launch(plan(**own, **flags, variant=rung, multiprocessors=4, config=config), {**arrays, "out": out}, rung)
    judgement = judge(out, expect(**arrays, **flags, out_dtype=out_dtype)["out"])
    assert judgement.ok, judgement
