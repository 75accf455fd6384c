"""RMSNorm: the contract's refusals, the reference, and its gradients against finite differences."""

import numpy as np
import pytest

from reference.contract import ArrayInfo, round_once, scalar
from reference.rmsnorm import check, check_backward, expect, expect_backward, outputs, spread

X = ArrayInfo((3, 5), "float16", (5, 1), "cuda:0", 1 << 20)
RESIDUAL = X._replace(address=1 << 21)
W = ArrayInfo((5,), "float16", (1,), "cuda:0", 1 << 22)
Y = X._replace(address=1 << 23)
RSTD = ArrayInfo((3,), "float32", (1,), "cuda:0", 1 << 24)
POSITIVE = "accepted: a finite number above 0 that float32 can hold"


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"x": X._replace(dtype="float64")}, TypeError, "x has dtype float64; accepted: float32, float16 or bfloat16"),
        ({"x": X._replace(dtype="int16")}, TypeError, "x has dtype int16; accepted: float32, float16 or bfloat16"),
        (
            {"residual": RESIDUAL._replace(dtype="float32")},
            TypeError,
            "residual has dtype float32 and x has float16; accepted: one dtype for all",
        ),
        (
            {"weight": W._replace(dtype="bfloat16")},
            TypeError,
            "weight has dtype bfloat16; accepted: float16 or float32",
        ),
        (
            {"x": X._replace(dtype="float32"), "weight": W, "residual": None},
            TypeError,
            "weight has dtype float16; accepted: float32",
        ),
        ({"x": X._replace(shape=(15,))}, ValueError, "x has shape (15,); accepted: two axes, (rows, cols)"),
        ({"x": X._replace(shape=(3, 0))}, ValueError, "x has shape (3, 0); accepted: cols of 1 or more"),
        (
            {"residual": RESIDUAL._replace(shape=(1, 5))},
            ValueError,
            "residual has shape (1, 5) and x has (3, 5); accepted: equal shapes",
        ),
        ({"weight": W._replace(shape=(4,))}, ValueError, "weight has shape (4,); accepted: (5,), the cols of x"),
        ({"weight": W._replace(shape=(1, 5))}, ValueError, "weight has shape (1, 5); accepted: (5,), the cols of x"),
        ({"x": X._replace(strides=(10, 2))}, ValueError, "x has strides (10, 2); accepted: contiguous, (5, 1)"),
        (
            {"residual": RESIDUAL._replace(strides=(1, 3))},
            ValueError,
            "residual has strides (1, 3); accepted: contiguous, (5, 1)",
        ),
        ({"weight": W._replace(strides=(2,))}, ValueError, "weight has strides (2,); accepted: contiguous, (1,)"),
        ({"eps": 0}, ValueError, f"eps is 0; {POSITIVE}"),
        ({"eps": -1e-6}, ValueError, f"eps is -1e-06; {POSITIVE}"),
        ({"eps": float("nan")}, ValueError, f"eps is nan; {POSITIVE}"),
        ({"eps": float("inf")}, ValueError, f"eps is inf; {POSITIVE}"),
        ({"eps": 1e-50}, ValueError, f"eps is 1e-50; {POSITIVE}"),
        ({"eps": 1e39}, ValueError, f"eps is 1e+39; {POSITIVE}"),
        ({"eps": "1e-6"}, TypeError, f"eps is '1e-6'; {POSITIVE}"),
        ({"eps": None}, TypeError, f"eps is None; {POSITIVE}"),
        ({"eps": True}, TypeError, f"eps is True; {POSITIVE}"),
        (
            {"weight": W._replace(device="cuda:1")},
            ValueError,
            "weight is on cuda:1 and x on cuda:0; accepted: one device for all",
        ),
        ({"x": X._replace(device="cpu")}, ValueError, "x is on cpu; accepted: arrays on a cuda device"),
        ({"out": [Y]}, ValueError, "out has length 1; accepted: 3, (y, sum, rstd)"),
        ({"out": [Y, Y, RSTD]}, ValueError, "sum overlaps y; accepted: memory of its own"),
        ({"out": [X, Y, RSTD]}, ValueError, "y overlaps x; accepted: memory of its own"),
        ({"out": [Y, RESIDUAL, RSTD]}, ValueError, "sum overlaps residual; accepted: memory of its own"),
        ({"out": [Y, Y, RSTD._replace(dtype="float16")]}, TypeError, "rstd has dtype float16; accepted: float32"),
        ({"out": [Y, Y, RSTD._replace(shape=(3, 1))]}, ValueError, "rstd has shape (3, 1); accepted: (3,)"),
        (
            {"out": [Y._replace(strides=(6, 1)), Y, RSTD]},
            ValueError,
            "y has strides (6, 1); accepted: contiguous, (5, 1)",
        ),
    ],
)
def test_refusals(change, error, message):
    given = {"x": X, "weight": W, "eps": 1e-6, "residual": RESIDUAL, "return_rstd": True}
    with pytest.raises(error) as caught:
        check(**(given | change))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "change, error, message",
    [
        (
            {"dy": X._replace(dtype="float32")},
            TypeError,
            "dy has dtype float32 and x has float16; accepted: one dtype for all",
        ),
        ({"dy": X._replace(shape=(5, 3))}, ValueError, "dy has shape (5, 3) and x has (3, 5); accepted: equal shapes"),
        ({"dy": X._replace(strides=(1, 3))}, ValueError, "dy has strides (1, 3); accepted: contiguous, (5, 1)"),
        ({"x": X._replace(shape=(3, 0))}, ValueError, "x has shape (3, 0); accepted: cols of 1 or more"),
        ({"weight": W._replace(shape=(3,))}, ValueError, "weight has shape (3,); accepted: (5,), the cols of x"),
        ({"weight": W._replace(dtype="float64")}, TypeError, "weight has dtype float64; accepted: float16 or float32"),
        ({"rstd": RSTD._replace(dtype="float16")}, TypeError, "rstd has dtype float16; accepted: float32"),
        ({"rstd": RSTD._replace(shape=(5,))}, ValueError, "rstd has shape (5,); accepted: (3,), the rows of x"),
        ({"rstd": RSTD._replace(strides=(2,))}, ValueError, "rstd has strides (2,); accepted: contiguous, (1,)"),
        ({"rstd": RSTD._replace(device="cpu")}, ValueError, "rstd is on cpu; accepted: arrays on a cuda device"),
        ({"out": [Y, RSTD]}, TypeError, "dweight has dtype float32; accepted: float16"),
        ({"out": [Y, W]}, ValueError, "dweight overlaps weight; accepted: memory of its own"),
        ({"out": [RESIDUAL, W]}, ValueError, "dx overlaps dy; accepted: memory of its own"),
    ],
)
def test_refusals_backward(change, error, message):
    with pytest.raises(error) as caught:
        check_backward(**({"dy": RESIDUAL, "x": X, "weight": W, "rstd": RSTD} | change))
    assert str(caught.value) == message


def test_accepted():
    check(X, W, 1e-6)
    check(X, W._replace(dtype="float32"), np.float32(1e-6), RESIDUAL, True, [Y, Y._replace(address=1 << 25), RSTD])
    check(X._replace(shape=(0, 5)), W, 1)
    check_backward(RESIDUAL, X, W, RSTD, [Y, W._replace(address=1 << 25)])


def test_outputs_in_order():
    assert list(outputs(X, RESIDUAL, True)) == ["y", "sum", "rstd"] and list(outputs(X)) == ["y"]
    assert list(outputs(X, None, True)) == ["y", "rstd"] and list(outputs(X, RESIDUAL)) == ["y", "sum"]


def test_what_is_expected():
    x, weight = np.array([[3, 4], [0, 0]], np.float32), np.array([1, -2], np.float32)
    found = expect(x, weight, 0.5, return_rstd=True)
    assert list(found) == ["y", "rstd"]
    assert np.allclose(found["rstd"].value, [13**-0.5, 2**0.5], rtol=1e-15)
    assert np.allclose(found["y"].value, [[3 * 13**-0.5, -8 * 13**-0.5], [0, 0]], rtol=1e-15)


def test_the_norm_is_that_of_the_rounded_sum():
    x, residual = np.ones((1, 1), scalar("bfloat16")), np.full((1, 1), 2.0**-9, scalar("bfloat16"))
    found = expect(x, np.ones(1, np.float32), 1e-20, residual, True)
    assert list(found) == ["y", "sum", "rstd"] and found["sum"].bitwise
    assert found["sum"].value == 1 + 2.0**-9 and round_once(found["sum"].value, "bfloat16") == 1
    assert found["y"].value == 1 and found["rstd"].value == 1


def test_nan_and_infinity_stay_in_their_rows():
    x = np.ones((3, 4), np.float32)
    x[0, 1], x[1, 2] = np.nan, np.inf
    y = expect(x, np.ones(4, np.float32), 1e-6)["y"].value
    assert np.isnan(y[0]).all() and np.array_equal(np.isnan(y[1]), [False, False, True, False])
    assert np.array_equal(y[1, [0, 1, 3]], [0, 0, 0]) and np.isfinite(y[2]).all()


def test_no_rows():
    none, weight = np.empty((0, 3), np.float16), np.ones(3, np.float16)
    assert expect(none, weight, 1e-6)["y"].value.shape == (0, 3)
    found = expect_backward(none, none, weight, np.empty(0, np.float32))
    assert found["dx"].value.shape == (0, 3) and np.array_equal(found["dweight"].value, [0, 0, 0])


@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_gradients_against_finite_differences(eps):
    """Of the float64 loss sum(dy y); the reference itself is in float64 for float64 inputs."""
    rng = np.random.default_rng(0)
    dy, x, weight = rng.standard_normal((2, 7)), rng.standard_normal((2, 7)), rng.standard_normal(7)
    eps = float(np.float32(eps))
    rstd = 1 / np.sqrt((x * x).mean(axis=1) + eps)
    loss = lambda x, weight: (dy * x / np.sqrt((x * x).mean(axis=1, keepdims=True) + eps) * weight).sum()
    assert np.isclose(loss(x, weight), (dy * expect(x, weight, eps)["y"].value).sum(), rtol=1e-13)
    found, step = expect_backward(dy, x, weight, rstd), 1e-6

    def difference(f, at):
        slope = np.empty_like(at)
        for i in np.ndindex(at.shape):
            moved = np.zeros_like(at)
            moved[i] = step
            slope[i] = (f(at + moved) - f(at - moved)) / (2 * step)
        return slope

    assert np.allclose(found["dx"].value, difference(lambda x: loss(x, weight), x), rtol=0, atol=1e-9)
    assert np.allclose(found["dweight"].value, difference(lambda w: loss(x, w), weight), rtol=0, atol=1e-9)


def test_spread():
    assert spread(np.array([[3.0, 2, -4, -4, 1]]), axis=1) == 8  # prefix sums 0, 3, 5, 1, -3, -2
    assert spread(np.array([[3.0, -3, 4, -4]]), axis=1) == 50**0.5  # more than 4, the largest of them


def test_the_bounds_element_by_element():
    rng, u = np.random.default_rng(1), 2.0**-24
    dy, x, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 5), (3, 5), (5,)))
    found = expect(x, weight, 1e-6, return_rstd=True)
    assert np.allclose(found["y"].bound, abs(found["y"].value) * u * 14.5, rtol=1e-12)
    assert np.allclose(found["rstd"].bound, found["rstd"].value * u * 12.5, rtol=1e-12)
    rstd = found["rstd"].value.astype(np.float32)
    found = expect_backward(dy, x, weight, rstd)
    dy, x, weight, rstd = (a.astype(np.float64) for a in (dy, x, weight, rstd))
    for r, c in np.ndindex(3, 5):
        gx = dy[r] * weight * x[r]
        error = 4 * 5**0.5 * spread(gx[None], axis=1)[0, 0] / 5
        wanted = (
            u * rstd[r] * (4 * abs(dy[r, c] * weight[c]) + abs(x[r, c]) * rstd[r] ** 2 * (6 * abs(gx.mean()) + error))
        )
        assert np.isclose(found["dx"].bound[r, c], wanted, rtol=1e-12)
        t = dy[:, c] * x[:, c] * rstd
        wanted = 4 * u * (3**0.5 * spread(t[None], axis=1)[0, 0] + (t * t).sum() ** 0.5)
        assert np.isclose(found["dweight"].bound[c], wanted, rtol=1e-12)
