"""What the Pallas wrappers share: JAX arrays as the contract's checks see them, and where they run."""

import jax

from reference.contract import ArrayInfo, Unsupported, wrong_type


def describe(name: str, array) -> ArrayInfo:
    """What the checks need to know of a JAX array, a tracer (which has no device yet) or a ``jax.Ref``.

    Raises TypeError for anything else, Unsupported for an array sharded over several devices.
    """
    if not isinstance(array, (jax.Array, jax.Ref)):
        raise wrong_type(name, array, "jax.Array")
    if isinstance(array, jax.core.Tracer):
        return ArrayInfo(array.shape, array.dtype.name)
    device, *others = array.sharding.device_set
    if others:
        raise Unsupported(f"{name} is sharded over {1 + len(others)} devices; built here: arrays on one device")
    where = "cpu" if device.platform == "cpu" else f"{device.platform.replace('gpu', 'cuda')}:{device.id}"
    return ArrayInfo(array.shape, array.dtype.name, device=where)


def arch(array, interpret) -> str | None:
    """The architecture of the array's device, ``"sm_90"``, for a tracer of the default one; None under the interpreter."""
    if interpret:
        return None
    (device,) = jax.devices()[:1] if isinstance(array, jax.core.Tracer) else array.sharding.device_set
    return "sm_" + device.compute_capability.replace(".", "")
