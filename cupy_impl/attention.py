"""Attention in CUDA C++: ``cuda/attention/*.cu``. Contract and errors: ``reference/attention.py``."""

import math

import numpy as np

from cupy_impl import attention_hopper, device
from cupy_impl.launches import CXX_TYPES, NULL, Kernel, Launch, Workspace
from cupy_impl.rows import ceil_div
from reference.attention import DTYPES, check, outputs
from reference.contract import ArrayInfo, Unsupported, Variant, pick, row_major

PORTABLE, KEPT = ("sm_80",), {"spill_bytes": 0}

VARIANTS = {
    "attention": (
        Variant("1_naive", "three launches, all scores in memory", DTYPES, PORTABLE),
        Variant("2_tiled", "tiles of keys and values, the online softmax", DTYPES, PORTABLE, KEPT),
        Variant("3_async", "the next tile on its way by cp.async", DTYPES, PORTABLE, {**KEPT, "LDGSTS": ">0"}),
        Variant(
            "4_mma",
            "tensor cores by mma, P in registers",
            DTYPES,
            PORTABLE,
            {**KEPT, "HMMA": ">0", "LDGSTS": ">0"},
        ),
        *attention_hopper.VARIANTS,
    )
}

BLOCK = 128  # threads of rung 1
MOST_SCORES = 1 << 32  # bytes of all scores in rung 1
THREADS = 128  # of the other rungs
TILES = {"2_tiled": 32, "3_async": 32, "4_mma": 64}  # queries of a block, and keys of a tile

LAYOUT = np.dtype(
    [(name, np.int64) for name in ("batch", "head", "row")] + [(n, np.int32) for n in ("heads", "sequence")]
)


def layout_of(shape: tuple[int, ...], layout: str) -> np.void:
    """The kernels' ``Layout`` of contiguous arrays of a shape."""
    stride, length = dict(zip(layout, row_major(shape))), dict(zip(layout, shape))
    fields = stride["b"], stride["h"], stride["s"], length["h"], length["s"]
    return np.array([fields], LAYOUT).view(f"V{LAYOUT.itemsize}")[0]


def plan(
    q: ArrayInfo,
    k: ArrayInfo,
    v: ArrayInfo,
    out: ArrayInfo,
    lse: ArrayInfo | None = None,
    *,
    causal: bool,
    scale: float | None = None,
    layout: str = "bhsd",
    return_lse: bool = False,
    variant: Variant,
    multiprocessors: int = 132,
) -> tuple[Launch, ...]:
    """The launches of a call; multiprocessors: of the device, 132 an H200's.

    Raises Unsupported as the rungs' limits say.
    """
    length = dict(zip(layout, q.shape))
    heads, sequence, head_dim = length["b"] * length["h"], length["s"], length["d"]
    if heads * sequence == 0:
        return ()
    if variant in attention_hopper.VARIANTS:
        given = {"causal": causal, "scale": scale, "layout": layout}
        return attention_hopper.plan(q, k, v, out, lse, **given, variant=variant, multiprocessors=multiprocessors)
    rung = variant.name
    scaled = np.float32((1 / math.sqrt(head_dim) if scale is None else scale) * math.log2(math.e))
    where, last = layout_of(q.shape, layout), NULL if lse is None else "lse"
    defines = ("SCALAR", CXX_TYPES[q.dtype]), ("HEAD_DIM", str(head_dim)), ("CAUSAL", str(int(causal)))
    if rung == "1_naive":
        size = 4 * heads * sequence**2
        if size > MOST_SCORES:
            raise Unsupported(f"the scores take {size} bytes; {rung} takes {MOST_SCORES} or fewer")
        launch = lambda name, count, *arguments, **more: Launch(
            Kernel(f"attention/{rung}.cu", name, (*defines, ("BLOCK", str(BLOCK)))),
            (ceil_div(count, BLOCK), 1, 1),
            (BLOCK, 1, 1),
            (*arguments, where, np.int64(count)),
            **more,
        )
        scores = Workspace("scores", (heads, sequence, sequence), "float32")
        sums = Workspace("sums", (heads, sequence), "float32")
        return (
            launch("scores", heads * sequence**2, "q", "k", "scores", workspace=(scores, sums)),
            launch("exponentials", heads * sequence, "scores", "sums", last, scaled),
            launch("values", heads * sequence * head_dim, "scores", "sums", "v", "out"),
        )
    if any(info.address % 16 for info in (q, k, v, out)):
        raise Unsupported(f"an array begins at no multiple of 16 bytes; {rung} loads rows 16 bytes at a time")
    tile = TILES[rung]
    # Of rungs 3 and 4 the queries and two stages of keys and values, in rung 3 padded, with P beside them.
    padded = 5 * tile * (head_dim + 8) * 2 + tile * (tile + 1) * 4
    shared = {"2_tiled": 0, "3_async": padded, "4_mma": 5 * tile * head_dim * 2}[rung]
    return (
        Launch(
            Kernel(f"attention/{rung}.cu", "attention", defines),
            (heads * ceil_div(sequence, tile), 1, 1),
            (THREADS, 1, 1),
            ("q", "k", "v", "out", last, scaled, where),
            shared_bytes=shared,
        ),
    )


def attention(
    q,
    k,
    v,
    *,
    causal: bool,
    scale: float | None = None,
    layout: str = "bhsd",
    return_lse: bool = False,
    out=None,
    variant: str | None = None,
    runtime=device,
):
    """softmax(scale q k^T) v over each head's keys, on CuPy's current stream; returns out[, lse].

    q, k, v, out: (batch, heads, sequence, head_dim), with layout ``"bshd"`` (batch, sequence, heads, head_dim),
    contiguous. lse: (batch, heads, sequence), float32, the natural logarithm of the sum of the exponentials. causal: a
    query sees the keys up to its own position. scale: by default 1 / sqrt(head_dim). out: out, or (out, lse), written
    and returned where given. variant: a name in VARIANTS, by default the last one that the device and the arrays allow.
    runtime: ``cupy_impl.device``, or ``cupy_impl.host`` for NumPy arrays on a CPU.
    Raises TypeError, ValueError and Unsupported as the contract says.
    """
    arrays = {"q": q, "k": k, "v": v}
    infos = {name: runtime.describe(name, array) for name, array in arrays.items()}
    given = {"causal": causal, "scale": scale, "layout": layout, "return_lse": return_lse}
    several = isinstance(out, (tuple, list))
    targets = None if out is None else tuple(out) if several else (out,)
    names = ("out", "lse")
    described = targets and [
        runtime.describe(names[i] if i < len(names) else "out", array, written=True) for i, array in enumerate(targets)
    ]
    check(**infos, **given, out=described, platform=runtime.PLATFORM)
    wanted = outputs(infos["q"], layout, return_lse)
    best = pick(VARIANTS["attention"], variant, infos["q"].dtype, runtime.arch(q))
    if targets is None:
        targets = tuple(runtime.empty(shape, dtype, q) for shape, dtype in wanted.values())
    written = dict(zip(wanted, targets))
    infos |= {name: runtime.describe(name, array) for name, array in written.items()}
    below = () if variant else VARIANTS["attention"][: VARIANTS["attention"].index(best)][::-1]
    for i, rung in enumerate((best, *below)):
        try:
            launches = plan(**infos, **given, variant=rung, multiprocessors=runtime.multiprocessors(q))
            break
        except Unsupported:
            if i == len(below):
                raise
    if launches:
        runtime.launch(launches, arrays | written, rung)
    return targets if len(targets) > 1 else targets[0]
