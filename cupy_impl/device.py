"""Runs a plan on a GPU: compiles ``cuda/*.cu`` through CuPy's RawModule and launches on the current stream.

NVRTC compiles for the device's own architecture. CuPy keeps the cubins on disk (in ``CUPY_CACHE_DIR``, by
default ``~/.cupy/kernel_cache``), so a second process compiles nothing.
"""

import functools
from typing import Mapping

import numpy as np

from cupy_impl.launches import SOURCES, Launch, compile_error, headers_sha256, include_directories
from reference.contract import ArrayInfo, Variant, wrong_type

PLATFORM = "cuda"


def describe(name: str, array) -> ArrayInfo:
    """What the checks need to know of a CuPy array; TypeError for anything else."""
    import cupy

    if not isinstance(array, cupy.ndarray):
        raise wrong_type(name, array, "cupy.ndarray")
    size = array.dtype.itemsize
    strides = tuple(stride // size for stride in array.strides)
    return ArrayInfo(array.shape, array.dtype.name, strides, f"cuda:{array.device.id}", array.data.ptr)


def empty_like(array):
    """An uninitialised contiguous array of the same shape and dtype on the same device."""
    import cupy

    with array.device:
        return cupy.empty(array.shape, array.dtype)


def arch(array) -> str:
    """The architecture of the array's device: ``"sm_90"``."""
    return f"sm_{array.device.compute_capability}"


def options(launch: Launch, target: str) -> tuple[str, ...]:
    """NVRTC's options for a launch on the architecture ``target``."""
    return (
        "-std=c++17",
        f"-arch={target}",
        *(f"-D{name}={value}" for name, value in launch.defines),
        f"-DHEADERS_SHA256={headers_sha256()}",  # CuPy's cache looks at the options and not into the headers
        *(f"-I{path}" for path in include_directories()),
    )


def code(launch: Launch) -> str:
    """The source, told its own name so that errors speak of the file."""
    return f'#line 1 "cuda/{launch.source}"\n' + (SOURCES / launch.source).read_text()


@functools.cache
def _function(source: str, kernel: str, defines: tuple, cooperative: bool, shared_bytes: int, target: str):
    import cupy

    launch = Launch(source, kernel, defines, (1, 1, 1), (1, 1, 1), (), shared_bytes, cooperative=cooperative)
    flags = options(launch, target)
    module = cupy.RawModule(code=code(launch), options=flags, backend="nvrtc", enable_cooperative_groups=cooperative)
    try:
        function = module.get_function(kernel)
        if shared_bytes >= 48 * 1024:  # more than every kernel has without asking
            function.max_dynamic_shared_size_bytes = shared_bytes
    except cupy.cuda.compiler.CompileException as error:
        raise compile_error(launch, "NVRTC", flags, error.get_message()) from None
    return function


def launch(launches: tuple[Launch, ...], arrays: Mapping[str, object], variant: Variant) -> None:
    """Compile what is not compiled yet and launch in order, on CuPy's current stream of the arrays' device."""
    import cupy

    where = next(iter(arrays.values())).device
    with where:
        target = variant.target(f"sm_{where.compute_capability}")
        for item in launches:
            function = _function(item.source, item.kernel, item.defines, item.cooperative, item.shared_bytes, target)
            function(item.grid, item.block, arguments(item, arrays), shared_mem=item.shared_bytes)


def arguments(launch: Launch, arrays: Mapping[str, object]) -> tuple:
    """The kernel's arguments; TypeError for a number whose width the kernel would have to guess."""
    values = tuple(arrays[a] if isinstance(a, str) else a for a in launch.arguments)
    for name, value in zip(launch.arguments, values):
        if not isinstance(name, (str, np.generic)):
            raise TypeError(f"an argument of {launch.kernel} is {value!r}, a {type(value).__name__}; accepted: an array's name or a NumPy scalar")
    return values
