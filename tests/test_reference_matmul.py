"""Matmul: the contract's refusals, the reference, its activations and its tile arithmetic."""

import math

import numpy as np
import pytest

from reference.contract import ArrayInfo, scalar
from reference.matmul import accumulation, check, erfc, expect, gelu, gelu_tanh, traffic

A = ArrayInfo((3, 4), "float16", (4, 1), "cuda:0", 1 << 20)
B = ArrayInfo((4, 5), "float16", (5, 1), "cuda:0", 1 << 21)
BIAS = ArrayInfo((5,), "float16", (1,), "cuda:0", 1 << 22)
OUT = ArrayInfo((3, 5), "float16", (5, 1), "cuda:0", 1 << 23)
HALVES = "accepted: float16, bfloat16 or float32"
SINGLE = {name: info._replace(dtype="float32") for name, info in (("a", A), ("b", B), ("bias", BIAS))}

APART = "accepted: row-major, {} or rows further apart, or a transposed view, {} or cols further apart"
STRIDES = {"a": APART.format("(4, 1)", "(1, 3)"), "b": APART.format("(5, 1)", "(1, 4)")}


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"a": A._replace(dtype="float64")}, TypeError, f"a has dtype float64; {HALVES}"),
        ({"b": B._replace(dtype="int8")}, TypeError, f"b has dtype int8; {HALVES}"),
        (
            {"b": B._replace(dtype="float32")},
            TypeError,
            "b has dtype float32 and a has float16; accepted: one dtype for all",
        ),
        (
            {"bias": BIAS._replace(dtype="float32")},
            TypeError,
            "bias has dtype float32 and a has float16; accepted: one dtype for all",
        ),
        ({"out_dtype": "bfloat16"}, TypeError, "out_dtype is 'bfloat16'; accepted: float16 or float32"),
        (SINGLE | {"out_dtype": "float16"}, TypeError, "out_dtype is 'float16'; accepted: float32"),
        ({"activation": "relu"}, ValueError, "activation is 'relu'; accepted: None, gelu or gelu_tanh"),
        ({"precision": "bf16x3"}, ValueError, "precision is 'bf16x3'; accepted: ieee or tf32"),
        (
            {"precision": "tf32"},
            ValueError,
            "precision is 'tf32' and a has dtype float16; accepted: tf32 with float32",
        ),
        ({"a": A._replace(shape=(12,), strides=(1,))}, ValueError, "a has shape (12,); accepted: two axes, (M, K)"),
        ({"b": B._replace(shape=(1, 4, 5))}, ValueError, "b has shape (1, 4, 5); accepted: two axes, (K, N)"),
        (
            {"a": A._replace(shape=(1, 3, 4)), "transpose_a": True},
            ValueError,
            "a has shape (1, 3, 4); accepted: two axes, (K, M)",
        ),
        (
            {"b": B._replace(shape=(20,)), "transpose_b": True},
            ValueError,
            "b has shape (20,); accepted: two axes, (N, K)",
        ),
        (
            {"a": A._replace(strides=(8, 2))},
            ValueError,
            f"a has strides (8, 2); {STRIDES['a']}",
        ),
        (
            {"b": B._replace(strides=(0, 1))},
            ValueError,
            f"b has strides (0, 1); {STRIDES['b']}",
        ),
        (
            {"b": B._replace(strides=(-5, 1))},
            ValueError,
            f"b has strides (-5, 1); {STRIDES['b']}",
        ),
        (
            {"b": B._replace(shape=(6, 5))},
            ValueError,
            "b has shape (6, 5), K = 6, and a has (3, 4), K = 4; accepted: one K for both",
        ),
        (
            {"transpose_a": True},
            ValueError,
            "b has shape (4, 5), K = 4, and a has (3, 4), K = 3; accepted: one K for both",
        ),
        (
            {"transpose_b": True},
            ValueError,
            "b has shape (4, 5), K = 5, and a has (3, 4), K = 4; accepted: one K for both",
        ),
        (
            {"a": A._replace(shape=(0, 4))},
            ValueError,
            "a has shape (0, 4), M = 0, and b has (4, 5), N = 5; accepted: M and N of 1 or more",
        ),
        (
            {"b": B._replace(shape=(4, 0)), "bias": None},
            ValueError,
            "a has shape (3, 4), M = 3, and b has (4, 0), N = 0; accepted: M and N of 1 or more",
        ),
        ({"bias": BIAS._replace(shape=(3,))}, ValueError, "bias has shape (3,); accepted: (5,), N"),
        ({"bias": BIAS._replace(shape=(1, 5))}, ValueError, "bias has shape (1, 5); accepted: (5,), N"),
        ({"bias": BIAS._replace(strides=(2,))}, ValueError, "bias has stride 2; accepted: contiguous, stride 1"),
        (
            {"b": B._replace(device="cuda:1")},
            ValueError,
            "b is on cuda:1 and a on cuda:0; accepted: one device for all",
        ),
        ({"a": A._replace(device="cpu")}, ValueError, "a is on cpu; accepted: arrays on a cuda device"),
        ({"out": OUT._replace(dtype="float32")}, TypeError, "out has dtype float32; accepted: float16"),
        ({"out": OUT, "out_dtype": "float32"}, TypeError, "out has dtype float16; accepted: float32"),
        ({"out": OUT._replace(shape=(5, 3))}, ValueError, "out has shape (5, 3); accepted: (3, 5)"),
        ({"out": OUT._replace(strides=(1, 3))}, ValueError, "out has strides (1, 3); accepted: contiguous, (5, 1)"),
        ({"out": OUT._replace(address=B.address + 38)}, ValueError, "out overlaps b; accepted: memory of its own"),
        # A row-strided view reaches further than its elements are many.
        (
            {"a": A._replace(strides=(100, 1)), "out": OUT._replace(address=A.address + 400)},
            ValueError,
            "out overlaps a; accepted: memory of its own",
        ),
    ],
)
def test_refusals(change, error, message):
    with pytest.raises(error) as caught:
        check(**({"a": A, "b": B, "bias": BIAS} | change))
    assert str(caught.value) == message


def test_accepted():
    assert check(A, B) == (3, 5, 4)
    assert check(A._replace(strides=(1, 3)), B._replace(strides=(1, 9)), out=OUT) == (3, 5, 4)
    assert check(A._replace(shape=(4, 3), strides=(8, 1)), B._replace(shape=(5, 4)), True, True) == (3, 5, 4)
    assert check(A._replace(shape=(3, 0)), B._replace(shape=(0, 5)), bias=BIAS, activation="gelu") == (3, 5, 0)
    assert check(A._replace(shape=(1, 4), strides=(1, 1)), B._replace(shape=(4, 1), strides=(1, 7))) == (1, 1, 4)
    assert check(*(info._replace(strides=None, address=None, device=None) for info in (A, B))) == (3, 5, 4)
    assert check(**SINGLE, precision="tf32", out_dtype="float32") == (3, 5, 4)


def test_what_is_expected():
    a, b = np.array([[1, 2], [3, 4]], np.float16), np.array([[5, 6], [7, 8]], np.float16)
    bias = np.array([1, -1], np.float16)
    assert np.array_equal(expect(a, b)["out"].value, [[19, 22], [43, 50]])
    assert np.array_equal(expect(a, b, True, False)["out"].value, [[26, 30], [38, 44]])
    assert np.array_equal(expect(a, b, False, True, bias)["out"].value, [[18, 22], [40, 52]])
    assert np.array_equal(
        expect(a, b, activation="gelu_tanh")["out"].value, gelu_tanh(np.array([[19.0, 22], [43, 50]]))
    )
    assert expect(a, b, out_dtype="float32")["out"].dtype == "float32" and expect(a, b)["out"].dtype == "float16"


def test_no_terms():
    out = expect(np.empty((2, 0), np.float32), np.empty((0, 3), np.float32), bias=np.array([1, 2, 3], np.float32))[
        "out"
    ]
    assert np.array_equal(out.value, [[1, 2, 3]] * 2)
    assert not expect(np.empty((2, 0), np.float32), np.empty((0, 3), np.float32))["out"].bound.any()


def test_nan_stays_in_its_row():
    a, b = np.ones((3, 4), np.float32), np.ones((4, 2), np.float32)
    a[1, 2] = np.nan
    assert np.array_equal(np.isnan(expect(a, b)["out"].value), [[False] * 2, [True] * 2, [False] * 2])


def test_accumulation_knows_the_range_of_partial_sums():
    """Up to 64 and back to 0: no error of a sum that large can be in proportion to the result."""
    terms = np.r_[np.ones(64), -np.ones(64)]
    bound = accumulation(terms[None], np.ones((128, 1)), truncating=False)[0, 0]
    assert np.isclose(bound, 2.0**-24 * 6 * 128**0.5 * 64, rtol=1e-12)
    assert accumulation(terms[None], np.ones((128, 1)))[0, 0] > bound
    assert accumulation(terms[None], np.ones((128, 1)), False, np.array([[64]]))[0, 0] < bound


@pytest.mark.parametrize("dtype, precision", [("float32", "ieee"), ("float32", "tf32"), ("float16", "ieee")])
def test_only_ieee_is_held_to_ieee(dtype, precision):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(scalar(dtype)) for shape in ((8, 256), (256, 8)))
    ieee = expect(a.astype(np.float32), b.astype(np.float32))["out"].bound
    found = expect(a, b, precision=precision)["out"].bound
    least, most = {("float32", "ieee"): (1, 1), ("float16", "ieee"): (1.1, 10), ("float32", "tf32"): (100, 10**4)}[
        dtype, precision
    ]
    assert np.all(found >= least * ieee) and np.all(found <= most * ieee)


def test_the_bound_element_by_element():
    rng, u = np.random.default_rng(1), 2.0**-24
    a, b, bias = (rng.standard_normal(shape).astype(np.float16) for shape in ((2, 130), (130, 3), (3,)))
    found = expect(a, b, bias=bias, activation="gelu", out_dtype="float32")["out"]
    for i, j in np.ndindex(2, 3):
        p = a[i].astype(np.float64) * b[:, j].astype(np.float64)
        sums = [0, p[:64].sum(), p[:128].sum(), p.sum()]
        bound = u * (6 * 130**0.5 + 130 / 4) * max(max(sums) - min(sums), (p * p).sum() ** 0.5) + 130 * 2.0**-149
        z = p.sum() + float(bias[j])
        g = z / 2 * math.erfc(-z / 2**0.5)
        assert np.isclose(found.value[i, j], g, rtol=1e-12)
        assert np.isclose(found.bound[i, j], 1.13 * (bound + u * abs(z)) + u * (4 * abs(z) + 4 * abs(g)), rtol=1e-10)


# Activations


def test_erfc_against_its_integral():
    """erfc(x) = 2/sqrt(pi) times the integral of exp(-t^2) from x on, by Simpson's rule."""
    for x in (-3, -1, -0.1, 0, 0.5, 1, 2, 4, 6):
        t = np.linspace(x, x + 12, 200_001)
        weights = np.r_[1, np.tile([4, 2], 99_999), 4, 1]
        integral = (weights * np.exp(-t * t)).sum() * (t[1] - t[0]) / 3 * 2 / math.sqrt(math.pi)
        assert np.isclose(erfc(np.array([float(x)]))[0], integral, rtol=1e-12)


def test_erfc_keeps_shape_and_non_finite_values():
    assert np.array_equal(erfc(np.array([[np.inf, -np.inf, np.nan]])), [[0, 2, np.nan]], equal_nan=True)
    assert erfc(np.empty((0, 3))).shape == (0, 3)


@pytest.mark.parametrize("f", [gelu, gelu_tanh])
def test_activations(f):
    z = np.array([-40.0, -10, -1, 0, 1, 10, 40])
    g = f(z)
    assert np.allclose(g - f(-z), z, atol=1e-14)  # z/2 (1 + odd)
    assert np.isclose(g[4], {"gelu": 0.8413447460685429, "gelu_tanh": 0.8411919906082768}[f.__name__], rtol=1e-14)
    assert -1e-20 < g[1] < 0 and g[3] == 0 and np.isclose(g[5], 10, rtol=1e-15)
    slope = (f(z + 1e-6) - f(z - 1e-6)) / 2e-6
    dense = np.linspace(-8, 8, 100_001)
    assert abs(slope).max() < 1.13 and abs(np.diff(f(dense)) / np.diff(dense)).max() < 1.13


def test_gelu_in_the_tail():
    """z Phi(z) to full precision: 10 times the normal distribution's tail at 10, a published value."""
    assert np.isclose(gelu(np.array([-10.0]))[0], -10 * 7.619853024160527e-24, rtol=1e-12)


# Tile arithmetic


def test_traffic_of_one_tile_is_compulsory():
    assert traffic(128, 256, 64, 128, 256, 2) == 2 * (128 * 64 + 64 * 256 + 128 * 256)


def test_traffic_counted_tile_by_tile():
    m, n, k, tile_m, tile_n = 300, 200, 50, 128, 64
    reads = 0
    for i in range(0, m, tile_m):
        for j in range(0, n, tile_n):
            reads += min(tile_m, m - i) * k + k * min(tile_n, n - j)
    assert traffic(m, n, k, tile_m, tile_n, 2, 4) == 2 * reads + 4 * m * n


def test_a_square_tile_moves_the_fewest_bytes_for_its_area():
    moved = [traffic(4096, 4096, 4096, tile, 16384 // tile, 2) for tile in (32, 64, 128, 256, 512)]
    assert min(moved) == moved[2] and moved[0] == moved[4] > moved[1] == moved[3]
