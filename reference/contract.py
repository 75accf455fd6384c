"""The words all operators and all implementations share.

An operator's module in this package holds its contract, its argument checks and what is expected of it;
the checks work on :class:`ArrayInfo`, so that CuPy, PyTorch, JAX and NumPy arrays pass the same ones and
the same wrong call is refused with the same words everywhere.
"""

import functools
import math
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Mapping, NamedTuple, Sequence

import ml_dtypes
import numpy as np

U = 2.0**-24  # unit roundoff of float32
CHAIN = 256  # the longest chain of float32 additions in softmax, RMSNorm and its gradients


class Unsupported(NotImplementedError):
    """A call the contract allows and this implementation, device or build does not cover."""


class NotRun(Unsupported):
    """A call that the implementation covers and this machine cannot run."""


class ArrayInfo(NamedTuple):
    """What the checks need to know of an array of any framework.

    shape: lengths of the axes. dtype: NumPy's name of it (``"bfloat16"`` as in ml_dtypes).
    strides: in elements, or None where the framework has none (JAX). device: ``"cpu"``, ``"cuda:0"``, or
    None while tracing. address: of the first element, or None where it cannot be had.
    """

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None
    device: str | None = None
    address: int | None = None

    @property
    def span(self) -> tuple[int, int]:
        """First byte and one past the last byte, of a view too."""
        if 0 in self.shape:
            return self.address, self.address
        strides = self.strides or row_major(self.shape)
        elements = 1 + sum((length - 1) * stride for length, stride in zip(self.shape, strides))
        return self.address, self.address + elements * scalar(self.dtype).itemsize


@dataclass(frozen=True, eq=False)
class Variant:
    """One way an implementation does an operator: a rung of its ladder.

    name: a CUDA file's stem, a function of the Triton or Pallas module. summary: the idea in one sentence.
    dtypes: those it takes. archs: ``"sm_80"`` is that GPU architecture and every later one, ``"sm_90a"``
    that one alone (it uses instructions found nowhere else). expect: what a compile report must show of it,
    ``{"spill_bytes": 0, "HGMMA": ">0"}``.
    """

    name: str
    summary: str
    dtypes: tuple[str, ...]
    archs: tuple[str, ...]
    expect: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    def runs_on(self, arch: str) -> bool:
        """Whether a GPU of architecture ``arch`` (``"sm_90"``) can run it."""
        return any(arch == a[:-1] if a.endswith("a") else int(arch[3:]) >= int(a[3:]) for a in self.archs)

    def target(self, arch: str) -> str:
        """What to compile for on such a GPU: ``"sm_90a"`` where the variant names it, else ``arch`` itself."""
        return f"{arch}a" if f"{arch}a" in self.archs else arch


class Expected(NamedTuple):
    """One output of an operator on given inputs.

    value: float64, the exact result or near enough. bound: float64 of the same shape, what the contract's
    float32 steps may accumulate beyond the last rounding (0: the output is ``value`` rounded once).
    dtype: the output's. bitwise: the contract asks for equality bit for bit (NaN payloads aside).
    """

    value: np.ndarray
    bound: np.ndarray
    dtype: str
    bitwise: bool = False


def scalar(dtype: str) -> np.dtype:
    """NumPy's dtype of a name, ml_dtypes' types included."""
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


def round_once(value: np.ndarray, dtype: str) -> np.ndarray:
    """float64 ``value`` rounded to ``dtype``, to nearest, ties to even, in one rounding.

    NumPy's own float64 to bfloat16 goes through float32 and rounds twice. Here the step to float32 rounds to
    odd, after which the second rounding is the only one that counts (Boldo and Melquiond, "Emulation of FMA
    and correctly rounded sums: proved algorithms using rounding to odd", 2008).
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype != "bfloat16":
            return value.astype(dtype)
        nearest = value.astype(np.float32)
        even = (nearest.view(np.uint32) & 1) == 0
        down, up = value < nearest, value > nearest
        odd = np.where(even & down, np.nextafter(nearest, np.float32(-np.inf)), nearest)
        odd = np.where(even & up, np.nextafter(nearest, np.float32(np.inf)), odd)
        return odd.astype(ml_dtypes.bfloat16)


def additions(n: int) -> int:
    """The most additions that one of n terms goes through when chains of CHAIN are summed in chains in turn."""
    levels = 1
    while CHAIN**levels < n:
        levels += 1
    return min(n, CHAIN * levels)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a contiguous array."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def words(names) -> str:
    """``a, b or c``, for messages."""
    *first, last = map(str, names)
    return f"{', '.join(first)} or {last}" if first else last


def among(what: str, value: object, accepted) -> object:
    """``value`` itself if it is among the accepted names; otherwise ValueError."""
    names = list(accepted)
    if value not in names:
        raise ValueError(
            f"{what} is {value!r}; accepted: {words(names) if len(names) <= 12 else f'one of {len(names)}'}"
        )
    return value


def wrong_type(name: str, value: object, accepted: str) -> TypeError:
    """The error for an argument that is no array of the implementation's framework."""
    kind = type(value)
    return TypeError(f"{name} is a {kind.__module__}.{kind.__qualname__}; accepted: {accepted}")


def check_dtypes(arrays: Mapping[str, ArrayInfo], accepted: tuple[str, ...]) -> None:
    """All arrays have one dtype, an accepted one; otherwise TypeError."""
    first, reference = next(iter(arrays.items()))
    for name, info in arrays.items():
        if info.dtype not in accepted:
            raise TypeError(f"{name} has dtype {info.dtype}; accepted: {words(accepted)}")
        if info.dtype != reference.dtype:
            raise TypeError(
                f"{name} has dtype {info.dtype} and {first} has {reference.dtype}; accepted: one dtype for all"
            )


def check_devices(arrays: Mapping[str, ArrayInfo], platform: str) -> None:
    """All arrays are on one device of ``platform`` (``"cuda"`` or ``"cpu"``); otherwise ValueError."""
    known = {name: info.device for name, info in arrays.items() if info.device is not None}
    first = next(iter(known), None)
    for name, device in known.items():
        if device.partition(":")[0] != platform:
            raise ValueError(f"{name} is on {device}; accepted: arrays on a {platform} device")
        if device != known[first]:
            raise ValueError(f"{name} is on {device} and {first} on {known[first]}; accepted: one device for all")


def check_positive(name: str, value: object) -> None:
    """A number above 0 and finite, as float32 too; otherwise TypeError for no number, ValueError for its value."""
    accepted = "accepted: a finite number above 0 that float32 can hold"
    if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
        raise TypeError(f"{name} is {value!r}; {accepted}")
    if not 2.0**-149 <= value <= float(np.finfo(np.float32).max):
        raise ValueError(f"{name} is {value!r}; {accepted}")


def check_contiguous(arrays: Mapping[str, ArrayInfo]) -> None:
    """Row-major without gaps, where there are strides at all; otherwise ValueError."""
    for name, info in arrays.items():
        if info.strides is None or 0 in info.shape:
            continue
        wanted = row_major(info.shape)
        # The stride of an axis of length 1 leads nowhere.
        if any(n > 1 and s != w for n, s, w in zip(info.shape, info.strides, wanted)):
            raise ValueError(f"{name} has strides {info.strides}; accepted: contiguous, {wanted}")


def check_outputs(
    out: Sequence[ArrayInfo], wanted: Mapping[str, tuple[tuple[int, ...], str]], inputs: Mapping[str, ArrayInfo]
) -> dict[str, ArrayInfo]:
    """The arrays given as ``out=``, by name: contiguous, of the shapes and dtypes of ``wanted``, apart from the
    inputs and from each other.

    Raises TypeError for dtypes, ValueError for number, shapes, strides and overlaps.
    """
    if len(out) != len(wanted):
        raise ValueError(f"out has length {len(out)}; accepted: {len(wanted)}, ({', '.join(wanted)})")
    named = dict(zip(wanted, out))
    for name, (shape, dtype) in wanted.items():
        if named[name].dtype != dtype:
            raise TypeError(f"{name} has dtype {named[name].dtype}; accepted: {dtype}")
        if named[name].shape != shape:
            raise ValueError(f"{name} has shape {named[name].shape}; accepted: {shape}")
    check_contiguous(named)
    others = dict(inputs)
    for name, info in named.items():
        for other, taken in others.items():
            if info.address is None or taken.address is None:
                continue
            (first, last), (start, stop) = info.span, taken.span
            if start < last and first < stop:
                raise ValueError(f"{name} overlaps {other}; accepted: memory of its own")
        others[name] = info
    return named


@functools.cache  # a call of microseconds asks every time
def pick(variants: tuple[Variant, ...], name: str | None, dtype: str, arch: str | None) -> Variant:
    """The variant called ``name``, or the best: the last of the ladder that covers dtype and architecture.

    arch None (an interpreter, the host build) leaves the architecture out of it.
    Raises ValueError for an unknown name, Unsupported where dtype or architecture is not covered.
    """
    if name is not None:
        among("variant", name, [v.name for v in variants])
    named = [v for v in reversed(variants) if name in (None, v.name)]
    for variant in named:
        if dtype in variant.dtypes and (arch is None or variant.runs_on(arch)):
            return variant
    dtypes = dict.fromkeys(d for v in named for d in v.dtypes)
    if dtype not in dtypes:
        raise Unsupported(f"dtype is {dtype}; built here: {words(dtypes)}")
    raise Unsupported(f"the device is {arch}; built here: {words(dict.fromkeys(a for v in named for a in v.archs))}")
