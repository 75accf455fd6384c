"""What the Pallas wrappers share: JAX arrays as the contract's checks see them, and where they run."""

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference.contract import ArrayInfo, Unsupported, wrong_type


def describe(name: str, array, ref: bool = False) -> ArrayInfo:
    """What the checks need to know of a JAX array or a tracer, which has no device yet. ref: of a ``jax.Ref`` instead.

    Raises TypeError for anything else, Unsupported for an array sharded over several devices.
    """
    if isinstance(array, jax.Ref) is not ref or not isinstance(array, (jax.Array, jax.Ref)):
        raise wrong_type(name, array, "jax.Ref" if ref else "jax.Array")
    if isinstance(array, jax.core.Tracer):
        return ArrayInfo(array.shape, array.dtype.name)
    device, *others = array.sharding.device_set
    if others:
        raise Unsupported(f"{name} is sharded over {1 + len(others)} devices; built here: arrays on one device")
    where = device.platform.replace("gpu", "cuda")
    where += f":{device.id}" if where == "cuda" or device.id else ""
    return ArrayInfo(array.shape, array.dtype.name, device=where)


def arch(array, interpret) -> str | None:
    """The architecture of the array's device, ``"sm_90"``, for a tracer of the default one; None under the interpreter.

    Raises TypeError for an ``interpret`` that is no ``plgpu.InterpretGPUParams``, ValueError where there is no GPU.
    """
    if interpret is not None:
        if not isinstance(interpret, plgpu.InterpretGPUParams):
            raise TypeError(f"interpret is {interpret!r}; accepted: None or a plgpu.InterpretGPUParams")
        return None
    (device,) = jax.devices()[:1] if isinstance(array, jax.core.Tracer) else array.sharding.device_set
    if device.platform != "gpu":
        raise ValueError(f"the call is traced for {device.platform}; accepted: a cuda device, or interpret=")
    return "sm_" + device.compute_capability.replace(".", "")
