"""What the Pallas wrappers share: JAX arrays as the contract's checks see them, and where they run."""

import functools

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference.contract import ArrayInfo, Unsupported, wrong_type


def describe(name: str, array, ref: bool = False) -> ArrayInfo:
    """What the checks need to know of a JAX array or a tracer, which has no device yet. ref: of a ``jax.Ref`` instead.

    Raises TypeError for anything else, Unsupported for an array sharded over several devices.
    """
    traced = isinstance(array, jax.core.Tracer)
    is_ref = (ref or traced) and isinstance(array, jax.Ref)  # slow to ask
    if is_ref is not ref or not (is_ref or isinstance(array, jax.Array)):
        raise wrong_type(name, array, "jax.Ref" if ref else "jax.Array")
    dtype = _dtype_name(array.dtype)
    if traced:
        return ArrayInfo(array.shape, dtype)
    device, *others = array.sharding.device_set
    if others:
        raise Unsupported(f"{name} is sharded over {1 + len(others)} devices; built here: arrays on one device")
    return ArrayInfo(array.shape, dtype, device=_device_name(device))


# NumPy takes microseconds for a dtype's name.
@functools.cache
def _dtype_name(dtype) -> str:
    return dtype.name


@functools.cache
def _device_name(device: jax.Device) -> str:
    where = device.platform.replace("gpu", "cuda")
    return f"{where}:{device.id}" if where == "cuda" or device.id else where


def arch(array, interpret) -> str | None:
    """The architecture of the array's device, ``"sm_90"``, for a tracer of the default one; None under the interpreter.

    Raises TypeError for an ``interpret`` that is no ``plgpu.InterpretGPUParams``, ValueError where there is no GPU.
    """
    if interpret is not None:
        if not isinstance(interpret, plgpu.InterpretGPUParams):
            raise TypeError(f"interpret is {interpret!r}; accepted: None or a plgpu.InterpretGPUParams")
        return None
    (device,) = jax.devices()[:1] if isinstance(array, jax.core.Tracer) else array.sharding.device_set
    return _arch(device)


@functools.cache
def _arch(device: jax.Device) -> str:
    if device.platform != "gpu":
        raise ValueError(f"the call is traced for {device.platform}; accepted: a cuda device, or interpret=")
    return "sm_" + device.compute_capability.replace(".", "")
