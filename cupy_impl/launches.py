"""What a call launches, said once for the GPU loader, the host build and the compile report."""

import functools
import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, NamedTuple

import numpy as np

from reference.contract import ArrayInfo, scalar

SOURCES = Path(__file__).resolve().parent.parent / "cuda"

NULL = np.uint64(0)  # among a launch's arguments, in the place of an array that is not there

# The C++ type of a dtype, for the defines of a kernel.
CXX_TYPES = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}


class Kernel(NamedTuple):
    """What is compiled. source: a file under ``cuda/``. name: the function in it, ``extern "C"``. defines: pairs."""

    source: str
    name: str
    defines: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        return title(SOURCES / self.source)


class Workspace(NamedTuple):
    """An array that the launches of a plan share with nobody else; zeroed: before the first, else uninitialised."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    zeroed: bool = False


@dataclass(frozen=True)
class TensorMap:
    """An array of which TMA copies boxes, for a ``const __grid_constant__ TensorMap`` parameter of ``tma.cuh``.

    array: its name in the call. dims: its lengths, two or four, along the axis of neighbours first. pitches: bytes from
    one to the next along each of the other axes. box: rows of what is copied at once, 128 bytes of each: they lie swizzled
    in shared memory; of a third and fourth axis it takes one.
    Raises ValueError for what cuTensorMapEncodeTiled would refuse without a reason.
    """

    array: str
    dtype: str
    dims: tuple[int, ...]
    pitches: tuple[int, ...]
    box: tuple[int, int]

    def __post_init__(self):
        width = self.box[0] * scalar(self.dtype).itemsize
        if width != 128 or not 1 <= self.box[1] <= 256:
            raise ValueError(f"a box of {self.array} is {self.box}; accepted: 128 bytes by up to 256 rows")
        if len(self.dims) not in (2, 4) or len(self.pitches) != len(self.dims) - 1:
            raise ValueError(
                f"{self.array} has {self.dims} elements; accepted: two or four axes, a pitch for all but one"
            )
        pitches = any(pitch % 16 or not 0 < pitch < 1 << 40 for pitch in self.pitches)
        if pitches or min(self.dims) < 1 or max(self.dims) > 1 << 32:
            raise ValueError(
                f"{self.array} has {self.dims} elements, {self.pitches} bytes apart; accepted: 1 or more, multiples of 16"
            )


@dataclass(frozen=True)
class Launch:
    """One kernel launch of a plan.

    grid, block, cluster: lengths along x, y, z. arguments: in the kernel's order, an array by its name in the
    call (a str), a TensorMap of one, or a NumPy scalar of the parameter's exact type. shared_bytes: dynamic shared memory.
    cooperative: all blocks are resident, and the grid may synchronise. workspace: arrays that are made for this launch and
    those after it.
    Raises TypeError for a number whose width the kernel would have to guess.
    """

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple
    shared_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False
    workspace: tuple[Workspace, ...] = ()

    def __post_init__(self):
        for value in self.arguments:
            if not isinstance(value, (str, TensorMap, np.generic)):
                kind = type(value).__name__
                raise TypeError(
                    f"an argument of {self.kernel.name} is {value!r}, a {kind}; accepted: an array's name, a NumPy scalar or "
                    "a TensorMap"
                )


def describe_strided(name: str, array, device: str, address: int) -> ArrayInfo:
    """An ArrayInfo of an array with NumPy's attributes.

    Raises TypeError for numbers in foreign byte order, ValueError for strides between elements.
    """
    dtype = _dtype_name(array.dtype)
    if dtype is None:
        raise TypeError(f"{name} has dtype {array.dtype.str}; accepted: this machine's byte order")
    strides = _in_elements(array.strides, array.itemsize)
    if strides is None:
        raise ValueError(
            f"{name} has strides of {array.strides} bytes; accepted: multiples of its {array.itemsize}-byte elements"
        )
    return ArrayInfo(array.shape, dtype, strides, device, address)


# NumPy takes microseconds for a dtype's name.
@functools.cache
def _dtype_name(dtype: np.dtype) -> str | None:
    return dtype.name if dtype.isnative else None


@functools.lru_cache(1024)
def _in_elements(strides: tuple[int, ...], itemsize: int) -> tuple[int, ...] | None:
    return None if any(s % itemsize for s in strides) else tuple(s // itemsize for s in strides)


def cache_directory() -> Path:
    """Where compiled kernels are kept: ``ROSETTA_CACHE_DIR``, by default ``~/.cache/rosetta-kernels``.

    Where that cannot be written, a directory of this process's own.
    """
    wanted = os.environ.get("ROSETTA_CACHE_DIR")
    if not wanted:
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        wanted = os.path.join(caches, "rosetta-kernels")
    try:
        os.makedirs(wanted, exist_ok=True)
        tempfile.TemporaryFile(dir=wanted).close()
        return Path(wanted)
    except OSError:
        return Path(_scratch().name)


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="rosetta-kernels-")


def cached(stem: str, suffix: str, build: Callable[[Path], None], *key: str) -> Path:
    """The file that ``build`` writes, from the cache where one of the same stem, suffix and key is there."""
    kept = cache_directory() / f"{stem}-{hashlib.sha256(chr(0).join(key).encode()).hexdigest()[:24]}{suffix}"
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
            built = Path(scratch) / kept.name
            build(built)
            built.replace(kept)  # whole or not at all, also when two processes build it
    return kept


def sources(kernel: Kernel) -> list[Path]:
    """A kernel's source, and our headers, which it may include."""
    return [SOURCES / kernel.source, *sorted((SOURCES / "include").iterdir())]


def title(path: Path) -> str:
    """A source's name for people: ``cuda/vector_add.cu``."""
    return f"cuda/{path.relative_to(SOURCES)}" if path.is_relative_to(SOURCES) else path.name


class CompileError(RuntimeError):
    """A compiler refused a source: its words, which show the source lines, the options and the include directories."""


TOOLKITS = ("CUDA_HOME", "CUDA_PATH", "/usr/local/cuda")  # environment variables and a directory


@functools.cache
def _include_directories(sources: Path, toolkits: tuple[str, ...]) -> tuple[str, ...]:
    found = [sources / "include"]
    try:
        from cuda import pathfinder
    except ImportError:
        pass
    else:
        found += [Path(p) for p in map(pathfinder.find_nvidia_header_directory, ("cudart", "cccl")) if p]
    for toolkit in toolkits:
        include = Path(os.environ.get(toolkit, toolkit)) / "include"
        found += [path for path in (include, include / "cccl") if path.is_dir()]
    return tuple(str(path) for path in dict.fromkeys(found))


def include_directories() -> tuple[str, ...]:
    """Where compilers find our headers and CUDA's: those of the wheels, then a toolkit's for what wheels lack."""
    return _include_directories(SOURCES, TOOLKITS)


def compile_error(kernel: Kernel, compiler: str, options: tuple[str, ...], log: str) -> CompileError:
    """The error for what a compiler said of a kernel's source."""
    lines = [f"{kernel.title}: {compiler} could not compile it", log.strip()]
    lines.append("options: " + " ".join(o for o in options if not o.startswith("-I")))
    lines += [f"include directory: {o[2:]}" for o in options if o.startswith("-I")]
    return CompileError("\n".join(lines))
