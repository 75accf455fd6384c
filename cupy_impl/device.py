"""Runs a plan on a GPU: NVRTC compiles for the device's architecture, CuPy's RawModule loads and launches.

RawModule could compile too, but adds ``-ftz=true`` to any options: subnormal numbers would be zeros in CUDA
alone. It is given the cubin instead, the same one that a compile report sees without a GPU.
"""

import contextlib
import functools
from typing import Mapping

import numpy as np

from cupy_impl import nvrtc
from cupy_impl.launches import Kernel, Launch, TensorMap, describe_strided
from reference.contract import ArrayInfo, Variant, scalar, wrong_type

PLATFORM = "cuda"


def describe(name: str, array, written: bool = False) -> ArrayInfo:
    """What the checks need to know of a CuPy array; TypeError for anything else. written: it is an output."""
    import cupy

    if not isinstance(array, cupy.ndarray):
        raise wrong_type(name, array, "cupy.ndarray")
    return describe_strided(name, array, _name(array.data.device_id), array.data.ptr)


@functools.cache
def _name(device: int) -> str:
    return f"cuda:{device}"


def empty_like(array):
    """An uninitialised contiguous array of the same shape and dtype on the same device."""
    import cupy

    with _on(array):
        return cupy.empty(array.shape, array.dtype)


def empty(shape: tuple[int, ...], dtype: str, like):
    """An uninitialised contiguous array on the device of ``like``."""
    import cupy

    with _on(like):
        return cupy.empty(shape, scalar(dtype))


def _on(array):
    """A context in which CuPy works on the array's device; entering the one that is current costs a microsecond."""
    from cupy.cuda import runtime

    device = array.data.device_id
    return contextlib.nullcontext() if runtime.getDevice() == device else array.device


def multiprocessors(array) -> int:
    """Of the array's device."""
    return _multiprocessors(array.data.device_id)


@functools.cache
def _multiprocessors(device: int) -> int:
    from cupy.cuda import runtime

    return runtime.deviceGetAttribute(runtime.cudaDevAttrMultiProcessorCount, device)


def arch(array) -> str:
    """The architecture of the array's device: ``"sm_90"``."""
    return _arch(array.data.device_id)


@functools.cache
def _arch(device: int) -> str:
    import cupy

    return f"sm_{cupy.cuda.Device(device).compute_capability}"


@functools.cache
def _function(kernel: Kernel, cooperative: bool, shared_bytes: int, target: str):
    import cupy

    image = nvrtc.cubin(kernel, target)
    function = cupy.RawModule(path=str(image), enable_cooperative_groups=cooperative).get_function(kernel.name)
    if shared_bytes >= 48 * 1024:  # more than every kernel has without asking
        function.max_dynamic_shared_size_bytes = shared_bytes
    return function


@functools.lru_cache(1024)
def _encoded(tensor_map: TensorMap, address: int) -> np.void:
    """A tensor map's 128 bytes, which a launch passes by value."""
    from cuda.bindings import driver

    kinds = driver.CUtensorMapDataType
    status, encoded = driver.cuTensorMapEncodeTiled(
        {
            "float16": kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            "bfloat16": kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            "float32": kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        }[tensor_map.dtype],
        len(tensor_map.dims),
        address,
        [driver.cuuint64_t(length) for length in tensor_map.dims],
        [driver.cuuint64_t(pitch) for pitch in tensor_map.pitches],
        [driver.cuuint32_t(length) for length in (*tensor_map.box, 1, 1)[: len(tensor_map.dims)]],
        [driver.cuuint32_t(1)] * len(tensor_map.dims),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"cuTensorMapEncodeTiled: {status.name} for {tensor_map}")
    return np.array([int(word) for word in encoded.opaque], np.uint64).view("V128")[0]


def _value(argument, arrays: Mapping[str, object]):
    """What a launch passes for an argument of a plan."""
    if isinstance(argument, TensorMap):
        return _encoded(argument, arrays[argument.array].data.ptr)
    return arrays[argument] if isinstance(argument, str) else argument


def launch(launches: tuple[Launch, ...], arrays: Mapping[str, object], variant: Variant) -> None:
    """Compile what is not compiled yet and launch in order, on CuPy's current stream of the arrays' device.

    Clusters are the kernels' own, by ``__cluster_dims__``. Raises CompileError.
    """
    first = next(iter(arrays.values()))
    with _on(first):
        target = variant.target(arch(first))
        for item in launches:
            # The pool may give the memory away once this returns: to what the same stream does later.
            for wanted in item.workspace:
                array = empty(wanted.shape, wanted.dtype, first)
                if wanted.zeroed:
                    array.data.memset_async(0, array.nbytes)
                arrays = {**arrays, wanted.name: array}
            function = _function(item.kernel, item.cooperative, item.shared_bytes, target)
            arguments = tuple(_value(argument, arrays) for argument in item.arguments)
            function(item.grid, item.block, arguments, shared_mem=item.shared_bytes)
