"""Faults put into the real Pallas kernels of matmul; each has to come out of the check as a ``fail``."""

from crosscheck.faults import Fault

KERNELS, TILES = "pallas_impl/matmul.py", "pallas_impl/matmul_tiles.py"
TAILS = ("matmul-float16-127x129x65-ta-bias-gelu",)
SINGLE = ("matmul-float32-65x127x129-bias-gelu",)
TURNED = ("matmul-float32-64x65x128-tb-bias-gelu_tanh-outliers",)
TANH = ("matmul-float16-65x63x127-ta-tb-bias-gelu_tanh-outliers",)

PALLAS = (
    Fault(
        "pallas",
        "last step of K forgotten",
        TILES,
        "return pl.cdiv(self.problem.k, self.config.tile_k)",
        "return max(1, self.problem.k // self.config.tile_k)",
        ("bound",),
        TAILS,
    ),
    Fault(
        "pallas",
        "padded with 1 instead of 0",
        KERNELS,
        "zip(shape, array.shape)])",
        "zip(shape, array.shape)], constant_values=1)",
        ("bound",),
        ("matmul-bfloat16-63x65x129-bias-gelu_tanh-outliers",),
    ),
    Fault(
        "pallas",
        "last tiles left out",
        KERNELS,
        'count = pl.cdiv(grid[0] * grid[1] - block, lax.axis_size("block"))',
        'count = lax.div(grid[0] * grid[1] - block, lax.axis_size("block"))',
        ("bound", "unwritten elements"),
        TAILS,
    ),
    Fault(
        "pallas",
        "bias of the first columns everywhere",
        TILES,
        "self.bias.at[to[1]]",
        "self.bias.at[pl.ds(j * width, width)]",
        ("bound",),
        TAILS,
    ),
    Fault(
        "pallas",
        "rounded before the epilogue",
        TILES,
        "j * width : (j + 1) * width]",
        "j * width : (j + 1) * width].astype(self.a.dtype).astype(jnp.float32)",
        ("bound",),
        TAILS,
    ),
    Fault(
        "pallas",
        "erfc short of a power",
        TILES,
        "ERFC[-2::-1]",
        "ERFC[-2:0:-1]",
        ("bound",),
        TAILS,
    ),
    Fault(
        "pallas",
        "tanh form's cube ten times too large",
        TILES,
        "0.044715 * factor",
        "0.44715 * factor",
        ("bound",),
        TANH,
    ),
    Fault(
        "pallas",
        "16 bits where IEEE float32 was promised",
        KERNELS,
        "left = plgpu.load(a.at[k], layout=DOWN, optimized=False)",
        "left = plgpu.load(a.at[k], layout=DOWN, optimized=False).astype(jnp.bfloat16).astype(jnp.float32)",
        ("bound",),
        SINGLE,
    ),
    Fault(
        "pallas",
        "B turned over A",
        KERNELS,
        "_turned(b, turned.at[1])",
        "_turned(b, turned.at[0])",
        ("bound", "race detector"),
        TURNED,
    ),
)
