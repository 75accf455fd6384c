"""Attention: the contract's refusals, the reference, and the blockwise form it derives."""

import numpy as np
import pytest

from reference.attention import blockwise, check, expect, expect_at, outputs
from reference.contract import ArrayInfo, Unsupported, scalar

Q = ArrayInfo((2, 3, 5, 64), "float16", (960, 320, 64, 1), "cuda:0", 1 << 20)
K, V, OUT = (Q._replace(address=1 << bits) for bits in (21, 22, 23))
LSE = ArrayInfo((2, 3, 5), "float32", (15, 5, 1), "cuda:0", 1 << 24)
BSHD = "four axes, (batch, sequence, heads, head_dim)"


def all_of(**change):
    return {"q": Q._replace(**change), "k": K._replace(**change), "v": V._replace(**change)}


@pytest.mark.parametrize(
    "change, error, message",
    [
        (all_of(dtype="float32"), TypeError, "q has dtype float32; accepted: float16 or bfloat16"),
        (
            {"v": V._replace(dtype="bfloat16")},
            TypeError,
            "v has dtype bfloat16 and q has float16; accepted: one dtype for all",
        ),
        ({"causal": None}, TypeError, "causal is None; accepted: True or False"),
        ({"causal": "bottom-right"}, TypeError, "causal is 'bottom-right'; accepted: True or False"),
        ({"layout": "sbhd"}, ValueError, "layout is 'sbhd'; accepted: bhsd or bshd"),
        ({"scale": 0.0}, ValueError, "scale is 0.0; accepted: a finite number above 0 that float32 can hold"),
        ({"scale": -1}, ValueError, "scale is -1; accepted: a finite number above 0 that float32 can hold"),
        ({"scale": float("nan")}, ValueError, "scale is nan; accepted: a finite number above 0 that float32 can hold"),
        ({"scale": "auto"}, TypeError, "scale is 'auto'; accepted: a finite number above 0 that float32 can hold"),
        (
            {"q": Q._replace(shape=(6, 5, 64))},
            ValueError,
            "q has shape (6, 5, 64); accepted: four axes, (batch, heads, sequence, head_dim)",
        ),
        ({"k": K._replace(shape=(5, 64)), "layout": "bshd"}, ValueError, f"k has shape (5, 64); accepted: {BSHD}"),
        (
            {"k": K._replace(shape=(2, 1, 5, 64)), "v": V._replace(shape=(2, 1, 5, 64))},
            Unsupported,
            "k has heads 1 and q has 3; built here: equal ones, no grouped heads",
        ),
        (
            {"k": K._replace(shape=(2, 3, 7, 64)), "v": V._replace(shape=(2, 3, 7, 64))},
            Unsupported,
            "k has sequence 7 and q has 5; built here: equal ones, no lengths of their own",
        ),
        (
            {"v": V._replace(shape=(2, 3, 7, 64)), "layout": "bshd"},
            Unsupported,
            "v has heads 7 and q has 5; built here: equal ones, no grouped heads",
        ),
        (
            {"k": K._replace(shape=(1, 3, 5, 64))},
            ValueError,
            "k has shape (1, 3, 5, 64) and q has (2, 3, 5, 64); accepted: equal shapes",
        ),
        (
            {"v": V._replace(shape=(2, 3, 5, 128))},
            ValueError,
            "v has shape (2, 3, 5, 128) and q has (2, 3, 5, 64); accepted: equal shapes",
        ),
        (all_of(shape=(2, 3, 5, 96)), Unsupported, "q has head_dim 96; built here: 64 or 128"),
        (all_of(shape=(2, 3, 5, 256)), Unsupported, "q has head_dim 256; built here: 64 or 128"),
        (
            {"k": K._replace(strides=(960, 64, 192, 1))},
            ValueError,
            "k has strides (960, 64, 192, 1); accepted: contiguous, (960, 320, 64, 1)",
        ),
        (
            {"v": V._replace(device="cuda:1")},
            ValueError,
            "v is on cuda:1 and q on cuda:0; accepted: one device for all",
        ),
        (all_of(device="cpu"), ValueError, "q is on cpu; accepted: arrays on a cuda device"),
        ({"out": [OUT]}, ValueError, "out has length 1; accepted: 2, (out, lse)"),
        ({"out": [OUT, LSE], "return_lse": False}, ValueError, "out has length 2; accepted: 1, (out)"),
        ({"out": [OUT, LSE._replace(dtype="float16")]}, TypeError, "lse has dtype float16; accepted: float32"),
        ({"out": [OUT, LSE._replace(shape=(2, 5, 3))]}, ValueError, "lse has shape (2, 5, 3); accepted: (2, 3, 5)"),
        ({"out": [Q, LSE]}, ValueError, "out overlaps q; accepted: memory of its own"),
        (
            {"out": [OUT, LSE._replace(address=OUT.address)]},
            ValueError,
            "lse overlaps out; accepted: memory of its own",
        ),
    ],
)
def test_refusals(change, error, message):
    with pytest.raises(error) as caught:
        check(**({"q": Q, "k": K, "v": V, "causal": True, "return_lse": True} | change))
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["mask", "dropout_p"])
def test_no_masks_and_no_dropout(name):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        check(Q, K, V, causal=True, **{name: None})


def test_accepted():
    check(Q, K, V, causal=False, scale=0.25, return_lse=True, out=[OUT, LSE])
    check(*(info._replace(shape=(2, 3, 0, 64)) for info in (Q, K, V)), causal=True)
    check(*(info._replace(shape=(2, 3, 5, 128), strides=None) for info in (Q, K, V)), causal=np.True_, layout="bshd")


def test_outputs_in_order():
    assert outputs(Q, "bshd", True) == {"out": (Q.shape, "float16"), "lse": ((2, 5, 3), "float32")}
    assert list(outputs(Q)) == ["out"]


def drawn(sequence, dtype="float16", heads=(1, 2), seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((*heads, sequence, 64)).astype(scalar(dtype)) for _ in "qkv"]


def plainly(q, k, v, causal, scale):
    """The definition, a query at a time, for (sequence, head_dim) in float64."""
    out, lse = np.empty_like(q), np.empty(len(q))
    for i in range(len(q)):
        last = i + 1 if causal else len(k)
        e = np.exp(scale * (k[:last] @ q[i]))
        out[i], lse[i] = e @ v[:last] / e.sum(), np.log(e.sum())
    return out, lse


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("sequence", [1, 2, 7, 65])
def test_what_is_expected(causal, scale, sequence):
    q, k, v = drawn(sequence, heads=(2, 3))
    found = expect(q, k, v, causal=causal, scale=scale, return_lse=True)
    for head in np.ndindex(2, 3):
        out, lse = plainly(*(x[head].astype(np.float64) for x in (q, k, v)), causal, 1 / 8 if scale is None else scale)
        assert np.allclose(found["out"].value[head], out, rtol=1e-12, atol=1e-13)
        assert np.allclose(found["lse"].value[head], lse, rtol=1e-12, atol=1e-13)


def test_layouts_differ_in_order_alone():
    q, k, v = drawn(9, heads=(2, 3))
    one = expect(q, k, v, causal=True, return_lse=True)
    turned = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    other = expect(*turned, causal=True, layout="bshd", return_lse=True)
    assert np.array_equal(other["out"].value, one["out"].value.swapaxes(1, 2))
    assert np.array_equal(other["out"].bound, one["out"].bound.swapaxes(1, 2))
    assert np.array_equal(other["lse"].value, one["lse"].value)


def test_some_queries():
    q, k, v = drawn(20, heads=(2, 3))
    index = np.array([1, 0, 1, 0]), np.array([2, 0, 2, 1]), np.array([19, 0, 3, 7])
    whole = expect(q, k, v, causal=True, return_lse=True)
    part = expect_at(q, k, v, index, causal=True)
    for name in ("out", "lse"):
        assert np.allclose(part[name].value, whole[name].value[index], rtol=1e-13)
        assert np.allclose(part[name].bound, whole[name].bound[index], rtol=1e-9)


def test_no_queries():
    q, k, v = drawn(0)
    found = expect(q, k, v, causal=True, return_lse=True)
    assert found["out"].value.shape == (1, 2, 0, 64) and found["lse"].value.shape == (1, 2, 0)


def test_nan_where_it_is_seen():
    q, k, v = drawn(6)
    q[0, 0, 2, 5] = k[0, 1, 3, 5] = np.nan
    found = expect(q, k, v, causal=True, return_lse=True)
    seen = np.array([[False, False, True, False, False, False], [False, False, False, True, True, True]])
    assert np.array_equal(np.isnan(found["lse"].value[0]), seen)
    assert np.array_equal(np.isnan(found["out"].value[0]), np.repeat(seen[..., None], 64, axis=2))
    assert np.isfinite(found["out"].bound[0][~seen]).all() and np.isfinite(found["lse"].bound[0][~seen]).all()


@pytest.mark.parametrize("dtype, ulp", [("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_the_bounds_of_a_query(dtype, ulp):
    """The docstring's formulas for the query in the middle, from the definition."""
    q, k, v = drawn(9, dtype, heads=(1, 1))
    found = expect(q, k, v, causal=True, return_lse=True)
    q, k, v = (x[0, 0].astype(np.float64) for x in (q, k, v))
    u, n, norm = 2.0**-24, 5, lambda x: np.sqrt((x * x).sum(axis=0))
    spread = lambda terms: np.maximum(abs(terms.sum(axis=0)), norm(terms))  # up to 64 terms are one step
    chain = lambda n: 6 * n**0.5 + n / 4
    k, v, s = k[:n], v[:n], q[4] @ k[:n].T / 8
    m, e = s.max(), np.exp(s - s.max())
    p, lse = e / e.sum(), m + np.log(e.sum())
    d = u * chain(64) * spread(q[4][:, None] * k.T) / 8 + u * (2 * abs(s) + 2 * abs(m) + 8)
    assert np.isclose(
        found["lse"].bound[0, 0, 4], p @ d + u * (2 * n**0.5 + n / 4 + 8 + 2 * abs(lse) + 2 * abs(m)), rtol=1e-9
    )
    pv, out = p[:, None] * v, p @ v
    wanted = np.sqrt(p @ d**2) * np.sqrt(p @ (v - out) ** 2) + 4 * ulp * norm(pv)
    wanted += u * chain(n) * spread(pv) + u * (8 + 2 * n**0.5 + n / 4) * abs(out)
    if dtype == "float16":
        wanted += np.minimum(e, 2.0**-25) @ abs(v) / e.sum()
    assert np.allclose(found["out"].bound[0, 0, 4], wanted, rtol=1e-9)


# The blockwise form


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tile_q, tile_k", [(1, 1), (16, 16), (16, 24), (24, 16), (7, 64), (64, 7), (128, 128)])
def test_blockwise_gives_the_whole_for_any_tiles(causal, tile_q, tile_k):
    q, k, v = (x[0, 0].astype(np.float64) for x in drawn(65, seed=1))
    q *= 20  # scores that differ enough for the maximum to matter
    with np.errstate(all="raise", under="ignore"):
        out, lse = blockwise(q, k, v, causal=causal, scale=0.125, tile_q=tile_q, tile_k=tile_k)
    expected = plainly(q, k, v, causal, 0.125)
    assert np.allclose(out, expected[0], rtol=1e-11, atol=1e-12) and np.allclose(lse, expected[1], rtol=1e-12)


def test_blockwise_survives_scores_that_overflow():
    q, k, v = (x[0, 0].astype(np.float64) for x in drawn(33, seed=2))
    out, lse = blockwise(q * 1e4, k, v, causal=True, scale=1.0, tile_q=8, tile_k=8)
    assert np.isfinite(out).all() and np.isfinite(lse).all() and lse.max() > 1e4


def test_blockwise_in_float32_is_within_the_bound():
    from crosscheck.compare import judge

    q, k, v = drawn(130, seed=3)
    out, lse = blockwise(
        *(x[0, 0].astype(np.float32) for x in (q, k, v)), causal=True, scale=np.float32(0.125), tile_q=64, tile_k=64
    )
    expected = expect(q, k, v, causal=True, return_lse=True)
    assert out.dtype == lse.dtype == np.float32
    part = {name: e._replace(value=e.value[0, 0], bound=e.bound[0, 0]) for name, e in expected.items()}
    assert judge(out.astype(np.float16), part["out"]).error_over_bound < 0.6
    assert judge(lse, part["lse"]).error_over_bound < 0.6
