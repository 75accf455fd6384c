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


def cached(launch: Launch, suffix: str, build: Callable[[Path], None], *key: str) -> Path:
    """The file that ``build`` writes for a launch, from the cache where its source, our headers and ``key`` are the same."""
    digest = hashlib.sha256()
    for path in (SOURCES / launch.source, *sorted((SOURCES / "include").iterdir())):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update("\0".join(key).encode())
    kept = cache_directory() / f"{Path(launch.source).stem}-{digest.hexdigest()[:24]}{suffix}"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
            built = Path(scratch) / kept.name
            build(built)
            built.replace(kept)  # whole or not at all, also when two processes build it
    return kept


class CompileError(RuntimeError):
    """A compiler refused a source: its words, which show the source lines, the options and the include directories."""


def include_directories() -> tuple[str, ...]:
    """Where compilers find our headers and CUDA's: those of the wheels, then a toolkit's for what wheels lack."""
    found = [SOURCES / "include"]
    try:
        from cuda import pathfinder
    except ImportError:
        pass
    else:
        wheel = pathfinder.find_nvidia_header_directory("cudart")
        found += [Path(wheel)] if wheel else []
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if root and (Path(root) / "include").is_dir():
            found.append(Path(root) / "include")
    return tuple(str(path) for path in dict.fromkeys(found))


def compile_error(launch: Launch, compiler: str, options: tuple[str, ...], log: str) -> CompileError:
    """The error for what a compiler said of a launch's source."""
    lines = [f"cuda/{launch.source}: {compiler} could not compile it", log.strip()]
    lines.append("options: " + " ".join(o for o in options if not o.startswith("-I")))
    lines += [f"include directory: {o[2:]}" for o in options if o.startswith("-I")]
    return CompileError("\n".join(lines))
