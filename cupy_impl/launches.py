"""What a call launches, said once for the GPU loader, the host build and the compile report."""

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

SOURCES = Path(__file__).resolve().parent.parent / "cuda"

# The C++ type of a dtype, for the defines of a launch.
CXX_TYPES = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}


@dataclass(frozen=True)
class Launch:
    """One kernel launch of a plan.

    source: a file under ``cuda/``. kernel: the function in it, ``extern "C"``. defines: (name, value) pairs.
    grid, block, cluster: lengths along x, y, z. arguments: in the kernel's order, an array by its name in the
    call (a str) or a NumPy scalar of the parameter's exact type. shared_bytes: dynamic shared memory.
    cooperative: the grid may synchronise.
    """

    source: str
    kernel: str
    defines: tuple[tuple[str, str], ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple
    shared_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False


def cache_directory() -> Path:
    """Where compiled kernels are kept: ``ROSETTA_CACHE_DIR``, by default ``~/.cache/rosetta-kernels``."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rosetta-kernels"
    return Path(os.environ.get("ROSETTA_CACHE_DIR") or default)


def cached(stem: str, suffix: str, build: Callable[[Path], None], *key: str) -> Path:
    """The file that ``build`` writes, from the cache where one of the same stem, suffix and key is there."""
    kept = cache_directory() / f"{stem}-{hashlib.sha256(chr(0).join(key).encode()).hexdigest()[:24]}{suffix}"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
            built = Path(scratch) / kept.name
            build(built)
            built.replace(kept)  # whole or not at all, also when two processes build it
    return kept


def sources(launch: Launch) -> list[Path]:
    """A launch's source, and our headers, which it may include."""
    return [SOURCES / launch.source, *sorted((SOURCES / "include").iterdir())]


class CompileError(RuntimeError):
    """A compiler refused a source: its words, which show the source lines, the options and the include directories."""


TOOLKITS = ("CUDA_HOME", "CUDA_PATH", "/usr/local/cuda")  # environment variables and a directory


def include_directories() -> tuple[str, ...]:
    """Where compilers find our headers and CUDA's: those of the wheels, then a toolkit's for what wheels lack."""
    found = [SOURCES / "include"]
    try:
        from cuda import pathfinder
    except ImportError:
        pass
    else:
        found += [Path(p) for p in map(pathfinder.find_nvidia_header_directory, ("cudart", "cccl")) if p]
    for toolkit in TOOLKITS:
        include = Path(os.environ.get(toolkit, toolkit)) / "include"
        found += [path for path in (include, include / "cccl") if path.is_dir()]
    return tuple(str(path) for path in dict.fromkeys(found))


def title(path: Path) -> str:
    """A source's name for people: ``cuda/vector_add.cu``."""
    return f"cuda/{path.relative_to(SOURCES)}" if path.is_relative_to(SOURCES) else path.name


def compile_error(launch: Launch, compiler: str, options: tuple[str, ...], log: str) -> CompileError:
    """The error for what a compiler said of a launch's source."""
    lines = [f"{title(SOURCES / launch.source)}: {compiler} could not compile it", log.strip()]
    lines.append("options: " + " ".join(o for o in options if not o.startswith("-I")))
    lines += [f"include directory: {o[2:]}" for o in options if o.startswith("-I")]
    return CompileError("\n".join(lines))
