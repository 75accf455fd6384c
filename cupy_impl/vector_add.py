"""Vector add in CUDA C++: ``cuda/vector_add.cu``. Contract and errors: ``reference/vector_add.py``."""

import functools

import numpy as np

from cupy_impl import device
from cupy_impl.launches import CXX_TYPES, Kernel, Launch
from reference.contract import ArrayInfo, Variant, pick, scalar
from reference.vector_add import DTYPES, check

VARIANTS = {
    "vector_add": (Variant("vector_add", "one 16-byte vector a thread", DTYPES, ("sm_80",), {"spill_bytes": 0}),)
}

BLOCK = 256  # threads; 256 to 1024 measured alike on an H200, and small vectors spread over more multiprocessors


def plan(x: ArrayInfo, y: ArrayInfo, out: ArrayInfo, *, variant: Variant) -> tuple[Launch, ...]:
    """The launches of a call."""
    (n,) = x.shape
    aligned = (x.address | y.address | out.address) % 16 == 0
    return _launches(n, x.dtype, 16 // scalar(x.dtype).itemsize if aligned else 1) if n else ()


@functools.lru_cache(1024)
def _launches(n: int, dtype: str, vector: int) -> tuple[Launch, ...]:
    defines = ("SCALAR", CXX_TYPES[dtype]), ("VECTOR", str(vector)), ("BLOCK", str(BLOCK))
    return (
        Launch(
            kernel=Kernel("vector_add.cu", "vector_add", defines),
            grid=(-(-n // (BLOCK * vector)), 1, 1),
            block=(BLOCK, 1, 1),
            arguments=("x", "y", "out", np.int64(n)),
        ),
    )


def vector_add(x, y, *, out=None, variant: str | None = None, runtime=device):
    """``x + y``, both (n,), on CuPy's current stream; returns out, (n,), of the same dtype.

    out: written and returned where given. variant: a name in VARIANTS. runtime: ``cupy_impl.device``, or
    ``cupy_impl.host`` for NumPy arrays on a CPU.
    Raises TypeError, ValueError and Unsupported as the contract says.
    """
    inputs = runtime.describe("x", x), runtime.describe("y", y)
    check(*inputs, out=None if out is None else runtime.describe("out", out, written=True), platform=runtime.PLATFORM)
    rung = pick(VARIANTS["vector_add"], variant, inputs[0].dtype, runtime.arch(x))
    if out is None:
        out = runtime.empty_like(x)
    runtime.launch(plan(*inputs, runtime.describe("out", out), variant=rung), {"x": x, "y": y, "out": out}, rung)
    return out
