"""Runs a plan on a CPU: the same ``cuda/*.cu`` built by g++ and run block by block, thread by thread.

A check of a kernel's logic on machines without a GPU, on NumPy arrays, and no measure of its speed. The
threads of a block run one after another, so a kernel whose threads talk to each other does not build yet.
"""

import ctypes
import functools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Mapping

import numpy as np

from cupy_impl.launches import SOURCES, Launch, cached, compile_error, include_directories
from reference.contract import ArrayInfo, Unsupported, Variant, wrong_type

PLATFORM = "cpu"
RUNTIME = Path(__file__).with_name("cuda_host.h")


def describe(name: str, array) -> ArrayInfo:
    """What the checks need to know of a NumPy array; TypeError for anything else."""
    if not isinstance(array, np.ndarray):
        raise wrong_type(name, array, "numpy.ndarray")
    size = array.dtype.itemsize
    strides = tuple(stride // size for stride in array.strides)
    return ArrayInfo(array.shape, array.dtype.name, strides, "cpu", array.ctypes.data)


def empty_like(array: np.ndarray) -> np.ndarray:
    """An uninitialised contiguous array of the same shape and dtype."""
    return np.empty(array.shape, array.dtype)


def arch(array) -> None:
    """No GPU architecture: every variant that builds may run."""
    return None


def unavailable() -> str | None:
    """Why nothing can be built here, or None."""
    if compiler() is None:
        return "no C++ compiler: neither g++ nor clang++ is on PATH"
    if not any((Path(path) / "cuda_fp16.h").is_file() for path in include_directories()):
        return "no CUDA headers: neither the wheel nvidia-cuda-runtime nor a toolkit was found"
    return None


@functools.cache
def compiler() -> str | None:
    """The C++ compiler used: ``CXX`` where set, else g++, else clang++."""
    return shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")


def options(launch: Launch) -> tuple[str, ...]:
    """The compiler's options for a launch."""
    return (
        "-std=c++17",
        "-O2",
        "-ffp-contract=off",  # a*b + c is two roundings unless the kernel says fma
        "-fPIC",
        "-shared",
        f"-DKERNEL={launch.kernel}",
        f'-DSOURCE="{SOURCES / launch.source}"',
        *(f"-D{name}={value}" for name, value in launch.defines),
        *(f"-I{path}" for path in include_directories()),
    )


@functools.cache
def _function(source: str, kernel: str, defines: tuple):
    launch = Launch(source, kernel, defines, (1, 1, 1), (1, 1, 1), ())
    if reason := unavailable():
        raise Unsupported(f"the host build is not possible: {reason}")
    flags = options(launch)

    def build(library: Path) -> None:
        command = [compiler(), *flags, "-x", "c++", str(RUNTIME), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise compile_error(launch, Path(compiler()).name, flags, done.stderr)

    library = cached(launch, ".so", build, compiler(), *flags, RUNTIME.read_text())
    function = ctypes.CDLL(str(library)).cuda_host_launch
    function.argtypes = (ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.c_void_p))
    function.restype = None
    return function


def launch(launches: tuple[Launch, ...], arrays: Mapping[str, np.ndarray], variant: Variant) -> None:
    """Build what is not built yet and run in order; returns when the last thread is done."""
    for item in launches:
        function = _function(item.source, item.kernel, item.defines)
        # As cuLaunchKernel takes them: the address of each argument's value.
        values = [np.uintp(arrays[a].ctypes.data) if isinstance(a, str) else a for a in item.arguments]
        cells = [np.array(value) for value in values]
        pointers = (ctypes.c_void_p * len(cells))(*(cell.ctypes.data for cell in cells))
        function((ctypes.c_uint * 3)(*item.grid), (ctypes.c_uint * 3)(*item.block), pointers)
