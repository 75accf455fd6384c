"""Attention: the implementations against the reference, and what each refuses."""

import math

import numpy as np
import pytest

from crosscheck import backends
from crosscheck.arrays import KINDS
from crosscheck.compare import judge
from reference.attention import expect
from reference.contract import Unsupported, scalar

OPERATORS = ("attention",)
BUILT = [name for name in backends.IMPLEMENTATIONS if backends.find(name).has("attention")]


def test_agreement(agreement, passes):
    passes(agreement)


@pytest.fixture(params=BUILT)
def implementation(request, pytestconfig):
    """The public function of an implementation, its best variant, and its arrays."""
    backend, tier = backends.find(request.param), pytestconfig.tier
    if reason := backend.unavailable(tier):
        pytest.skip(reason)
    best = backend.best("attention", "float16", pytestconfig.gpu)
    return backend.function("attention", best, tier), KINDS[backend.kind(tier)](tier)


def draw(shape=(1, 2, 70, 64), dtype="float16", seed=0):
    return [a.astype(scalar(dtype)) for a in np.random.default_rng(seed).standard_normal((3, *shape), np.float32)]


def check_right(found, arrays, inputs, **keywords):
    found = found if isinstance(found, (tuple, list)) else (found,)
    expected = expect(*inputs, **keywords)
    assert len(found) == len(expected)
    for array, wanted in zip(found, expected.values()):
        assert judge(arrays.get(array), wanted).error_over_bound <= 1


@pytest.mark.parametrize(
    "shapes, dtypes, keywords, message",
    (
        (((1, 1, 3, 64),) * 3, ("float32",) * 3, {}, "TypeError: q has dtype float32; accepted: float16 or bfloat16"),
        (
            ((1, 1, 3, 64),) * 3,
            ("float16", "float16", "bfloat16"),
            {},
            "TypeError: v has dtype bfloat16 and q has float16; accepted: one dtype for all",
        ),
        (((1, 1, 3, 96),) * 3, ("float16",) * 3, {}, "Unsupported: q has head_dim 96; built here: 64 or 128"),
        (
            ((1, 4, 3, 64), (1, 2, 3, 64), (1, 2, 3, 64)),
            ("float16",) * 3,
            {},
            "Unsupported: k has heads 2 and q has 4; built here: equal ones, no grouped heads",
        ),
        (
            ((1, 1, 3, 64), (1, 1, 5, 64), (1, 1, 5, 64)),
            ("float16",) * 3,
            {},
            "Unsupported: k has sequence 5 and q has 3; built here: equal ones, no lengths of their own",
        ),
        (
            ((1, 3, 64),) * 3,
            ("float16",) * 3,
            {},
            "ValueError: q has shape (1, 3, 64); accepted: four axes, (batch, heads, sequence, head_dim)",
        ),
        (((1, 1, 3, 64),) * 3, ("float16",) * 3, {"causal": 1}, "TypeError: causal is 1; accepted: True or False"),
        (
            ((1, 1, 3, 64),) * 3,
            ("float16",) * 3,
            {"scale": 0.0},
            "ValueError: scale is 0.0; accepted: a finite number above 0 that float32 can hold",
        ),
        (
            ((1, 1, 3, 64),) * 3,
            ("float16",) * 3,
            {"layout": "sbhd"},
            "ValueError: layout is 'sbhd'; accepted: bhsd or bshd",
        ),
    ),
)
def test_implementations_refuse_alike(implementation, shapes, dtypes, keywords, message):
    call, arrays = implementation
    if type(arrays).__name__ == "TorchArrays" and arrays.device == "cpu" and "bfloat16" in dtypes:
        pytest.skip("under its interpreter Triton refuses bfloat16 first")
    inputs = [arrays.put(np.ones(shape, scalar(dtype))) for shape, dtype in zip(shapes, dtypes)]
    with pytest.raises((TypeError, ValueError, Unsupported)) as caught:
        call(*inputs, **{"causal": True, **keywords})
    assert f"{type(caught.value).__name__}: {caught.value}" == message


def test_foreign_arrays(implementation):
    call, _ = implementation
    with pytest.raises(TypeError, match="q is a builtins.list; accepted: "):
        call([[1]], [[1]], [[1]], causal=True)


def test_unknown_variant(implementation):
    call, arrays = implementation
    with pytest.raises(ValueError, match="variant is 'fastest'; accepted: "):
        call(*map(arrays.put, draw()), causal=True, variant="fastest")


@pytest.mark.parametrize("shape", ((0, 2, 5, 64), (2, 0, 5, 64), (2, 2, 0, 64)))
def test_nothing_to_do(implementation, shape):
    call, arrays = implementation
    out, lse = call(*map(arrays.put, draw(shape)), causal=True, return_lse=True)
    assert arrays.get(out).shape == shape and arrays.get(lse).shape == shape[:3]


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("layout", ("bhsd", "bshd"))
def test_heads_lie_apart_in_either_layout(implementation, layout, causal):
    call, arrays = implementation
    inputs = draw((2, 3, 70, 64) if layout == "bhsd" else (2, 70, 3, 64))
    keywords = {"causal": causal, "layout": layout, "return_lse": True}
    check_right(call(*map(arrays.put, inputs), **keywords), arrays, inputs, **keywords)


@pytest.mark.parametrize("scale", (None, 1.0, 2.0**-9))
def test_scale(implementation, scale):
    call, arrays = implementation
    inputs = draw((1, 1, 40, 128))
    check_right(call(*map(arrays.put, inputs), causal=False, scale=scale), arrays, inputs, causal=False, scale=scale)


def test_a_single_key_is_its_value(implementation):
    call, arrays = implementation
    q, k, v = draw((2, 2, 1, 64))
    out, lse = call(*map(arrays.put, (q, k, v)), causal=True, return_lse=True)
    assert np.array_equal(arrays.get(out), v)
    scores = (q.astype(np.float64) * k).sum(-1) / math.sqrt(64)
    assert np.allclose(arrays.get(lse), scores, rtol=1e-5, atol=1e-6)


def test_out_is_returned(implementation):
    call, arrays = implementation
    if type(arrays).__name__ == "JaxArrays":
        pytest.skip("JAX arrays are written through a jax.Ref")
    inputs = draw()
    q, k, v = map(arrays.put, inputs)
    out, lse = arrays.put(np.zeros((1, 2, 70, 64), "f2")), arrays.put(np.zeros((1, 2, 70), "f4"))
    assert call(q, k, v, causal=True, out=out) is out
    check_right(out, arrays, inputs, causal=True)
    found = call(q, k, v, causal=True, return_lse=True, out=(out, lse))
    assert found[0] is out and found[1] is lse
    check_right(found, arrays, inputs, causal=True, return_lse=True)
    with pytest.raises(ValueError, match="out overlaps q; accepted: memory of its own"):
        call(q, k, v, causal=True, out=q)
    with pytest.raises(ValueError, match=r"out has length 1; accepted: 2, \(out, lse\)"):
        call(q, k, v, causal=True, return_lse=True, out=out)


@pytest.mark.parametrize("offset", (1, 4))
def test_misaligned_views(implementation, offset):
    """A view that starts off a 16-byte boundary is contiguous all the same."""
    call, arrays = implementation
    if type(arrays).__name__ == "JaxArrays":
        pytest.skip("JAX arrays have no views")
    shape = (1, 1, 33, 64)
    values = draw((1, 1, 34, 64))
    view = lambda array: array.reshape(-1)[offset : offset + math.prod(shape)].reshape(shape)
    found = call(*(view(arrays.put(array)) for array in values), causal=True, variant=None)
    check_right(found, arrays, [view(array) for array in values], causal=True)


@pytest.mark.parametrize(
    "sequence, causal", ((63, True), (64, False), (65, True), (127, False), (128, True), (129, False))
)
def test_edges_of_tiles(implementation, sequence, causal):
    """Queries and keys end with a tile, before it and behind it."""
    call, arrays = implementation
    inputs = draw((1, 2, sequence, 64), seed=sequence)
    keywords = {"causal": causal, "return_lse": True}
    check_right(call(*map(arrays.put, inputs), **keywords), arrays, inputs, **keywords)


def test_cuda_takes_the_rung_that_the_arrays_allow(pytestconfig):
    from cupy_impl import attention
    from reference.contract import ArrayInfo, row_major

    info = lambda address=0, shape=(1, 2, 70, 64): ArrayInfo(shape, "float16", row_major(shape), "cuda:0", address)
    rungs = {v.name: v for v in attention.VARIANTS["attention"]}
    for name in ("2_tiled", "3_async", "4_mma"):
        with pytest.raises(Unsupported, match="an array begins at no multiple of 16 bytes"):
            attention.plan(info(), info(2), info(), info(), causal=True, variant=rungs[name])
    (launch,) = attention.plan(*[info()] * 4, causal=True, variant=rungs["4_mma"])
    assert launch.grid == (4, 1, 1) and launch.shared_bytes == 5 * 64 * 64 * 2
    big = info(shape=(1, 1, 1 << 16, 64))
    with pytest.raises(Unsupported, match="the scores take 17179869184 bytes; 1_naive takes 4294967296 or fewer"):
        attention.plan(*[big] * 4, causal=True, variant=rungs["1_naive"])
