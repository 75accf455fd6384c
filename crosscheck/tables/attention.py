"""Cases of attention."""

from typing import Iterator

import numpy as np

from crosscheck.case import Case, Operator, at_flat, flat, pairwise, some, whole
from crosscheck.distributions import draw
from reference.attention import DTYPES, expect, expect_at, outputs
from reference.contract import ArrayInfo, scalar

# The plain ones (one_sided: the values alone), and: scores up to 1e4 and more of either sign, all scores far below
# 0, scores that grow along the keys, NaN in one query, NaN in the later half of the keys.
DISTRIBUTIONS = (
    "normal",
    "one_sided",
    "outliers",
    "zeros",
    "constant",
    "logits",
    "below",
    "sorted",
    "nan_query",
    "nan_keys",
)

LENGTHS = (1, 2, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000, 1023, 1024, 1025, 4096, 16384)
HEADS = ((1, 1), (1, 3), (4, 16))
BENCH = (
    (16, 16, 1024, 64),
    (4, 16, 4096, 64),
    (16, 16, 1024, 128),
    (4, 16, 4096, 128),
    (2, 16, 8192, 128),
    (1, 16, 16384, 128),
)


def _case(
    dtype, batch, heads, sequence, head_dim, causal, distribution="normal", layout="bhsd", scale=None, lse=True,
    sets=("gpu",), seed=0,
):  # fmt: skip
    if distribution == "nan_keys" and not causal:
        distribution = "nan_query"  # without a mask every key is seen
    arguments: dict[str, object] = {"causal": causal}
    parts = [f"attention-{dtype}-{batch}x{heads}x{sequence}x{head_dim}", "causal" if causal else "full"]
    if layout != "bhsd":
        arguments["layout"] = layout
        parts.append(layout)
    if scale is not None:
        arguments["scale"] = scale
        parts.append(f"scale{scale:g}")
    if lse:
        arguments["return_lse"] = True
        parts.append("lse")
    if distribution != "normal":
        parts.append(distribution)
    shape = {"batch": batch, "heads": heads, "sequence": sequence, "head_dim": head_dim}
    return Case("-".join(parts), "attention", shape, dtype, arguments, distribution, seed, frozenset(sets))


def cases() -> Iterator[Case]:
    both = ("cpu", "gpu")
    for offset, dtype in enumerate(DTYPES):
        # A CPU's share, by hand.
        a, b = (64, 128) if offset == 0 else (128, 64)
        yield _case(dtype, 1, 1, 257, 64, True, "normal", sets=both)
        yield _case(dtype, 1, 3, 65, b, True, "sorted", "bshd", sets=both)
        yield _case(dtype, 2, 1, 128, a, False, "one_sided", sets=both)
        yield _case(dtype, 1, 2, 129, 64, False, "outliers", "bshd", sets=both)
        yield _case(dtype, 1, 1, 127, a, True, "logits", sets=both)
        yield _case(dtype, 1, 1, 130, 64, True, "below", sets=both)
        yield _case(dtype, 1, 1, 129, a, True, "nan_keys", sets=both)
        yield _case(dtype, 1, 1, 63, b, False, "nan_query", sets=both)
        yield _case(dtype, 2, 1, 1, b, True, "normal", sets=both)
        yield _case(dtype, 1, 1, 100, a, False, "constant", scale=0.5, sets=both)
        # Wider than tiles, and enough terms for a small accumulator to show.
        for distribution in DISTRIBUTIONS:
            for causal in (False, True):
                yield _case(dtype, 1, 2, 257, 64, causal, distribution)
                yield _case(dtype, 1, 1, 1025, 64, causal, distribution)
        yield _case(dtype, 1, 1, 4096, 128, True, "one_sided")
        yield _case(dtype, 1, 1, 0, 64, True)
    flags = (False, True)
    for pick in pairwise(
        sequence=LENGTHS, heads=HEADS, head_dim=(64, 128), dtype=DTYPES, causal=flags, layout=("bhsd", "bshd"),
        distribution=DISTRIBUTIONS,
    ):  # fmt: skip
        batch, heads = pick.pop("heads")
        yield _case(batch=batch, heads=heads, **pick)
    for shape in BENCH:
        for causal in (True, False):
            yield _case("bfloat16", *shape, causal, lse=False, sets=("performance",))
            yield _case("float16", *shape, causal, lse=False, sets=("performance",))


def _shape(case: Case) -> tuple[int, ...]:
    sizes = dict(zip("bhsd", (case.shape[axis] for axis in ("batch", "heads", "sequence", "head_dim"))))
    return tuple(sizes[axis] for axis in str(case.arguments.get("layout", "bhsd")))


def _arrays(case: Case):
    return dict.fromkeys("qkv", (_shape(case), case.dtype))


def _draw(case: Case) -> dict[str, np.ndarray]:
    layout, shape = str(case.arguments.get("layout", "bhsd")), _shape(case)
    kind, along = case.distribution, layout.index("s")
    q, k, v = {
        "one_sided": ("normal", "normal", "one_sided"),
        "below": ("one_sided", "one_sided", "normal"),
        "sorted": ("one_sided", "normal", "normal"),
    }.get(kind, ("normal",) * 3 if kind in ("logits", "nan_query", "nan_keys") else (kind,) * 3)
    inputs = draw(case, _arrays(case), {"q": q, "k": k, "v": v})
    middle = (slice(None),) * along + (shape[along] // 2,)
    later = (slice(None),) * along + (slice((shape[along] + 1) // 2, None),)
    if kind in ("logits", "below"):
        inputs["q"] *= scalar(case.dtype).type(100)
        inputs["k"] *= scalar(case.dtype).type(100 if kind == "logits" else -100)
    elif kind == "sorted":
        inputs["k"] = np.sort(inputs["k"], axis=along)
    elif kind == "nan_query":
        inputs["q"][middle] = np.nan
    elif kind == "nan_keys":
        inputs["k"][later] = np.nan
    return inputs


def _outputs(case: Case):
    layout, lse = str(case.arguments.get("layout", "bhsd")), "return_lse" in case.arguments
    return outputs(ArrayInfo(_shape(case), case.dtype), layout, lse)


def _sample(case: Case) -> dict[str, np.ndarray] | None:
    batch, heads, sequence, head_dim = (case.shape[axis] for axis in ("batch", "heads", "sequence", "head_dim"))
    queries = batch * heads * sequence
    if queries * sequence * head_dim <= 1 << 32 and whole(queries * head_dim):
        return None
    chosen = some(queries, case.seed)
    return {name: flat(chosen, head_dim if name == "out" else 1) for name in _outputs(case)}


def _expect(case: Case, inputs, at):
    if at is None:
        return expect(**inputs, **case.arguments)
    arguments = {name: value for name, value in case.arguments.items() if name != "return_lse"}
    *axes, head_dim = _shape(case)  # batch and, by layout, heads and sequence

    def out(rows):
        b, *hs = np.unravel_index(rows, axes)
        h, s = hs if arguments.get("layout", "bhsd") == "bhsd" else hs[::-1]
        return expect_at(**inputs, index=(b, h, s), **arguments)["out"]

    def lse(rows):
        index = np.unravel_index(rows, [case.shape[axis] for axis in ("batch", "heads", "sequence")])
        return expect_at(**inputs, index=index, **arguments)["lse"]

    of = {"out": (head_dim, out), "lse": (1, lse)}
    return {name: at_flat(index, *of[name]) for name, index in at.items()}


def _random(rng: np.random.Generator, dtype: str) -> Case:
    sequence, head_dim = int(2 ** rng.uniform(0, 7.6)), int(rng.choice([64, 128]))
    causal, distribution = bool(rng.integers(2)), str(rng.choice(DISTRIBUTIONS))
    layout = "bshd" if rng.integers(2) else "bhsd"
    scale = None if rng.integers(2) else float(np.float32(2.0 ** rng.uniform(-5, 0)))
    return _case(dtype, 1, 1, sequence, head_dim, causal, distribution, layout, scale, seed=int(rng.integers(1 << 30)))


OPERATORS = (
    Operator("attention", "attention", DTYPES, ("q", "k", "v"), _arrays, _outputs, _draw, _sample, _expect, _random),
)
