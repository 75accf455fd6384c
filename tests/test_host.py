"""The host build: what CUDA defines comes out right, what it leaves undefined is reported."""

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from cupy_impl import host, nvrtc
from cupy_impl.launches import Kernel, Launch
from reference.contract import NotRun

KERNELS = Path(__file__).parent / "host_kernels"

pytestmark = pytest.mark.skipif(host.unavailable() is not None, reason=str(host.unavailable()))


def run(kernel, grid, block, *arguments, source="features.cu", **extra):
    """Launch a kernel on NumPy arrays and scalars, in the order of its parameters."""
    three = lambda size: (*np.atleast_1d(size).tolist(), 1, 1)[:3]
    names = [f"a{i}" if isinstance(a, np.ndarray) else a for i, a in enumerate(arguments)]
    arrays = {f"a{i}": a for i, a in enumerate(arguments) if isinstance(a, np.ndarray)}
    launch = Launch(Kernel(str(KERNELS / source), kernel), three(grid), three(block), tuple(names), **extra)
    host.launch((launch,), arrays, None)


def draw(*shape, dtype=np.float32):
    return np.random.default_rng(0).standard_normal(shape, np.float32).astype(dtype)


def test_indices():
    out = np.zeros(2 * 3 * 2 * 2 * 3 * 4, np.int32)
    run("indices", (2, 3, 2), (2, 3, 4), out)
    assert out.tolist() == [block * 1000 + thread for block in range(12) for thread in range(24)]


def test_static_shared_memory():
    x, out = draw(7, 256), np.zeros(7, np.float32)
    run("static_shared_sum", 7, 256, x, out)
    assert np.allclose(out, x.sum(1), atol=1e-4)


@pytest.mark.parametrize("threads", (1, 33, 1024))
def test_dynamic_shared_memory(threads):
    x, out = draw(threads), np.zeros(threads, np.float32)
    run("dynamic_shared_reverse", 1, threads, x, out, shared_bytes=4 * threads)
    assert np.array_equal(out, x[::-1])


def test_aligned_and_padded_tiles():
    x, out = draw(8, 8), np.zeros((8, 8), np.float32)
    run("transpose", 1, (8, 8), x, out)
    assert np.array_equal(out, x.T)


def test_warp_collectives():
    x = np.random.default_rng(0).integers(-50, 50, 64).astype(np.int32)
    out = np.zeros((8, 64), np.int32)
    run("warp_collectives", 1, 64, x, out)
    warps = x.reshape(2, 32)
    each = lambda values: np.repeat(values, 32)
    assert np.array_equal(out[0], each(warps.sum(1)))
    assert np.array_equal(out[1], warps.cumsum(1).ravel())
    assert np.array_equal(out[2], np.repeat(x[3::8], 8))
    down = np.r_[x[1:], 0]
    down[15::16] = x[15::16]  # past the end of its 16 lanes: its own
    assert np.array_equal(out[3], down)
    ballots = [int("".join("1" if v > 0 else "0" for v in warp[::-1]), 2) for warp in warps]
    assert np.array_equal(out[4].view(np.uint32), each(np.array(ballots, np.uint32)))
    assert np.array_equal(out[5], np.full(64, 2))
    assert np.array_equal(out[6], each(warps.max(1)))
    assert np.array_equal(out[7].reshape(2, 32)[:, :8], np.repeat(warps[:, :8].sum(1), 8).reshape(2, 8))


def test_counting_barriers():
    x = np.arange(-30, 70, dtype=np.int32)
    out = np.zeros(100, np.int32)
    run("counting_barriers", 1, 100, x, out)
    assert np.array_equal(out, np.full(100, 69 * 100 + 0 + 1))


def test_atomics():
    x = np.random.default_rng(0).integers(0, 1000, 5000).astype(np.int32)
    counts, total, top = np.zeros(9, np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32)
    run("atomics", 40, 128, x, counts, total, top, np.int32(5000))
    assert np.array_equal(counts[:8], np.bincount(x & 7)) and counts[8] == 42
    assert (total[0], top[0]) == (2500, x.max())


def test_vector_types():
    x, out = draw(32, 4), np.zeros(32, np.float32)
    run("vectors", 1, 32, x, out)
    assert np.allclose(out, x.sum(1) + x[:, 3] + 2, atol=1e-5)


def test_sixteen_bit_types():
    a, b, out = draw(32, dtype=np.float16), draw(32, dtype=ml_dtypes.bfloat16), np.zeros((32, 2), np.float32)
    run("sixteen_bits", 1, 32, a, b, out)
    fused = (a.astype(np.float64) ** 2 + 0.25).astype(np.float16)
    assert np.array_equal(out[:, 0], (fused + np.float16(1)).astype(np.float32))
    assert np.array_equal(
        out[:, 1], (b.astype(np.float32) * np.float32(1.001)).astype(ml_dtypes.bfloat16).astype(np.float32)
    )


def test_intrinsics():
    from math import erf

    x, out = np.array([0.3, 1.0, 2.5, 7.0], np.float32), np.zeros((4, 8), np.float32)
    run("intrinsics", 1, 4, x, out)
    v = x.astype(np.float64)
    bits = [bin(int(b)).count("1") for b in x.view(np.uint32)]
    want = [
        np.exp(v), v**-0.5, v / 3, v * v + 1, np.exp2(v) + np.log(v) + np.tanh(v) + np.array([erf(u) for u in v]),
        -v, np.array(bits) + 24 + 4, np.maximum(v, 1) + 3 + np.maximum(v, 2),
    ]  # fmt: skip
    assert np.allclose(out, np.transpose(want), rtol=1e-6)


def test_cooperative_groups():
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    run("groups", 1, 64, x, out)
    tiles = x.reshape(8, 8)
    assert np.array_equal(out, np.repeat(tiles.sum(1) + 1000 * np.arange(8) + 100000 * tiles[:, 7], 8))


def test_grid_sync():
    x, parts, out = np.arange(5 * 32, dtype=np.float32), np.zeros(5, np.float32), np.zeros(5 * 32, np.float32)
    run("grid_sum", 5, 32, x, parts, out, cooperative=True)
    assert np.array_equal(out, np.full(160, x.sum()))


def test_fragments():
    a, b, out = draw(16, 32, dtype=np.float16), draw(16, 32, dtype=np.float16), np.zeros((16, 16), np.float32)
    run("fragments", 1, 32, a, b, out)
    assert np.allclose(out, 2 * (0.5 + a.astype(np.float64) @ b.astype(np.float64).T), atol=1e-4)


def test_async_copies():
    x, out = draw(5, 128), np.zeros(32, np.float32)
    run("async_copies", 1, 32, x, out, np.int32(5))
    assert np.allclose(out, x.sum(0)[127 - 4 * np.arange(32)], atol=1e-5)


@pytest.mark.parametrize("vectors", (64, 50, 32, 5))
def test_bulk_stores(vectors):
    x, out = draw(2, 4 * vectors), np.zeros((2, 4 * vectors), np.float32)
    run("bulk_stores", 1, 64, x, out, np.int32(vectors))
    assert np.array_equal(out, x)


def test_named_barriers():
    x, out = draw(6, 32), np.zeros((6, 32), np.float32)
    run("named_barriers", 1, 64, x, out, np.int32(6))
    assert np.array_equal(out, x[:, ::-1])


FEATURES = [
    "indices", "static_shared_sum", "dynamic_shared_reverse", "transpose", "warp_collectives", "counting_barriers", "atomics", "vectors",
    "sixteen_bits", "intrinsics", "groups", "grid_sum", "fragments", "async_copies", "bulk_stores", "named_barriers", "matmul", "row_softmax",
]  # fmt: skip


def test_the_kernels_are_cuda():
    pytest.importorskip("cuda.bindings.nvrtc")
    source = (KERNELS / "features.cu").read_text()
    assert all(f"void {name}(" in source for name in FEATURES) and source.count("__global__") == len(FEATURES)
    for name in ("features.cu", "undefined.cu"):
        nvrtc.cubin(Kernel(str(KERNELS / name), "any"), "sm_90a")


@pytest.mark.parametrize(
    "source, rewritten",
    [
        ("__shared__ float x;", "auto& x = ::cuda_host::static_shared<float, 0, 1>();"),
        (
            "  __shared__ alignas(128) T tile[2][B * (K + 1)];",
            "  auto& tile = ::cuda_host::static_shared<T[2][B * (K + 1)], 0, 128>();",
        ),
        (
            "__shared__ Vector<float, 4> a[2], b[N];",
            "auto& a = ::cuda_host::static_shared<Vector<float, 4>[2], 0, 1>(); auto& b = ::cuda_host::static_shared<Vector<float, 4>[N], 1, 1>();",
        ),
        (
            "extern __shared__ __align__(16) unsigned char m[];",
            "auto* m = ::cuda_host::dynamic_shared<unsigned char>();",
        ),
        ("int shared = 1;", "int shared = 1;"),
    ],
)
def test_shared_declarations_are_rewritten(source, rewritten):
    assert host.rewrite(source, "a.cu", itertools.count()) == '#line 1 "a.cu"\n' + rewritten


# What CUDA leaves undefined


def line(mark):
    """The line of undefined.cu that has a mark."""
    (number,) = [
        i
        for i, text in enumerate((KERNELS / "undefined.cu").read_text().splitlines(), 1)
        if text.endswith(f"// {mark}")
    ]
    return f"undefined.cu:{number}"


@pytest.mark.parametrize(
    "kernel, report",
    [
        (
            "barrier_not_reached",
            "block (0, 0, 0), thread (0, 0, 0): waits in __syncthreads for threads that do not come; "
            "of its block's 64 threads 32 have returned; 32 at __syncthreads ({barrier_not_reached})",
        ),
        (
            "two_barriers",
            "block (0, 0, 0), thread (32, 0, 0): is at {the second of two_barriers}, "
            "and thread (0, 0, 0) of its block at another barrier, {the first of two_barriers}",
        ),
        (
            "not_in_its_mask",
            "thread (16, 0, 0): __shfl_xor_sync at {not_in_its_mask} by lane 16, which its mask 0x0000ffff does not name",
        ),
        (
            "from_outside_the_mask",
            "lane 0 shuffles from lane 9 at {from_outside_the_mask}, which mask 0x000000ff does not name or which has returned",
        ),
        (
            "lanes_elsewhere",
            "16 at __shfl_sync ({the shuffle of lanes_elsewhere}); 48 at __syncthreads ({the barrier of lanes_elsewhere})",
        ),
        ("past_the_end", "thread (63, 0, 0): a __shared__ variable of 256 bytes is accessed 0 bytes past its end"),
        (
            "before_the_start",
            "thread (0, 0, 0): a __shared__ variable of 4096 bytes is accessed 8 bytes before its start",
        ),
        (
            "dynamic_past_the_end",
            "thread (255, 0, 0): dynamic shared memory of 1024 bytes is accessed 12 bytes past its end",
        ),
        ("named_barrier_short", "waits in a named barrier for threads that do not come"),
        ("grid_sync_alone", "a grid-wide sync at {grid_sync_alone} in a launch that is not cooperative"),
        ("exchange_alone", "waits for another block at {exchange_alone} in a launch that is not cooperative"),
        ("no_end_of_stack", "thread (0, 0, 0): its stack of 256 KiB is used up"),
    ],
)
def test_undefined_behaviour_is_reported(kernel, report):
    import re

    threads = 256 if kernel == "dynamic_past_the_end" else 64
    with pytest.raises(host.KernelFault) as caught:
        run(kernel, 1, threads, np.ones(threads, np.float32), source="undefined.cu", shared_bytes=4 * threads)
    wanted = re.sub(r"\{(.*?)\}", lambda found: line(found[1]), report)
    assert str(caught.value).startswith(f"{kernel}: block (0, 0, 0), thread (") and wanted in str(caught.value)


def test_a_fault_in_one_block_of_many_names_it():
    with pytest.raises(host.KernelFault, match=r"block \(\d+, 0, 0\), thread \(\d+, 0, 0\): "):
        run("barrier_not_reached", 64, 64, np.ones(64, np.float32), source="undefined.cu")
    test_static_shared_memory()  # and the next launch is as good as the first


def test_shared_memory_nobody_wrote_is_nan():
    out = np.zeros(64, np.float32)
    run("nobody_wrote", 1, 64, out, source="undefined.cu")
    assert np.flatnonzero(np.isnan(out)).tolist() == [5]


def test_a_copy_nobody_waited_for_is_not_there():
    x, out = draw(256), np.zeros(64, np.float32)
    run("not_waited_for", 1, 64, x, out, source="undefined.cu")
    assert np.isnan(out).all()


def test_what_is_overwritten_before_it_has_left_shows():
    x, out = draw(64), np.zeros((64, 4), np.float32)
    run("overwritten_too_early", 1, 64, x, out, source="undefined.cu")
    assert (out[:, 0] == -1).all()


def test_a_missing_barrier_shows():
    x, out = draw(64), np.zeros(64, np.float32)
    run("missing_barrier", 1, 64, x, out, source="undefined.cu")
    assert np.isnan(out[:32]).all() and np.array_equal(out[32:], x[31::-1])


def test_inline_ptx_is_named():
    with pytest.raises(NotRun, match="ptx.cu has inline PTX, which the host build cannot run"):
        run("lane", 1, 32, np.zeros(32, np.int32), source="ptx.cu")
    kernel = Kernel(str(KERNELS / "features.cu"), "indices")
    assert host.inline_ptx(kernel) is None  # its headers have bodies for the CPU
    pytest.importorskip("cuda.bindings.nvrtc")
    nvrtc.cubin(Kernel(str(KERNELS / "ptx.cu"), "lane"), "sm_90a")


def test_inline_ptx_in_a_header_of_ours_is_named(tmp_path, monkeypatch):
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "outer.cuh").write_text('#include "inner.cuh"\n')
    (tmp_path / "include" / "inner.cuh").write_text('asm volatile("");\n')
    (tmp_path / "kernel.cu").write_text('#include "outer.cuh"\n')
    monkeypatch.setattr(host, "SOURCES", tmp_path)
    assert host.inline_ptx(Kernel("kernel.cu", "any")) == "inner.cuh"


@pytest.mark.parametrize("arguments", ([], [np.int16(5)], [np.zeros(1, np.int32), np.int32(1)]))
def test_other_parameters_are_refused(arguments):
    with pytest.raises(
        host.KernelFault, match="indices: its parameters are other in number or size than the arguments"
    ):
        run("indices", 1, 1, *arguments)


def test_the_engine_stays_by_itself():
    """Nothing of it, nor the C++ library it brings, is found by libraries that do not ask for it."""
    code = """
import ctypes
import tests.test_host as t

t.test_static_shared_memory()
everybody = ctypes.CDLL(None)
print([name for name in ("_ZN9cuda_host4selfEv", "_ZN9cuda_host10block_sizeEv", "_ZNSt6thread4joinEv") if hasattr(everybody, name)])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=KERNELS.parent.parent, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_fortified_compilers(tmp_path):
    """Some distributions' compilers fortify by default, and a fortified longjmp takes a fiber for an attack."""
    code = "import tests.test_host as t; t.test_static_shared_memory(); t.test_counting_barriers()"
    environment = os.environ | {"CXX": "g++ -D_FORTIFY_SOURCE=2", "ROSETTA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=KERNELS.parent.parent, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr[-500:]


def test_a_crash_elsewhere_is_still_a_crash():
    """The engine takes the bad accesses to memory that it guards, and no others."""
    code = "import tests.test_host as t, numpy as np; t.run('indices', 1, 1, np.uint64(0))"
    done = subprocess.run([sys.executable, "-c", code], cwd=KERNELS.parent.parent, capture_output=True)
    assert done.returncode == -11


# Speed: what a table of small cases can afford


def timed(call):
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_matmul_in_seconds():
    a, b, c = draw(256, 256), draw(256, 256), np.zeros((256, 256), np.float32)
    seconds = timed(lambda: run("matmul", (16, 16), (16, 16), a, b, c, np.int32(256)))
    assert np.allclose(c, a.astype(np.float64) @ b, atol=1e-3)
    assert seconds < 3


def test_softmax_in_a_second():
    x, out = draw(64, 4096), np.zeros((64, 4096), np.float32)
    seconds = timed(lambda: run("row_softmax", 64, 256, x, out, np.int32(4096)))
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    assert np.allclose(out, e / e.sum(1, keepdims=True), rtol=1e-5)
    assert seconds < 1
