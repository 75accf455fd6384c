"""Runs a plan on a CPU: the same ``cuda/*.cu`` built by a C++ compiler and run thread by thread, on NumPy arrays.

A check of a kernel's logic on machines without a GPU, and no measure of its speed. ``engine.h`` says how threads
wait for each other and what is reported: barriers and masks that some thread does not reach, lanes that a mask does
not name, shared memory accessed out of bounds or (as NaN) before anybody wrote it.
"""

import ctypes
import functools
import itertools
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Iterator, Mapping

import numpy as np

from cupy_impl.launches import SOURCES, Launch, cached, compile_error, include_directories, sources, title
from reference.contract import ArrayInfo, Unsupported, Variant, wrong_type

PLATFORM = "cpu"
HERE = Path(__file__).parent

# [extern] __shared__ [alignas(...)] type name[...]..., name[...]...;
_SHARED = re.compile(r"(extern\s+)?__shared__\s+(?:(?:alignas|__align__)\s*\((\w+)\)\s*)?([^;]+);")
_VARIABLE = re.compile(r"(?P<type>.*[\s>*])?(?P<name>\w+)\s*(?P<lengths>(?:\[[^\]]*\]\s*)*)", re.DOTALL)
_COMMA = re.compile(r",(?![^<(\[]*[>)\]])")  # not within brackets


class KernelFault(RuntimeError):
    """A kernel did what CUDA leaves undefined; says which block and thread, what, and where in the source."""


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
    for header, wheel in (("cuda_fp16.h", "nvidia-cuda-runtime"), ("nv/target", "nvidia-cuda-cccl")):
        if not any((Path(path) / header).is_file() for path in include_directories()):
            return f"no CUDA header {header}: neither the wheel {wheel} nor a toolkit was found"
    return None


@functools.cache
def compiler() -> str | None:
    """The C++ compiler used: ``CXX`` where set, else g++, else clang++."""
    return shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")


def rewrite(text: str, name: str, numbers: Iterator[int]) -> str:
    """A source with its ``__shared__`` declarations as references to memory that the engine guards and poisons."""

    def declaration(found: re.Match) -> str:
        extern, alignment, variables = found.groups()
        kind, lines = None, []
        for variable in _COMMA.split(variables):
            parts = _VARIABLE.fullmatch(variable.strip())
            kind = kind or parts["type"].strip()
            if extern:
                lines.append(f"auto* {parts['name']} = ::cuda_host::dynamic_shared<{kind}>();")
            else:
                what = f"{kind}{parts['lengths'].strip()}, {next(numbers)}, {alignment or 1}"
                lines.append(f"auto& {parts['name']} = ::cuda_host::static_shared<{what}>();")
        return " ".join(lines)

    return f'#line 1 "{name}"\n' + _SHARED.sub(declaration, text)


FLAGS = (
    "-std=c++17",
    "-O2",
    "-ffp-contract=off",  # a*b + c is two roundings unless the kernel says fma
    "-fPIC",
    "-shared",
    "-pthread",
)


def options(launch: Launch) -> tuple[str, ...]:
    """The compiler's options for a launch."""
    return (
        *FLAGS,
        "-fvisibility=hidden",
        f"-DKERNEL={launch.kernel}",
        f'-DSOURCE="{Path(launch.source).name}"',
        *(f"-D{name}={value}" for name, value in launch.defines),
        *(f"-I{path}" for path in include_directories()),
    )


def _compile(launch: Launch, *command: str) -> None:
    done = subprocess.run([compiler(), *command], capture_output=True, text=True)
    if done.returncode:
        raise compile_error(launch, Path(compiler()).name, command, done.stderr)


@functools.cache
def _function(source: str, kernel: str, defines: tuple):
    if reason := unavailable():
        raise Unsupported(f"the host build is not possible: {reason}")
    launch = Launch(source, kernel, defines, (1, 1, 1), (1, 1, 1), ())
    runtime = [path.read_text() for path in sorted(HERE.rglob("*.*")) if path.suffix in (".h", ".cpp", ".cuh")]
    headers = [f"-I{path}" for path in include_directories()]
    flags = options(launch)

    def build_engine(library: Path) -> None:
        _compile(launch, *FLAGS, *headers, str(HERE / "engine.cpp"), "-o", str(library))

    def build(library: Path) -> None:
        rewritten, numbers = library.parent / "rewritten", itertools.count()
        (rewritten / "include").mkdir(parents=True)
        for path in sources(launch):
            place = rewritten / "include" if path.parent == SOURCES / "include" else rewritten
            (place / path.name).write_text(rewrite(path.read_text(), title(path), numbers))
        # Headers written for the CPU come first, then the rewritten ones.
        first = (f"-I{HERE / 'include'}", f"-I{rewritten}", f"-I{rewritten / 'include'}")
        _compile(launch, *first, *flags, "-x", "c++", str(HERE / "cuda_host.h"), "-o", str(library))

    # Kernels find the engine's functions among the process's.
    ctypes.CDLL(str(cached("engine", ".so", build_engine, compiler(), *FLAGS, *runtime)), mode=ctypes.RTLD_GLOBAL)
    texts = [path.read_text() for path in sources(launch)]
    function = ctypes.CDLL(str(cached(kernel, ".so", build, compiler(), *flags, *runtime, *texts))).cuda_host_launch
    unsigned = ctypes.POINTER(ctypes.c_uint)
    function.argtypes = (unsigned, unsigned, ctypes.c_uint, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint)
    function.restype = ctypes.c_char_p
    return function


def launch(launches: tuple[Launch, ...], arrays: Mapping[str, np.ndarray], variant: Variant) -> None:
    """Build what is not built yet and run in order; returns when the last thread is done.

    Raises KernelFault.
    """
    for item in launches:
        function = _function(item.source, item.kernel, item.defines)
        # As cuLaunchKernel takes them: the address of each argument's value.
        values = [np.uintp(arrays[a].ctypes.data) if isinstance(a, str) else a for a in item.arguments]
        cells = [np.array(value) for value in values]
        pointers = (ctypes.c_void_p * len(cells))(*(cell.ctypes.data for cell in cells))
        grid, block = (ctypes.c_uint * 3)(*item.grid), (ctypes.c_uint * 3)(*item.block)
        fault = function(grid, block, item.shared_bytes, item.cooperative, pointers, len(cells))
        if fault:
            raise KernelFault(f"{item.kernel}: {fault.decode()}")
