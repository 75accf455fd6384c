"""Runs a plan on a CPU: the same ``cuda/*.cu`` built by a C++ compiler and run thread by thread, on NumPy arrays.

A check of a kernel's logic on machines without a GPU, and no measure of its speed. ``engine.h`` says how threads
wait for each other and what is reported: barriers and masks that some thread does not reach, lanes that a mask does
not name, shared memory accessed out of bounds or (as NaN) before anybody wrote it.
"""

import ctypes
import functools
import itertools
import os
import platform
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Iterator, Mapping

import numpy as np

from cupy_impl.launches import (
    SOURCES,
    Kernel,
    Launch,
    TensorMap,
    cached,
    compile_error,
    describe_strided,
    include_directories,
    sources,
    title,
)
from reference.contract import ArrayInfo, NotRun, Unsupported, Variant, scalar, wrong_type

PLATFORM = "cpu"
HERE = Path(__file__).parent

# [extern] __shared__ [alignas(...)] type name[...]..., name[...]...;
_SHARED = re.compile(r"(extern\s+)?__shared__\s+(?:(?:alignas|__align__)\s*\((\w+)\)\s*)?([^;]+);")
_VARIABLE = re.compile(r"(?P<type>.*[\s>*])?(?P<name>\w+)\s*(?P<lengths>(?:\[[^\]]*\]\s*)*)", re.DOTALL)
_COMMA = re.compile(r",(?![^<(\[]*[>)\]])")  # not within brackets


class KernelFault(RuntimeError):
    """A kernel did what CUDA leaves undefined; says which block and thread, what, and where in the source."""


def describe(name: str, array, written: bool = False) -> ArrayInfo:
    """What the checks need to know of a NumPy array. written: it is an output.

    Raises TypeError for anything else, ValueError for an output that may not be written.
    """
    if not isinstance(array, np.ndarray):
        raise wrong_type(name, array, "numpy.ndarray")
    if written and not array.flags.writeable:
        raise ValueError(f"{name} is read-only; accepted: an array that may be written")
    return describe_strided(name, array, "cpu", array.ctypes.data)


def empty_like(array: np.ndarray) -> np.ndarray:
    """An uninitialised contiguous array of the same shape and dtype."""
    return np.empty(array.shape, array.dtype)


def empty(shape: tuple[int, ...], dtype: str, like: np.ndarray) -> np.ndarray:
    """An uninitialised contiguous array."""
    return np.empty(shape, dtype)


def multiprocessors(array) -> int:
    """As few as make small cases come to several rows of a block."""
    return 3


def arch(array) -> None:
    """No GPU architecture: every variant that builds may run."""
    return None


def unavailable() -> str | None:
    """Why nothing can be built here, or None."""
    if compiler() is None:
        wanted = os.environ.get("CXX")
        return (
            f"no C++ compiler: CXX is {wanted!r}" if wanted else "no C++ compiler: neither g++ nor clang++ is on PATH"
        )
    for header, wheel in (
        ("cuda_fp16.h", "nvidia-cuda-runtime"),
        ("crt/host_config.h", "nvidia-cuda-crt"),
        ("nv/target", "nvidia-cuda-cccl"),
    ):
        if not any((Path(path) / header).is_file() for path in include_directories()):
            return f"no CUDA header {header}: neither the wheel {wheel} nor a toolkit was found"
    return None


@functools.cache
def compiler() -> tuple[str, ...] | None:
    """The C++ compiler's command: ``CXX`` where set, else g++, else clang++; None where there is none."""
    wanted = [shlex.split(os.environ["CXX"])] if os.environ.get("CXX") else [["g++"], ["clang++"]]
    return next((tuple(command) for command in wanted if shutil.which(command[0])), None)


@functools.cache
def _compiler_identity() -> str:
    version = subprocess.run([*compiler(), "--version"], capture_output=True, text=True).stdout
    return f"{' '.join(compiler())} {platform.machine()} {version}"


def inline_ptx(kernel: Kernel) -> str | None:
    """The first of a kernel's source and the headers of ours it includes that has PTX and no body for the CPU."""
    left, seen = [SOURCES / kernel.source], set()
    while left:
        path = left.pop(0)
        text = path.read_text()
        if re.search(r"\basm\b", text):
            return title(path)
        seen.add(path)
        for name in re.findall(r'#include "([^"]+)"', text):
            header = SOURCES / "include" / name
            if header.is_file() and header not in seen and not (HERE / "include" / name).is_file():
                left.append(header)
    return None


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
    "-U_FORTIFY_SOURCE",  # a fortified longjmp, Ubuntu's default, aborts where it lands on another stack
    "-fPIC",
    "-fvisibility=hidden",
    "-shared",
    "-pthread",
)


def options(kernel: Kernel) -> tuple[str, ...]:
    """The compiler's options for a kernel."""
    return (
        *FLAGS,
        f"-DKERNEL={kernel.name}",
        f'-DSOURCE="{Path(kernel.source).name}"',
        *(f"-D{name}={value}" for name, value in kernel.defines),
        *(f"-I{path}" for path in include_directories()),
    )


def _compile(kernel: Kernel, *arguments: str) -> None:
    done = subprocess.run([*compiler(), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise compile_error(kernel, Path(compiler()[0]).name, arguments, done.stderr)


@functools.cache
def _function(kernel: Kernel):
    if reason := unavailable():
        raise NotRun(f"the host build is not possible: {reason}")
    if name := inline_ptx(kernel):
        raise NotRun(f"{name} has inline PTX, which the host build cannot run")
    runtime = [path.read_text() for path in sorted(HERE.rglob("*.*")) if path.suffix in (".h", ".cpp", ".cuh")]
    headers = [f"-I{path}" for path in include_directories()]
    flags = options(kernel)

    def build_engine(library: Path) -> None:
        _compile(kernel, *FLAGS, *headers, str(HERE / "engine.cpp"), "-o", str(library))

    def build(library: Path) -> None:
        rewritten, numbers = library.parent / "rewritten", itertools.count()
        (rewritten / "include").mkdir(parents=True)
        for path in sources(kernel):
            place = rewritten / "include" if path.parent == SOURCES / "include" else rewritten
            if not (HERE / "include" / path.name).is_file():
                (place / path.name).write_text(rewrite(path.read_text(), title(path), numbers))
        # Where a header is written for the CPU, that one is found alone; it is in the place of ours.
        first = (f"-I{HERE / 'include'}", f"-I{rewritten}", f"-I{rewritten / 'include'}")
        unit = ("-x", "c++", str(HERE / "cuda_host.h"), "-x", "none", str(engine))
        _compile(kernel, *first, *flags, *unit, "-o", str(library))

    # A kernel's library needs the engine's by its path. Loaded for the whole process instead, the engine would bring
    # its C++ library before others' own: XLA's CUDA plugin crashes on that.
    engine = cached("engine", ".so", build_engine, _compiler_identity(), *FLAGS, *runtime)
    texts = [path.read_text() for path in sources(kernel)]
    library = cached(kernel.name, ".so", build, _compiler_identity(), str(engine), *flags, *runtime, *texts)
    function = ctypes.CDLL(str(library)).cuda_host_launch
    unsigned = ctypes.POINTER(ctypes.c_uint)
    function.argtypes = (
        unsigned,
        unsigned,
        ctypes.c_uint,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.POINTER(ctypes.c_void_p),
        unsigned,
        ctypes.c_uint,
    )
    function.restype = ctypes.c_char_p
    return function


def _value(argument, arrays: Mapping[str, np.ndarray]):
    """What a launch passes for an argument of a plan; for a tensor map what ``include/tma.cuh`` takes for one."""
    if isinstance(argument, TensorMap):
        missing = 4 - len(argument.dims)
        words = *argument.dims, *[1] * missing, *argument.pitches, *[0] * missing, *argument.box
        address, itemsize = arrays[argument.array].ctypes.data, scalar(argument.dtype).itemsize
        return np.array([address, *words, itemsize, *[0] * 5], np.uint64).view("V128")[0]
    return np.uintp(arrays[argument].ctypes.data) if isinstance(argument, str) else argument


def launch(launches: tuple[Launch, ...], arrays: Mapping[str, np.ndarray], variant: Variant) -> None:
    """Build what is not built yet and run in order; returns when the last thread is done.

    Raises CompileError, KernelFault, NotRun where there is no compiler or the kernel has inline PTX, and Unsupported
    for clusters along another axis than x.
    """
    wanted = [w for item in launches for w in item.workspace]
    arrays = {**arrays, **{w.name: (np.zeros if w.zeroed else np.empty)(w.shape, w.dtype) for w in wanted}}
    for item in launches:
        if item.cluster[1:] != (1, 1):
            raise Unsupported(f"{item.kernel.name} has clusters of {item.cluster} blocks; built here: along x")
        function = _function(item.kernel)
        # As cuLaunchKernel takes them: the address of each argument's value.
        values = [_value(a, arrays) for a in item.arguments]
        cells = [np.array(value) for value in values]
        pointers = (ctypes.c_void_p * len(cells))(*(cell.ctypes.data for cell in cells))
        sizes = (ctypes.c_uint * len(cells))(*(cell.nbytes for cell in cells))
        grid, block = (ctypes.c_uint * 3)(*item.grid), (ctypes.c_uint * 3)(*item.block)
        flags = item.shared_bytes, item.cooperative, item.cluster[0]
        fault = function(grid, block, *flags, pointers, sizes, len(cells))
        if fault:
            raise KernelFault(f"{item.kernel.name}: {fault.decode()}")
