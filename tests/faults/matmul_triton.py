"""Faults put into Triton's real matmul kernels; each has to come out of the check as a ``fail``."""

from crosscheck.faults import Fault

SOURCE = "triton_impl/matmul.py"
TILED = ("matmul-float16-127x129x65-ta-bias-gelu",)
SPLIT = ("matmul-float16-65x63x4096-ta-tb-bias-outliers", "matmul-float32-129x65x1023-one_sided")
DESCRIPTORS = ("matmul-float16-64x64x128-tb-one_sided",)
PERSISTENT = ("matmul-float16-255x128x8192-gelu-one_sided", "matmul-float16-64x8192x128-ta-tb-constant")

TRITON = (
    Fault(
        "triton",
        "K's tail of A unmasked",  # times B's zeros: only a NaN tells
        SOURCE,
        "a_inside & (at + along < k)[None, :]",
        "a_inside",
        ("bound",),
        ("matmul-float16-129x1x2-bias-gelu-nan",),
    ),
    Fault(
        "triton",
        "a step of K too few",
        SOURCE,
        "in tl.range(start, tl.minimum(start + steps * BLOCK_K, k), BLOCK_K)",
        "in tl.range(start, tl.minimum(start + steps * BLOCK_K, k - 1), BLOCK_K)",
        ("bound",),
        TILED,
    ),
    Fault(
        "triton",
        "rows past the end stored",
        SOURCE,
        "mask=(row < m)[:, None] & (col < n)[None, :]",
        "mask=(col < n)[None, :]",
        ("guard bands",),
        TILED,
    ),
    Fault(
        "triton",
        "the height of a whole group for the last one's",
        SOURCE,
        "height = tl.minimum(rows - first, GROUP)",
        "height = GROUP",
        ("unwritten elements", "guard bands"),
        TILED,
    ),
    Fault(
        "triton",
        "erf without its square root",
        SOURCE,
        "tl.erf(z * 0.7071067811865476)",
        "tl.erf(z)",
        ("bound",),
        TILED,
    ),
    Fault(
        "triton",
        "the cube forgotten",
        SOURCE,
        " + -0.10294323958002349 * (z * z)",
        "",
        ("bound",),
        ("matmul-float16-65x63x127-ta-tb-bias-gelu_tanh-outliers",),
    ),
    Fault(
        "triton",
        "no activation where there is a bias",
        SOURCE,
        "        z = 0.5 * z * (1 + tl.erf(z * 0.7071067811865476))",
        "        z = tl.where(BIAS, z, 0.5 * z * (1 + tl.erf(z * 0.7071067811865476)))",
        ("bound",),
        TILED,
    ),
    Fault(
        "triton",
        "the last part not added",
        SOURCE,
        "tl.static_range(SPLITS)",
        "tl.static_range(SPLITS - 1)",
        ("bound",),
        SPLIT,
    ),
    Fault(
        "triton",
        "all parts in one place",
        SOURCE,
        "at = (tl.program_id(1) * tl.cast(m, tl.int64) + row)[:, None]",
        "at = row[:, None]",
        ("bound",),
        SPLIT,
    ),
    Fault(
        "triton",
        "bias in every part",
        SOURCE,
        "    if SPLITS == 1:\n        z = _finish",
        "    if SPLITS > 0:\n        z = _finish",
        ("bound",),
        SPLIT[:1],
    ),
    Fault(
        "triton",
        "coordinates of B exchanged",
        SOURCE,
        "b.load([col, at]).T",
        "b.load([at, col]).T",
        ("bound",),
        DESCRIPTORS,
    ),
    Fault(
        "triton",
        "16-bit accumulation",
        SOURCE,
        "acc = tl.dot(left, right, acc, input_precision=PRECISION)",
        "acc = tl.dot(left, right, acc, input_precision=PRECISION).to(tl.float16).to(tl.float32)",
        ("bound",),
        PERSISTENT[:1],
    ),
    Fault(
        "triton",
        "every other tile",
        SOURCE,
        "tl.num_programs(0), flatten=True",
        "2 * tl.num_programs(0), flatten=True",
        ("unwritten elements",),
        PERSISTENT[1:],
    ),
    Fault(
        "triton",
        "the second half where the first one is",
        SOURCE,
        "out.store([row, col + HALF]",
        "out.store([row, col]",
        ("unwritten elements",),
        PERSISTENT[1:],
    ),
)
