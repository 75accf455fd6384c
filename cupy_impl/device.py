"""Runs a plan on a GPU: NVRTC compiles for the device's architecture, CuPy's RawModule loads and launches.

RawModule could compile too, but adds ``-ftz=true`` to any options: subnormal numbers would be zeros in CUDA
alone. It is given the cubin instead, the same one that a compile report sees without a GPU.
"""

import functools
from typing import Mapping

import numpy as np

from cupy_impl import nvrtc
from cupy_impl.launches import Launch
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


@functools.cache
def _function(source: str, kernel: str, defines: tuple, cooperative: bool, shared_bytes: int, target: str):
    import cupy

    image = nvrtc.cubin(Launch(source, kernel, defines, (1, 1, 1), (1, 1, 1), ()), target)
    function = cupy.RawModule(path=str(image), enable_cooperative_groups=cooperative).get_function(kernel)
    if shared_bytes >= 48 * 1024:  # more than every kernel has without asking
        function.max_dynamic_shared_size_bytes = shared_bytes
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
