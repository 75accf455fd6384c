"""The CUDA sources through NVRTC and through the host build, neither of which needs a GPU."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from cupy_impl import host, launches, nvrtc
from cupy_impl.vector_add import VARIANTS, plan, vector_add
from reference.contract import ArrayInfo, Unsupported, Variant, pick


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROSETTA_CACHE_DIR", str(tmp_path / "kernels"))
    host._function.cache_clear()
    yield tmp_path / "kernels"
    host._function.cache_clear()


needs_nvrtc = pytest.mark.skipif(
    subprocess.run(
        [sys.executable, "-c", "from cuda.bindings import nvrtc; nvrtc.nvrtcVersion()"], capture_output=True
    ).returncode
    != 0,
    reason="NVRTC is not installed",
)
needs_host = pytest.mark.skipif(host.unavailable() is not None, reason=str(host.unavailable()))


def plan_for(n, dtype, aligned=True):
    info = ArrayInfo((n,), dtype, (1,), "cpu", 256 if aligned else 260)
    return plan(info, info, info, variant=VARIANTS["vector_add"][0])


(LAUNCH,) = plan_for(5, "float32")
KERNEL = LAUNCH.kernel
BROKEN = KERNEL._replace(defines=(("SCALAR", "flot"), ("VECTOR", "4"), ("BLOCK", "256")))


@pytest.mark.parametrize(
    "n, dtype, aligned, grid, vector",
    [
        (1, "float32", True, 1, 4),
        (1024, "float32", True, 1, 4),
        (1025, "float32", True, 2, 4),
        (1025, "float32", False, 5, 1),
        (2049, "bfloat16", True, 2, 8),
        ((1 << 31) + 5, "float16", True, (1 << 20) + 1, 8),
    ],
)
def test_plan(n, dtype, aligned, grid, vector):
    (launch,) = plan_for(n, dtype, aligned)
    assert launch.grid == (grid, 1, 1) and dict(launch.kernel.defines)["VECTOR"] == str(vector)
    assert (
        launch.arguments[:3] == ("x", "y", "out") and launch.arguments[3] == n and type(launch.arguments[3]) is np.int64
    )


def test_nothing_is_launched_for_nothing():
    assert plan_for(0, "float32") == ()


@needs_nvrtc
@pytest.mark.parametrize("arch", ("sm_80", "sm_89", "sm_90a", "sm_100"))
@pytest.mark.parametrize("dtype", ("float32", "float16", "bfloat16"))
def test_compiles(dtype, arch, cache):
    image = nvrtc.cubin(plan_for(5, dtype)[0].kernel, arch)
    assert image.read_bytes()[:4] == b"\x7fELF" and list(cache.iterdir()) == [image]


@pytest.mark.parametrize("build", ("nvrtc", "host"))
def test_wheels_are_enough(build, cache, monkeypatch):
    """No toolkit is needed where the wheels are."""
    monkeypatch.setattr(launches, "TOOLKITS", ())
    if host.unavailable():
        pytest.skip("the wheels with CUDA's headers are not installed, or there is no C++ compiler")
    half = plan_for(5, "float16")[0].kernel
    if build == "nvrtc":
        pytest.importorskip("cuda.bindings.nvrtc")
        nvrtc.cubin(half, "sm_90")
    else:
        host._function(half)


@needs_nvrtc
def test_subnormal_numbers_are_kept():
    assert not any("ftz" in option or "fast" in option for option in nvrtc.options(KERNEL, "sm_90"))


@needs_nvrtc
def test_a_second_process_compiles_nothing(cache):
    image = nvrtc.cubin(KERNEL, "sm_90")
    made = image.stat().st_mtime_ns
    code = f"from cupy_impl import nvrtc; from cupy_impl.launches import Kernel; print(nvrtc.cubin({KERNEL}, 'sm_90'))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=launches.SOURCES.parent
    )
    assert done.stdout.strip() == str(image) and image.stat().st_mtime_ns == made


@needs_nvrtc
def test_a_changed_header_is_compiled_anew(cache, tmp_path, monkeypatch):
    import shutil

    copy = tmp_path / "cuda"
    shutil.copytree(launches.SOURCES, copy)
    for module in (launches, nvrtc):
        monkeypatch.setattr(module, "SOURCES", copy)
    first = nvrtc.cubin(KERNEL, "sm_90")
    header = copy / "include" / "vector.cuh"
    header.write_text(header.read_text() + "\n// changed\n")
    assert nvrtc.cubin(KERNEL, "sm_90") != first


@needs_nvrtc
def test_nvrtc_errors_show_line_options_and_directories(cache):
    with pytest.raises(launches.CompileError) as caught:
        nvrtc.cubin(BROKEN, "sm_90")
    text = str(caught.value)
    line = next(
        i for i, l in enumerate((launches.SOURCES / "vector_add.cu").read_text().splitlines(), 1) if "SCALAR add(" in l
    )
    assert f'cuda/vector_add.cu({line}): error: identifier "flot" is undefined' in text
    assert "__device__ inline SCALAR add(SCALAR x, SCALAR y)" in text
    assert "options: -std=c++17 -arch=sm_90 -DSCALAR=flot" in text
    assert f"include directory: {launches.SOURCES / 'include'}" in text
    assert not list(cache.iterdir())


@needs_host
def test_host_errors_show_line_and_options(cache):
    with pytest.raises(launches.CompileError) as caught:
        host._function(BROKEN)
    assert "SCALAR add(SCALAR x, SCALAR y)" in str(caught.value) and "-DSCALAR=flot" in str(caught.value)
    assert not list(cache.glob("vector_add*"))


@needs_host
def test_host_build_is_kept(cache):
    x = np.ones(5, np.float32)
    assert vector_add(x, x, runtime=host).tolist() == [2] * 5
    built = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert sorted(path.name.partition("-")[0] for path in built) == ["engine", "vector_add"]
    host._function.cache_clear()
    vector_add(x, x, runtime=host)
    assert built == {path: path.stat().st_mtime_ns for path in cache.iterdir()}


@needs_host
def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROSETTA_CACHE_DIR", str(tmp_path / "file"))
    host._function.cache_clear()
    assert vector_add(np.ones(2, "f4"), np.ones(2, "f4"), runtime=host).tolist() == [2, 2]
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@needs_host
@pytest.mark.parametrize("command, available", [("g++ -O1", True), ("", True), ("no-such-compiler", False)])
def test_the_compiler_of_the_environment(command, available, monkeypatch):
    monkeypatch.setenv("CXX", command)
    host.compiler.cache_clear()
    try:
        assert host.unavailable() == (None if available else "no C++ compiler: CXX is 'no-such-compiler'")
    finally:
        host.compiler.cache_clear()


def test_no_compiler(monkeypatch, cache):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    host.compiler.cache_clear()
    try:
        x = np.ones(5, np.float32)
        with pytest.raises(
            Unsupported, match="the host build is not possible: no C\\+\\+ compiler: neither g\\+\\+ nor clang"
        ):
            vector_add(x, x, runtime=host)
    finally:
        host.compiler.cache_clear()


@pytest.mark.parametrize("value", (5, 0.5, np.array([1.0])))
def test_numbers_without_a_width_are_refused(value):
    """A Python number, or an array where a scalar belongs, would reach the kernel as something else."""
    accepted = "an array's name, a NumPy scalar or a TensorMap"
    with pytest.raises(TypeError, match=f"an argument of vector_add is .*; accepted: {accepted}"):
        dataclasses.replace(LAUNCH, arguments=("x", value))


def test_clusters_along_other_axes_are_not_built():
    launch = dataclasses.replace(LAUNCH, cluster=(1, 2, 1))
    with pytest.raises(Unsupported, match=r"vector_add has clusters of \(1, 2, 1\) blocks; built here: along x"):
        host.launch((launch,), {}, VARIANTS["vector_add"][0])


@needs_host
@pytest.mark.parametrize(
    "x, out, error, message",
    [
        (np.ones(3, ">f4"), None, TypeError, "x has dtype >f4; accepted: this machine's byte order"),
        (
            np.zeros(3, [("v", "f4"), ("flag", "u1")])["v"],
            None,
            ValueError,
            r"x has strides of \(5,\) bytes; accepted: multiples of its 4-byte elements",
        ),
        (
            np.ones(3, "f4"),
            np.broadcast_to(np.float32(0), 3),
            ValueError,
            "out is read-only; accepted: an array that may be written",
        ),
    ],
)
def test_arrays_no_pointer_describes(x, out, error, message):
    with pytest.raises(error, match=message):
        vector_add(x, np.ones(3, "f4"), out=out, runtime=host)


def test_variants_are_picked_by_name_dtype_and_architecture():
    portable = Variant("portable", "", ("float32", "float16"), ("sm_80",))
    hopper = Variant("hopper", "", ("float16",), ("sm_90a",))
    ladder = (portable, hopper)
    assert pick(ladder, None, "float16", "sm_90") is hopper
    assert pick(ladder, None, "float16", "sm_100") is portable
    assert pick(ladder, None, "float32", "sm_90") is portable
    assert pick(ladder, None, "float16", None) is hopper
    assert pick(ladder, "portable", "float16", "sm_90") is portable
    assert (hopper.target("sm_90"), portable.target("sm_90")) == ("sm_90a", "sm_90")
    for arguments, error, message in (
        (("fast", "float16", "sm_90"), ValueError, "variant is 'fast'; accepted: portable or hopper"),
        (("hopper", "float16", "sm_80"), Unsupported, "the device is sm_80; built here: sm_90a"),
        ((None, "float16", "sm_75"), Unsupported, "the device is sm_75; built here: sm_90a or sm_80"),
        (("hopper", "float32", "sm_90"), Unsupported, "dtype is float32; built here: float16"),
        ((None, "bfloat16", "sm_90"), Unsupported, "dtype is bfloat16; built here: float16 or float32"),
    ):
        with pytest.raises(error) as caught:
            pick(ladder, *arguments)
        assert str(caught.value) == message


def test_every_variant_says_what_it_is():
    for variants in VARIANTS.values():
        for variant in variants:
            assert (launches.SOURCES / f"{variant.name}.cu").exists() and variant.summary and variant.archs
