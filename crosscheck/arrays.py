"""The same bytes as an array of each framework, and output buffers that show what was not written or too much.

One class per kind of array; they are made in the process that runs the backends, and import their framework then.
"""

import math
from typing import NamedTuple

import numpy as np

from reference.contract import scalar

# A NaN that no computation returns: an element of an output that still holds it was not written.
POISON = {"float32": 0x7FC5A5A5, "float16": 0x7E5A, "bfloat16": 0x7FC5}
GUARD = 4096  # poisoned elements on either side of an output, more than a block owns; its first one stays aligned


class Poisoned(NamedTuple):
    """An output operand full of POISON; ``buffer`` holds it between its guard bands, None where there are none."""

    array: object
    buffer: object = None


def poison_bits(shape, dtype: str) -> np.ndarray:
    """POISON as unsigned integers of the dtype's width."""
    return np.full(shape, POISON[dtype], f"u{scalar(dtype).itemsize}")


class NumpyArrays:
    """NumPy arrays, for the host build and for implementations in NumPy."""

    def __init__(self, tier: str):
        pass

    def put(self, values: np.ndarray) -> np.ndarray:
        return values.copy()

    def get(self, array: np.ndarray, index: np.ndarray | None = None) -> np.ndarray:
        """A NumPy copy, or of the elements at flat ``index`` alone."""
        return array.copy() if index is None else array.reshape(-1)[index]

    def is_array(self, value: object) -> bool:
        return isinstance(value, np.ndarray)

    def dtype(self, array) -> str:
        """NumPy's name of an array's dtype."""
        return array.dtype.name

    def poisoned(self, shape: tuple[int, ...], dtype: str) -> Poisoned:
        """An output operand between guard bands."""
        buffer = poison_bits(math.prod(shape) + 2 * GUARD, dtype).view(scalar(dtype))
        return Poisoned(buffer[GUARD:-GUARD].reshape(shape), buffer)

    def poison_allocator(self, shape: tuple[int, ...], dtype: str) -> None:
        """Leave POISON in the memory that the next output of this size is likely to get."""
        poison_bits(shape, dtype)

    def wait(self, results) -> list:
        """The results as arrays to read, when they are there; raises what went wrong on the device."""
        return list(results)


class TorchArrays:
    """PyTorch tensors."""

    def __init__(self, tier: str):
        import torch

        self.torch, self.device = torch, "cuda" if tier == "gpu" else "cpu"
        self._bits = {2: torch.int16, 4: torch.int32}

    def put(self, values: np.ndarray):
        bits = self.torch.from_numpy(values.view(f"i{values.itemsize}"))
        bits = bits.clone() if self.device == "cpu" else bits.to(self.device)
        return bits.view(getattr(self.torch, values.dtype.name))

    def get(self, array, index: np.ndarray | None = None) -> np.ndarray:
        flat = array.detach().resolve_neg()
        if index is not None:
            flat = flat.reshape(-1)[self.torch.from_numpy(index).to(array.device)]
        bits = flat.contiguous().view(self._bits[array.element_size()]).cpu().numpy()
        return bits.view(scalar(str(array.dtype).removeprefix("torch.")))

    def is_array(self, value: object) -> bool:
        return isinstance(value, self.torch.Tensor)

    def dtype(self, array) -> str:
        return str(array.dtype).removeprefix("torch.")

    def poisoned(self, shape: tuple[int, ...], dtype: str) -> Poisoned:
        bits = self._bits[scalar(dtype).itemsize]
        buffer = self.torch.full((math.prod(shape) + 2 * GUARD,), POISON[dtype], dtype=bits, device=self.device)
        buffer = buffer.view(getattr(self.torch, dtype))
        return Poisoned(buffer[GUARD:-GUARD].view(shape), buffer)

    def poison_allocator(self, shape: tuple[int, ...], dtype: str) -> None:
        bits = self._bits[scalar(dtype).itemsize]
        self.torch.full(shape, POISON[dtype], dtype=bits, device=self.device)

    def wait(self, results) -> list:
        if self.device == "cuda":
            self.torch.cuda.synchronize()
        return list(results)


class CupyArrays:
    """CuPy arrays."""

    def __init__(self, tier: str):
        import cupy

        self.cupy = cupy

    def put(self, values: np.ndarray):
        return self.cupy.asarray(values)

    def from_torch(self, tensor):
        """The same memory as a CuPy array."""
        return self.cupy.from_dlpack(tensor)

    def get(self, array, index: np.ndarray | None = None) -> np.ndarray:
        return (array if index is None else array.reshape(-1)[self.cupy.asarray(index)]).get()

    def is_array(self, value: object) -> bool:
        return isinstance(value, self.cupy.ndarray)

    def dtype(self, array) -> str:
        return array.dtype.name

    def poisoned(self, shape: tuple[int, ...], dtype: str) -> Poisoned:
        buffer = self._full((math.prod(shape) + 2 * GUARD,), dtype)
        return Poisoned(buffer[GUARD:-GUARD].reshape(shape), buffer)

    def poison_allocator(self, shape: tuple[int, ...], dtype: str) -> None:
        self._full(shape, dtype)

    def _full(self, shape, dtype):
        return self.cupy.full(shape, POISON[dtype], f"u{scalar(dtype).itemsize}").view(scalar(dtype))

    def wait(self, results) -> list:
        self.cupy.cuda.runtime.deviceSynchronize()
        return list(results)


class JaxArrays:
    """JAX arrays; an output operand is a ``jax.Ref``, which has no guard bands."""

    def __init__(self, tier: str):
        import jax

        self.jax, self.device = jax, jax.devices("gpu" if tier == "gpu" else "cpu")[0]

    def put(self, values: np.ndarray):
        # A copy: on a CPU JAX may take the very memory, and a case's own inputs are nobody's to change.
        return self.jax.device_put(values.copy(), self.device)

    def from_torch(self, tensor):
        """The same memory as a JAX array."""
        return self.jax.dlpack.from_dlpack(tensor)

    def get(self, array, index: np.ndarray | None = None) -> np.ndarray:
        values = np.asarray(array)
        return values if index is None else values.reshape(-1)[index]

    def is_array(self, value: object) -> bool:
        return isinstance(value, (self.jax.Array, self.jax.Ref))

    def dtype(self, array) -> str:
        return array.dtype.name

    def poisoned(self, shape: tuple[int, ...], dtype: str) -> Poisoned:
        return Poisoned(self.jax.new_ref(self._full(shape, dtype)))

    def poison_allocator(self, shape: tuple[int, ...], dtype: str) -> None:
        self._full(shape, dtype).block_until_ready().delete()

    def _full(self, shape, dtype):
        bits = self.jax.numpy.full(shape, POISON[dtype], f"u{scalar(dtype).itemsize}")
        return self.jax.lax.bitcast_convert_type(bits, scalar(dtype))

    def wait(self, results) -> list:
        return self.jax.block_until_ready([r[...] if isinstance(r, self.jax.Ref) else r for r in results])


# What lives where.
TIERS = {"cpu": ("numpy", "torch", "jax"), "gpu": ("torch", "cupy", "jax")}

KINDS = {"numpy": NumpyArrays, "torch": TorchArrays, "cupy": CupyArrays, "jax": JaxArrays}
