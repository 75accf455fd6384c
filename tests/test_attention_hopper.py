"""Attention's Hopper rungs without a GPU: whom works are dealt to, what a call launches, and the kernels on a CPU."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from crosscheck.compare import judge
from crosscheck.tables.attention import BENCH
from cupy_impl import host
from cupy_impl.attention_hopper import CONFIGS, VARIANTS, Config, heads_at_a_time, plan, tiles_of_blocks
from cupy_impl.launches import Kernel, Launch, TensorMap
from reference.attention import expect
from reference.contract import ArrayInfo, Unsupported, row_major, scalar

DEALER = str(Path(__file__).parent / "host_kernels" / "dealer.cu")

needs_compiler = pytest.mark.skipif(host.unavailable() is not None, reason=str(host.unavailable()))


def launches(shape, variant="6_persistent", causal=True, dtype="bfloat16", layout="bhsd", address=0, lse=True, **more):
    """The one launch of a call; shape: batch, heads, sequence, head_dim."""
    size = dict(zip("bhsd", shape))
    own, stats = tuple(size[axis] for axis in layout), tuple(size[axis] for axis in "bhs")
    info = ArrayInfo(own, dtype, row_major(own), "cuda:0", address)
    given = {"lse": ArrayInfo(stats, "float32", row_major(stats), "cuda:0", 0)} if lse else {}
    rung = next(v for v in VARIANTS if v.name == variant)
    (launch,) = plan(info, info, info, info, **given, causal=causal, layout=layout, variant=rung, **more)
    return launch


# --- whom works are dealt to


def dealt(rows, heads, group, blocks, causal):
    """(rounds, blocks, 2), the head and row of each block's work; -1 where it has none."""
    rounds = -(-heads // group) * -(-group * rows // blocks)
    places = np.full((rounds, blocks, 2), -1, np.int32)
    kernel = Kernel(DEALER, "deal", (("CAUSAL", str(int(causal))),))
    numbers = np.int32(rows), np.int32(heads), np.int32(group)
    host.launch((Launch(kernel, (blocks, 1, 1), (1, 1, 1), ("places", *numbers)),), {"places": places}, None)
    return places


@needs_compiler
@pytest.mark.parametrize("causal", (True, False))
@pytest.mark.parametrize("rows, heads, group", ((1, 1, 1), (3, 5, 2), (8, 33, 33), (7, 20, 8), (130, 3, 1)))
def test_every_work_is_dealt_once(rows, heads, group, causal):
    places = dealt(rows, heads, group, 20, causal).reshape(-1, 2)
    works = [tuple(place) for place in places if place[0] >= 0]
    assert len(works) == rows * heads
    assert set(works) == {(head, row) for head in range(heads) for row in range(rows)}


@needs_compiler
@pytest.mark.parametrize("shape", BENCH)
def test_blocks_come_to_equal_numbers_of_tiles(shape):
    batch, heads, sequence, head_dim = shape
    config = CONFIGS[head_dim, True]
    *_, all_heads, group = launches(shape).arguments
    tiles = tiles_of_blocks(config, sequence, batch * heads, int(group), 132)
    assert tiles.mean() > 0.98 * tiles.max()
    # It counts what the kernel deals.
    places = dealt(-(-sequence // config.tile_q), int(all_heads), int(group), 132, True)
    end = np.minimum((places[..., 1] + 1) * config.tile_q, sequence)
    assert np.array_equal(np.where(places[..., 0] >= 0, -(-end // config.tile_k) + 1, 0).sum(axis=0), tiles)


@needs_compiler
def test_the_longest_works_of_a_group_come_first():
    places = dealt(9, 16, 8, 10, True)
    rows = [[row for head, row in turn if head >= 0] for turn in places]
    for turn, after in zip(rows, rows[1:8]):  # of the first group's rounds
        assert min(turn) >= max(after)
    assert {head for turn in places[:8] for head, _ in turn if head >= 0} == set(range(8))


def test_as_many_heads_at_a_time_as_stay_in_l2():
    config = Config(2, 128, 4)
    for sequence, most in ((16384, 4), (65536, 1), (300, 200)):
        assert 1 <= heads_at_a_time(config, sequence, 1000, most, 132) <= most
    assert heads_at_a_time(config, 1024, 3, 64, 132) == 3


# --- launches


@pytest.mark.parametrize("variant", [v.name for v in VARIANTS])
@pytest.mark.parametrize("shape", (*BENCH, (1, 1, 1, 64), (2, 3, 50001, 128), (70, 1000, 65, 64)))
@pytest.mark.parametrize("causal", (True, False))
def test_what_a_call_launches_fits_a_multiprocessor(variant, shape, causal):
    launch = launches(shape, variant, causal)
    defines = {name: value for name, value in launch.kernel.defines}
    consumers, tile_k, stages = (int(defines[name]) for name in ("CONSUMERS", "TILE_K", "STAGES"))
    assert (
        stages >= 3 and launch.shared_bytes <= 227 * 1024
    )  # keys of the next tile come in beside those and the values of one
    assert launch.block[0] == 128 * (consumers + 1) and launch.grid[0] >= 1
    q, k, v, out = launch.arguments[:4]
    assert (q.box, k.box, v.box, out.box) == ((64, 64), (64, tile_k), (64, tile_k), (64, 16))
    queries = 2 if variant == "6_persistent" else 1
    assert launch.shared_bytes == (stages * tile_k + queries * 64 * consumers) * shape[3] * 2 + (stages + queries) * 16
    assert tile_k * 128 % 1024 == 0  # where the swizzle starts anew
    if variant == "6_persistent":
        assert launch.grid[0] <= 132


def test_tensor_maps_read_both_layouts_where_they_lie():
    q, *_, out = launches((2, 3, 200, 128)).arguments[:4]
    assert q == TensorMap("q", "bfloat16", (128, 200, 3, 2), (256, 51200, 153600), (64, 64))
    q, *_, out = launches((2, 3, 200, 128), layout="bshd").arguments[:4]
    assert out == TensorMap("out", "bfloat16", (128, 200, 3, 2), (768, 256, 153600), (64, 16))


def test_a_misaligned_array_is_refused():
    with pytest.raises(Unsupported, match="q starts at 2; TMA takes multiples of 16"):
        launches((1, 1, 64, 64), address=2)


def test_empty_inputs_launch_nothing():
    info = ArrayInfo((1, 1, 0, 64), "float16", row_major((1, 1, 0, 64)), "cuda:0", 0)
    for variant in VARIANTS:
        assert plan(info, info, info, info, causal=True, variant=variant) == ()


@pytest.mark.parametrize("variant", [v.name for v in VARIANTS])
@pytest.mark.parametrize("causal", (True, False))
@pytest.mark.parametrize("head_dim, dtype", ((64, "float16"), (128, "bfloat16")))
def test_kernels_compile_as_promised(variant, causal, head_dim, dtype):
    """ptxas says (C75..) where it makes wgmma wait."""
    pytest.importorskip("cuda.bindings.nvrtc")
    from cupy_impl import nvrtc

    kernel = launches((1, 1, 4096, head_dim), variant, causal, dtype).kernel
    image, log = nvrtc.compile(kernel, "sm_90a", "--ptxas-options=-v")
    assert image and re.findall(r"(\d+) bytes spill", log) == ["0", "0"] and "(C75" not in log, log


# --- the kernels on a CPU, where TMA and wgmma do what PTX ISA says of them


def aligned(shape, dtype):
    """An array of ones in every bit, NaN, that starts at a multiple of 16."""
    size = math.prod(shape) * scalar(dtype).itemsize
    memory = np.full(size + 16, 0xFF, np.uint8)
    start = -memory.ctypes.data % 16
    return memory[start : start + size].view(scalar(dtype)).reshape(shape)


@needs_compiler
@pytest.mark.parametrize(
    "variant, shape, causal, dtype, layout, lse, config",
    [
        ("5_wgmma", (1, 2, 130, 64), True, "bfloat16", "bhsd", True, None),
        ("5_wgmma", (2, 1, 193, 128), False, "float16", "bshd", True, None),
        ("5_wgmma", (1, 1, 1, 64), False, "float16", "bhsd", True, None),
        ("5_wgmma", (1, 1, 129, 128), False, "bfloat16", "bhsd", True, Config(2, 176, 3)),
        ("6_persistent", (1, 1, 1, 128), True, "bfloat16", "bshd", True, None),
        ("6_persistent", (1, 3, 257, 64), True, "float16", "bshd", True, None),
        ("6_persistent", (2, 3, 257, 128), True, "bfloat16", "bhsd", True, None),
        ("6_persistent", (2, 2, 129, 64), False, "bfloat16", "bhsd", False, None),
        ("6_persistent", (1, 2, 320, 128), True, "float16", "bhsd", True, Config(1, 64, 3)),
        ("6_persistent", (1, 3, 449, 64), True, "bfloat16", "bshd", True, Config(3, 64, 5)),
        ("6_persistent", (1, 2, 400, 64), False, "bfloat16", "bhsd", True, Config(2, 192, 3)),
    ],
)  # fmt: skip
def test_attention_on_a_cpu(variant, shape, causal, dtype, layout, lse, config):
    """Several works a block, tiles, rounds of the ring; keys that no query sees are NaN, and one query is."""
    size, rng = dict(zip("bhsd", shape)), np.random.default_rng(0)
    own, sequence, along = tuple(size[axis] for axis in layout), shape[2], layout.index("s")
    arrays = {name: aligned(own, dtype) for name in "qkv"}
    for array in arrays.values():
        array[...] = rng.standard_normal(own)
    at = lambda where: (slice(None),) * along + (where,)
    arrays["q"][at(sequence // 3)] = np.nan
    if causal:
        arrays["k"][at(slice(sequence - sequence // 4, None))] = np.nan
    written = {"out": aligned(own, dtype)} | ({"lse": aligned(shape[:3], "float32")} if lse else {})
    own = {name: host.describe(name, array) for name, array in {**arrays, **written}.items()}
    rung = next(v for v in VARIANTS if v.name == variant)
    call = {"causal": causal, "layout": layout}
    host.launch(plan(**own, **call, variant=rung, multiprocessors=2, config=config), {**arrays, **written}, rung)
    for name, expected in expect(**arrays, **call, return_lse=lse).items():
        judgement = judge(written[name], expected)
        assert judgement.ok, (name, judgement)
