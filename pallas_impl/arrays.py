"""What the Pallas wrappers share: JAX arrays as the contract's checks see them, and where they run."""

import jax

from reference.contract import ArrayInfo, wrong_type


def describe(name: str, array) -> ArrayInfo:
    """What the checks need to know of a JAX array, a tracer or a ``jax.Ref``; TypeError for anything else."""
    if not isinstance(array, (jax.Array, jax.Ref)):
        raise wrong_type(name, array, "jax.Array")
    return ArrayInfo(array.shape, array.dtype.name, device=_device(array))


def _device(array) -> str | None:
    if isinstance(array, jax.core.Tracer):
        return None
    device = min(array.sharding.device_set, key=lambda d: d.id)
    return "cpu" if device.platform == "cpu" else f"{'cuda' if device.platform == 'gpu' else device.platform}:{device.id}"


def arch(array, interpret) -> str | None:
    """The architecture of the array's device, ``"sm_90"``; None under the interpreter.

    A tracer has no device yet: the default one is meant.
    """
    if interpret:
        return None
    device = jax.devices()[0] if isinstance(array, jax.core.Tracer) else min(array.sharding.device_set, key=lambda d: d.id)
    return "sm_" + device.compute_capability.replace(".", "")
