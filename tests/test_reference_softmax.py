"""Softmax: the contract's refusals, the reference, and the online form it derives."""

import numpy as np
import pytest

from reference.contract import ArrayInfo, additions, scalar
from reference.softmax import State, check, empty, expect, merge, state

X = ArrayInfo((3, 5), "float32", (5, 1), "cuda:0", 1 << 20)


@pytest.mark.parametrize(
    "x, out, error, message",
    [
        (X._replace(dtype="float64"), None, TypeError, "x has dtype float64; accepted: float32, float16 or bfloat16"),
        (X._replace(dtype="int32"), None, TypeError, "x has dtype int32; accepted: float32, float16 or bfloat16"),
        (X._replace(shape=(5,)), None, ValueError, "x has shape (5,); accepted: two axes, (rows, cols)"),
        (X._replace(shape=(3, 0)), None, ValueError, "x has shape (3, 0); accepted: cols of 1 or more"),
        (X._replace(strides=(1, 3)), None, ValueError, "x has strides (1, 3); accepted: contiguous, (5, 1)"),
        (X._replace(strides=(6, 1)), None, ValueError, "x has strides (6, 1); accepted: contiguous, (5, 1)"),
        (X._replace(device="cpu"), None, ValueError, "x is on cpu; accepted: arrays on a cuda device"),
        (X, X._replace(dtype="float16"), TypeError, "out has dtype float16; accepted: float32"),
        (X, X._replace(shape=(5, 3)), ValueError, "out has shape (5, 3); accepted: (3, 5)"),
        (X, X._replace(strides=(8, 1)), ValueError, "out has strides (8, 1); accepted: contiguous, (5, 1)"),
        (X, X, ValueError, "out overlaps x; accepted: memory of its own"),
        (X, X._replace(address=X.address + 59), ValueError, "out overlaps x; accepted: memory of its own"),
        (
            X,
            X._replace(address=0, device="cuda:1"),
            ValueError,
            "out is on cuda:1 and x on cuda:0; accepted: one device for all",
        ),
    ],
)
def test_refusals(x, out, error, message):
    with pytest.raises(error) as caught:
        check(x, out)
    assert str(caught.value) == message


def test_accepted():
    check(X, X._replace(address=X.address + 60))
    check(X._replace(shape=(0, 5)), X._replace(shape=(0, 5)))  # nothing overlaps nothing
    check(X._replace(shape=(1, 5), strides=(99, 1)))  # a row alone is never stepped over
    check(X._replace(strides=None, device=None, address=None), X._replace(strides=None, device=None, address=None))
    check(X._replace(device="cpu"), platform="cpu")


def test_what_is_expected():
    found = expect(np.array([[0, np.log(3)], [7, 7]], np.float64).astype(np.float32))["out"]
    assert np.allclose(found.value, [[0.25, 0.75], [0.5, 0.5]], atol=1e-7)
    assert found.dtype == "float32" and np.all(found.bound < 1e-5) and np.all(found.bound > 0)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_infinities_and_nan_stay_in_their_rows(dtype):
    x = np.zeros((5, 4), scalar(dtype))
    x[0] = -np.inf
    x[1, 2] = np.inf
    x[2, 3] = np.nan
    x[3, 1] = -np.inf
    out = expect(x)["out"].value
    assert np.isnan(out[:3]).all()
    assert np.array_equal(out[3], [1 / 3, 0, 1 / 3, 1 / 3]) and np.array_equal(out[4], [0.25] * 4)


def test_entries_of_any_size():
    out = expect(np.array([[3e38, -3e38, 3e38]], np.float32))["out"]
    assert np.array_equal(out.value, [[0.5, 0, 0.5]]) and np.isfinite(out.bound).all()


@pytest.mark.parametrize("n, most", [(1, 1), (2, 2), (256, 256), (257, 257), (600, 512), (65_536, 512), (65_537, 768)])
def test_additions(n, most):
    assert additions(n) == most


# The online form

ROWS = np.random.default_rng(0).standard_normal((4, 37)) * 20


def same(a: State, b: State) -> bool:
    return np.array_equal(a.m, b.m) and np.allclose(a.l, b.l, rtol=1e-14, atol=0)


def whole(x):
    return State(x.max(axis=1), np.exp(x - x.max(axis=1, keepdims=True)).sum(axis=1))


@pytest.mark.parametrize("tile", [1, 2, 7, 36, 37, 64])
def test_tiles_in_any_order_give_the_whole(tile):
    parts = [state(ROWS[:, i : i + tile]) for i in range(0, 37, tile)]
    for order in (parts, parts[::-1], np.random.default_rng(1).permutation(len(parts))):
        total = empty(4)
        for part in order:
            total = merge(total, part if isinstance(part, State) else parts[part])
        assert same(total, whole(ROWS))


def test_merge_is_associative_and_commutative():
    a, b, c = (state(ROWS[:, part]) for part in (slice(0, 5), slice(5, 6), slice(6, 37)))
    assert same(merge(merge(a, b), c), merge(a, merge(b, c))) and same(merge(a, b), merge(b, a))


def test_a_merge_without_rescaling_would_be_seen():
    a, b = state(ROWS[:, :20]), state(ROWS[:, 20:])
    assert not same(State(np.maximum(a.m, b.m), a.l + b.l), whole(ROWS))


@pytest.mark.parametrize("part", [np.empty((4, 0)), np.full((4, 3), -np.inf)], ids=["empty", "masked"])
def test_empty_and_masked_tiles_change_nothing(part):
    with np.errstate(all="raise"):
        assert same(state(part), empty(4))
        assert same(merge(state(part), state(ROWS)), whole(ROWS)) and same(merge(state(ROWS), state(part)), whole(ROWS))
        assert same(merge(empty(4), state(part)), empty(4))


def test_a_partly_masked_tile():
    x = ROWS.copy()
    x[0, :20] = x[1, 20:] = x[2, ::2] = -np.inf
    assert same(merge(state(x[:, :20]), state(x[:, 20:])), whole(x))


def test_the_bound_element_by_element():
    x = np.array([[0, -1, -1], [0, -3, 5]], np.float32)
    found = expect(x)["out"]
    for row, out, bound in zip(x.astype(float), found.value, found.bound):
        d = row.max() - row
        for i in range(3):
            wanted = out[i] * 2.0**-24 * (8 + 4 * (d[i] + (out * d).sum()) + 3) + 2.0**-124
            assert np.isclose(bound[i], wanted, rtol=1e-12)
    # float16 ends far above what is flushed to zero: no allowance for that.
    assert expect(np.array([[0, -np.inf]], np.float16))["out"].bound[0, 1] == 0
    assert expect(np.array([[0, -np.inf]], np.float32))["out"].bound[0, 1] == 2.0**-124
