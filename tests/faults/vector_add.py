"""Faults put into the real vector-add kernels; each has to come out of the check as a ``fail``."""

from crosscheck.faults import Fault

PAST_2_31 = ("vector_add-float16-2147483653",)
TAILS = ("vector_add-float32-1025", "vector_add-float32-4099")

FAULTS = (
    Fault(
        "cuda",
        "tail unmasked",
        "cuda/vector_add.cu",
        "i < n; ++i",
        "i < first + VECTOR; ++i",
        TAILS,
    ),
    Fault(
        "cuda",
        "an element skipped",
        "cuda/vector_add.cu",
        "for (long long i = first; i < n",
        "for (long long i = first + 1; i < n",
        TAILS,
    ),
    Fault(
        "cuda",
        "truncated instead of rounded",
        "cuda/vector_add.cu",
        "static_cast<SCALAR>(static_cast<float>(x) + static_cast<float>(y))",
        "__float2bfloat16_rz(static_cast<float>(x) + static_cast<float>(y))",
        ("vector_add-bfloat16-1025",),
    ),
    Fault(
        "cuda",
        "int32 offset",
        "cuda/vector_add.cu",
        "(static_cast<long long>(blockIdx.x) * BLOCK + threadIdx.x) * VECTOR",
        "(static_cast<int>(blockIdx.x) * BLOCK + static_cast<int>(threadIdx.x)) * VECTOR",
        PAST_2_31,
        ("gpu",),
    ),
    Fault(
        "triton",
        "tail unmasked",
        "triton_impl/vector_add.py",
        "total.to(out_ptr.dtype.element_ty), mask=inside)",
        "total.to(out_ptr.dtype.element_ty))",
        TAILS,
    ),
    Fault(
        "triton",
        "an element skipped",
        "triton_impl/vector_add.py",
        "inside = offsets < n",
        "inside = offsets < n - 1",
        TAILS,
    ),
    Fault(
        "triton",
        "whole block taken for the tail's",
        "triton_impl/vector_add.py",
        "if first + BLOCK <= n:",
        "if first <= n:",
        TAILS,
    ),
    Fault(
        "triton",
        "int32 offset",
        "triton_impl/vector_add.py",
        "tl.program_id(0).to(tl.int64) * BLOCK",
        "tl.program_id(0) * BLOCK",
        PAST_2_31,
        ("gpu",),
    ),
    Fault(
        "pallas",
        "tail forgotten",
        "pallas_impl/vector_add.py",
        "if n % tile:",
        "if False:",
        TAILS,
    ),
    Fault(
        "pallas",
        "an element skipped",
        "pallas_impl/vector_add.py",
        "add(n - tile, 1)",
        "add(n - tile - 1, 1)",
        TAILS,
    ),
    Fault(
        "pallas",
        "tail unmasked",
        "pallas_impl/vector_add.py",
        "grid=(size // (TILE if size >= TILE else SMALL),)",
        "grid=(pl.cdiv(size, TILE if size >= TILE else SMALL),)",
        TAILS,
        # On a GPU a Pallas output has no guard bands, and what lies past its end is nobody's.
        ("cpu",),
    ),
    Fault(
        "pallas",
        "int32 offset",
        "pallas_impl/vector_add.py",
        "firsts = range(0, max(n - TILE, 1), PART)",
        "firsts = [0]",
        ("vector_add-float16-2147485699",),
        ("gpu",),
    ),
)
