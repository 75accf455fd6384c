"""Faults put into the real matmul kernels; each has to come out of the check as a ``fail``."""

from crosscheck.faults import Fault

KERNELS = "triton_impl/matmul.py"
TILES = "triton_impl/matmul_tiles.py"

TAILS = ("matmul-float16-127x129x65-ta-bias-gelu",)  # by pointers, two tiles, the last step of K not whole
STEPS = ("matmul-float16-64x64x128-tb-one_sided",)  # by TMA, two steps
SINGLE = ("matmul-float32-127x64x63-ta-one_sided",)
PERSISTENT = ("matmul-bfloat16-4096x4096x4096",)  # several tiles a program
SKINNY = ("matmul-bfloat16-16x8192x8192",)  # K in parts
GPU = ("gpu",)

TRITON = (
    Fault("triton", "tail of K unmasked", KERNELS, "if not WHOLE:", "if WHOLE:", ("bound",), TAILS),
    Fault(
        "triton",
        "a row too many is stored",
        KERNELS,
        "mask=(row < m)[:, None] & (col < n)[None, :])",
        "mask=(row <= m)[:, None] & (col < n)[None, :])",
        ("guard bands",),
        TAILS,
    ),
    Fault(
        "triton",
        "last column of tiles skipped",
        TILES,
        "triton.cdiv(m, self.block_m) * triton.cdiv(n, self.block_n)",
        "triton.cdiv(m, self.block_m) * max(1, n // self.block_n)",
        ("unwritten elements",),
        TAILS,
    ),
    Fault(
        "triton",
        "a last group as high as the others",
        KERNELS,
        "within // height",
        "within // GROUP",
        ("unwritten elements",),
        TAILS,
    ),
    Fault(
        "triton",
        "bias added twice",
        KERNELS,
        "z += tl.load(bias_ptr",
        "z += 2 * tl.load(bias_ptr",
        ("bound",),
        TAILS,
    ),
    Fault(
        "triton",
        "GELU before bias",
        KERNELS,
        "z = 0.5 * z * (1 + tl.erf(z * 0.7071067811865476))",
        "z = 0.5 * z * (1 + tl.erf((z - tl.load(bias_ptr + col, mask=col < n, other=0)) * 0.7071067811865476))",
        ("bound",),
        TAILS,
    ),
    Fault(
        "triton",
        "16-bit accumulation",
        KERNELS,
        "acc = tl.dot(a, b, acc, input_precision=PRECISION)",
        "acc = tl.dot(a, b, acc, input_precision=PRECISION).to(tl.float16).to(tl.float32)",
        ("bound",),
        ("matmul-float16-128x128x129-out32-one_sided",),
    ),
    Fault(
        "triton",
        "only the last step is kept",
        KERNELS,
        "acc = tl.dot(left, right, acc, input_precision=PRECISION)",
        "acc = tl.dot(left, right, input_precision=PRECISION)",
        ("bound",),
        STEPS,
    ),
    Fault(
        "triton",
        "coordinates of a transposed tile swapped",
        KERNELS,
        "right = b.load([col, at]).T",
        "right = b.load([at, col]).T",
        ("bound",),
        STEPS,
    ),
    Fault(
        "triton",
        "rounded to 16 bits before it is stored",
        KERNELS,
        "z.to(out_ptr.dtype.element_ty), mask=(row",
        "z.to(tl.float16).to(out_ptr.dtype.element_ty), mask=(row",
        ("bound",),
        SINGLE,
    ),
    # The interpreter multiplies float32 as it is, whatever precision it is told.
    Fault(
        "triton",
        "TF32 for IEEE",
        KERNELS,
        '"PRECISION": self.precision',
        '"PRECISION": "tf32"',
        ("bound",),
        SINGLE,
        GPU,
    ),
    # What takes large products is launched on a GPU alone.
    Fault(
        "triton",
        "a part of K left out",
        KERNELS,
        "for split in tl.static_range(SPLITS):",
        "for split in tl.static_range(SPLITS - 1):",
        ("bound",),
        SKINNY,
        GPU,
    ),
    Fault(
        "triton",
        "last tile skipped",
        KERNELS,
        "tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)\n",
        "tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N) - 1\n",
        ("unwritten elements",),
        PERSISTENT,
        GPU,
    ),
    Fault(
        "triton",
        "right half of a tile over its left one",
        KERNELS,
        "out.store([row, col + HALF]",
        "out.store([row, col]",
        ("unwritten elements",),
        PERSISTENT,
        GPU,
    ),
)

FAULTS = TRITON
