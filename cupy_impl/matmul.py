"""Matmul in CUDA C++: ``cuda/matmul/*.cu``. Contract and errors: ``reference/matmul.py``."""

import numpy as np

from cupy_impl import device, matmul_hopper
from cupy_impl.launches import CXX_TYPES, Kernel, Launch
from cupy_impl.rows import ceil_div
from reference.contract import ArrayInfo, Unsupported, Variant, pick, row_major
from reference.matmul import ACTIVATIONS, DTYPES, check

PORTABLE = ("sm_80",)

VARIANTS = {
    "matmul": (
        Variant("1_naive", "a thread an element", DTYPES, PORTABLE),
        Variant("2_tiles", "tiles through shared memory", DTYPES, PORTABLE, {"spill_bytes": 0}),
        *matmul_hopper.VARIANTS,
    )
}

BLOCK = 128  # threads of rung 1
TILE = 16  # rows and columns of rung 2's
NULL = np.uint64(0)  # in the place of an array that is not there


def plan(
    a: ArrayInfo,
    b: ArrayInfo,
    out: ArrayInfo,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    bias: ArrayInfo | None = None,
    activation: str | None = None,
    precision: str = "ieee",
    variant: Variant,
    multiprocessors: int = 132,
) -> tuple[Launch, ...]:
    """The launches of a call; multiprocessors: of the device, 132 an H200's. Raises Unsupported as the rungs' limits say."""
    given = {"transpose_a": transpose_a, "transpose_b": transpose_b, "bias": bias, "activation": activation}
    if variant in matmul_hopper.VARIANTS:
        return matmul_hopper.plan(
            a, b, out, **given, precision=precision, variant=variant, multiprocessors=multiprocessors
        )
    (m, n), k = out.shape, a.shape[0 if transpose_a else 1]
    a_strides, b_strides = (info.strides or row_major(info.shape) for info in (a, b))
    a_row, a_col = a_strides[::-1] if transpose_a else a_strides
    b_row, b_col = b_strides[::-1] if transpose_b else b_strides
    defines = {
        "SCALAR": CXX_TYPES[a.dtype],
        "OUT": CXX_TYPES[out.dtype],
        "BIAS": int(bias is not None),
        "ACTIVATION": ACTIVATIONS.index(activation),
    }
    if variant.name == "1_naive":
        grid, block, own = ceil_div(m * n, BLOCK), BLOCK, {"BLOCK": BLOCK}
    else:
        grid, block = ceil_div(m, TILE) * ceil_div(n, TILE), TILE * TILE
        own = {"TILE": TILE, "A_ALONG_K": int(a_col == 1), "B_ALONG_K": int(b_row == 1)}
    return (
        Launch(
            kernel=Kernel(
                f"matmul/{variant.name}.cu", "matmul", tuple((k, str(v)) for k, v in (defines | own).items())
            ),
            grid=(grid, 1, 1),
            block=(block, 1, 1),
            arguments=(
                "a",
                "b",
                NULL if bias is None else "bias",
                "out",
                *(np.int32(length) for length in (m, n, k)),
                *(np.int64(stride) for stride in (a_row, a_col, b_row, b_col)),
            ),
        ),
    )


def matmul(
    a,
    b,
    transpose_a: bool = False,
    transpose_b: bool = False,
    bias=None,
    activation: str | None = None,
    out_dtype: str | None = None,
    precision: str = "ieee",
    *,
    out=None,
    variant: str | None = None,
    runtime=device,
):
    """f(A B + bias), f none, GELU or its tanh form, on CuPy's current stream; returns out (M, N) of out_dtype.

    a: (M, K), with transpose_a (K, M); b: (K, N), with transpose_b (N, K); bias: (N,); row-major with rows any distance
    apart, or the transposed view of such an array. activation: ``"gelu"`` or ``"gelu_tanh"``. out_dtype: a dtype's name,
    by default a's. precision: ``"tf32"`` for float32 on tensor cores. out: written and returned where given. variant: a
    name in VARIANTS, by default the last one that the device and the arrays allow. runtime: ``cupy_impl.device``, or
    ``cupy_impl.host`` for NumPy arrays on a CPU.
    Raises TypeError, ValueError and Unsupported as the contract says.
    """
    arrays = {"a": a, "b": b} | ({} if bias is None else {"bias": bias})
    infos = {name: runtime.describe(name, array) for name, array in arrays.items()}
    numbers = {"transpose_a": transpose_a, "transpose_b": transpose_b, "activation": activation, "precision": precision}
    given = None if out is None else runtime.describe("out", out, written=True)
    m, n, _ = check(**infos, **numbers, out_dtype=out_dtype, out=given, platform=runtime.PLATFORM)
    dtype, arch = infos["a"].dtype, runtime.arch(a)
    rung = pick(VARIANTS["matmul"], variant, dtype, arch)
    if out is None:
        out = runtime.empty((m, n), out_dtype or dtype, a)
    arrays["out"] = out
    infos["out"] = runtime.describe("out", out)
    try:
        launches = plan(**infos, **numbers, variant=rung, multiprocessors=runtime.multiprocessors(a))
    except Unsupported:
        if variant is not None:
            raise
        rung = VARIANTS["matmul"][1]
        launches = plan(**infos, **numbers, variant=rung)
    runtime.launch(launches, arrays, rung)
    return out
