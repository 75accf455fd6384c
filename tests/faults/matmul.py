"""Faults put into the real kernels of matmul; each has to come out of the check as a ``fail``."""

from crosscheck.faults import Fault, part

ASYNC = "cuda/matmul/4_async.cu"
MMA = "cuda/matmul/6_mma.cu"

# What TMA cannot address, or is float32 in IEEE arithmetic, comes to the portable rungs.
SINGLE = ("matmul-float32-65x127x129-bias-gelu",)
HALF = ("matmul-float16-127x129x65-ta-bias-gelu",)

CPU = ("cpu",)  # where copies are late whenever they may be

PORTABLE_FAULTS = (
    Fault(
        "cuda", "the last slices of K left out", ASYNC, "(k + TILE_K - 1) / TILE_K;", "k / TILE_K;", ("bound",), SINGLE
    ),
    Fault(
        "cuda",
        "a stage of floats read while its copies are under way",
        ASYNC,
        "async_copy_wait<STAGES - 2>();",
        "async_copy_wait<STAGES - 1>();",
        ("bound",),
        SINGLE,
        CPU,
    ),
    Fault(
        "cuda",
        "others' copies not waited for",
        ASYNC,
        "        __syncthreads();  // the stage is full for all, and the one before is read\n",
        "",
        ("bound",),
        SINGLE,
        CPU,
    ),
    Fault(
        "cuda",
        "transposed words laid one over the other",
        ASYNC,
        "&slices[thread_k + j][",
        "&slices[thread_k][",
        ("bound",),
        SINGLE,
    ),
    Fault(
        "cuda",
        "second run of columns beside the first",
        "cuda/include/register_tile.cuh",
        "&right[k][col + run * 32]",
        "&right[k][col + run * 4]",
        ("bound",),
        SINGLE,
    ),
    Fault(
        "cuda",
        "a stage of matrices read while its copies are under way",
        MMA,
        "async_copy_wait<STAGES - 2>();",
        "async_copy_wait<STAGES - 1>();",
        ("bound",),
        HALF,
        CPU,
    ),
    Fault(
        "cuda",
        "columns of B paired wrongly",
        MMA,
        "right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]",
        "right[j / 2][j % 2], right[j / 2][j % 2 + 2]",
        ("bound",),
        HALF,
    ),
    Fault(
        "cuda",
        "rows along K read as if they were not swizzled",
        MMA,
        "operand + swizzled(at, step * 32 + half_of(lane / 8) * 16)",
        "operand + at * 128 + step * 32 + half_of(lane / 8) * 16",
        ("bound",),
        ("matmul-bfloat16-63x65x129-bias-gelu_tanh-outliers",),
    ),
    Fault(
        "cuda",
        "matrices along M taken as they lie",
        MMA,
        "load_matrices<true>(",
        "load_matrices<false>(",
        ("bound",),
        HALF,
    ),
    Fault(
        "cuda",
        "TF32 along M leaves out every other four of K",
        MMA,
        "step * 8 + half_of(i) * 4 + lane % 4",
        "step * 8 + lane % 4",
        ("bound",),
        ("matmul-float32-65x63x128-ta-tf32-one_sided",),
    ),
    Fault(
        "cuda",
        "rows beyond out stored",
        "cuda/include/portable_tile.cuh",
        "row < rows && col + j < cols",
        "col + j < cols",
        ("guard bands",),
        ("matmul-float32-127x64x63-ta-one_sided",),
    ),
    Fault(
        "cuda",
        "every column has the run's first bias",
        "cuda/include/portable_tile.cuh",
        "bias[col + j + i]",
        "bias[col]",
        ("bound",),
        SINGLE,
    ),
    Fault(
        "cuda",
        "GELU's argument not divided by sqrt 2",
        "cuda/include/epilogue.cuh",
        "erff(z * 0.70710678118654752f)",
        "erff(z)",
        ("bound",),
        SINGLE,
    ),
)

FAULTS = (
    *PORTABLE_FAULTS,
    *part("matmul_hopper", "HOPPER_FAULTS"),
    *part("matmul_triton", "TRITON"),
    *part("matmul_pallas", "PALLAS"),
)
