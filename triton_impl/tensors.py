"""What the Triton wrappers share: PyTorch tensors as the contract's checks see them, and where they run."""

import contextlib
import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from reference.contract import ArrayInfo, Unsupported, wrong_type

# Triton decides at import whether kernels are compiled or interpreted.
INTERPRETED = triton.knobs.runtime.interpret
PLATFORM = "cpu" if INTERPRETED else "cuda"


def describe(name: str, tensor) -> ArrayInfo:
    """What the checks need to know of a tensor.

    Raises TypeError for anything else, ValueError for tensors whose memory does not hold their values as they are,
    Unsupported for one that wants a gradient, and for bfloat16 under the interpreter.
    """
    if not isinstance(tensor, torch.Tensor):
        raise wrong_type(name, tensor, "torch.Tensor")
    if tensor.layout is not torch.strided:
        raise ValueError(f"{name} has layout {tensor.layout}; accepted: torch.strided")
    if tensor.is_neg():
        raise ValueError(f"{name} is a lazily negated view; accepted: tensors that hold their values")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise Unsupported(f"{name} requires a gradient, which is lost here; built here: calls under torch.no_grad()")
    dtype = _dtype_name(tensor.dtype)
    if INTERPRETED and dtype == "bfloat16":
        raise Unsupported(
            f"{name} has dtype bfloat16, which Triton's interpreter computes wrongly; built here: float32 or float16"
        )
    return ArrayInfo(tuple(tensor.shape), dtype, tensor.stride(), _device_name(tensor.device), tensor.data_ptr())


# PyTorch takes microseconds to spell these.
@functools.cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@functools.cache
def _device_name(device: torch.device) -> str:
    return str(device)


def arch(tensor: torch.Tensor) -> str | None:
    """The architecture of the tensor's device, ``"sm_90"``; None under the interpreter."""
    return None if INTERPRETED else _properties(tensor.device)[0]


def multiprocessors(tensor: torch.Tensor) -> int:
    """How many the tensor's device has; 2 where it has none, so that persistent programs take several turns there."""
    return _properties(tensor.device)[1] if tensor.is_cuda else 2


def shared_bytes(tensor: torch.Tensor) -> int:
    """How much shared memory a program may have on the tensor's device; an H200's where it has none."""
    return _properties(tensor.device)[2] if tensor.is_cuda else 227 << 10


@functools.cache
def _properties(device: torch.device) -> tuple[str, int, int]:
    found = torch.cuda.get_device_properties(device)
    shared = found.shared_memory_per_block_optin
    return f"sm_{found.major}{found.minor}", found.multi_processor_count, shared


def unit(cols: int) -> int:
    """The largest power of two up to 16 that divides a width: what kernels are told of the alignment of rows."""
    return min(16, cols & -cols)


TYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@functools.cache
def word_of(number: float, dtype: torch.dtype) -> int:
    """A 32-bit word of a 16-bit number twice."""
    return torch.full((2,), number, dtype=dtype).view(torch.int32).item()


def in_words(*arrays: torch.Tensor) -> bool:
    """Whether 16-byte accesses reach all rows of these tensors, which have rows of as many elements."""
    return all(a.shape[-1] * a.element_size() % 16 == 0 and a.data_ptr() % 16 == 0 for a in arrays)


def line(tensor: torch.Tensor) -> int:
    """How many elements are 128 bytes, the width in which TMA lays out tiles in shared memory."""
    return 128 // tensor.element_size()


def descriptor(tensor: torch.Tensor, block: int) -> TensorDescriptor:
    """A tensor (rows, cols) as TMA takes it, (rows, cols / line, line), by tiles (1, block / line, line).

    What a tile has past the end of its row is read as 0 and not written.
    """
    (rows, cols), width = tensor.shape, line(tensor)
    return TensorDescriptor(tensor, [rows, cols // width, width], [cols, width, 1], [1, block // width, width])


def on_device(tensor: torch.Tensor):
    """A context in which Triton launches on the tensor's device."""
    if INTERPRETED or tensor.get_device() == torch.cuda.current_device():  # entering it anew takes microseconds
        return contextlib.nullcontext()
    return torch.cuda.device(tensor.device)


@dataclass(frozen=True)
class Tiles:
    """How rows are dealt to programs.

    block: elements of a row that a tile holds, a power of two. rows: of a tile. warps: of a program. stages: 1 loads
    straight into registers; n keeps n - 1 tiles in shared memory, or on their way there. programs: on a
    multiprocessor, each taking one tile after the other; 0 starts one for each tile.
    """

    block: int
    rows: int
    warps: int
    stages: int = 1
    programs: int = 0

    def grid(self, rows: int, tensor: torch.Tensor) -> tuple[int]:
        """The programs for so many rows on the tensor's device."""
        tiles = triton.cdiv(rows, self.rows)
        if self.programs == 0:
            return (tiles,)
        # As few as take no more turns than all would: 128 of 132 take 32 of 4096 rows each.
        return (triton.cdiv(tiles, triton.cdiv(tiles, self.programs * multiprocessors(tensor))),)

    def prefetch(self, *arrays: torch.Tensor) -> int:
        """Stages, or as many as fit into shared memory with tiles of these arrays."""
        tile = self.block * self.rows * sum(array.element_size() for array in arrays)
        return min(self.stages, 1 + (shared_bytes(arrays[0]) - 2048) // tile)  # 2048 for the reductions' own use

    def streams(self, read: tuple[torch.Tensor, ...], others: tuple[torch.Tensor, ...]) -> bool:
        """Whether 16-byte accesses reach all these tensors' rows, and a multiprocessor has room for the tiles.

        Of each tensor that is read by TMA those are stages - 1, and one in all for what is written.
        """
        tile = self.block * read[0].element_size()
        shared = self.programs * ((len(read) * (self.stages - 1) + 1) * tile + 2048)
        aligned = all(tensor.data_ptr() % 16 == 0 for tensor in (*read, *others))
        return aligned and read[0].shape[1] % line(read[0]) == 0 and shared <= shared_bytes(read[0])
