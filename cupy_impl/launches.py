"""What a call launches, said once for the GPU loader, the host build and the compile report."""

import functools
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

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


class CompileError(RuntimeError):
    """A compiler refused a source: its words, the source lines, the options and the include directories."""


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


@functools.cache
def headers_sha256() -> str:
    """Of all our headers: compilers' caches know a source's text and not what it includes."""
    digest = hashlib.sha256()
    for path in sorted((SOURCES / "include").iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def compile_error(launch: Launch, compiler: str, options: tuple[str, ...], log: str) -> CompileError:
    """A compiler's log as an error that shows the source lines it speaks of, the options and the directories."""
    message = [f"cuda/{launch.source}: {compiler} could not compile it"]
    for line in log.strip().splitlines():
        message.append(line)
        # NVRTC writes file(line): error, g++ file:line:column: error
        found = re.match(r"(.+?)[(:](\d+)(?:\)|:\d+): (?:fatal |catastrophic )?error", line)
        path = SOURCES.parent / found[1] if found else None
        if path and path.is_file():
            message.append(f"  {found[2]} | {path.read_text().splitlines()[int(found[2]) - 1]}")
    message.append("options: " + " ".join(o for o in options if not o.startswith("-I")))
    message += [f"include directory: {o[2:]}" for o in options if o.startswith("-I")]
    return CompileError("\n".join(message))
