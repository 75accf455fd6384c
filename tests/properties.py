"""What must hold of an operator whatever computes it: properties, each a function of (implementation, dtype).

An implementation takes and returns NumPy arrays and has the contract's arguments; a kernel's wrapper is one behind
conversions. The property draws inputs with hypothesis and asserts. Where two calls should agree, the second is judged
by what is expected of the first, so that nobody has to choose a tolerance.
"""

from functools import wraps
from typing import Callable, Mapping

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crosscheck.compare import half_ulp, judge
from reference import attention, matmul, rmsnorm, softmax
from reference.contract import Expected, round_once, scalar

SEEDS = st.integers(0, 2**32 - 1)


def prop(**strategies):
    """A property from ``body(implementation, dtype, rng, **drawn)``."""

    def make(body: Callable) -> Callable:
        @wraps(body)
        def holds(implementation: Callable, dtype: str, examples: int = 25) -> None:
            @settings(
                max_examples=examples,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=list(HealthCheck),
            )
            @given(seed=SEEDS, **strategies)
            def run(seed, **drawn):
                body(implementation, dtype, np.random.default_rng(seed), **drawn)

            run()

        return holds

    return make


def reference(expect: Callable) -> Callable:
    """The implementation that returns what is expected, rounded once."""

    def implementation(*args, **arguments):
        found = [round_once(e.value, e.dtype) for e in expect(*args, **arguments).values()]
        return found[0] if len(found) == 1 else tuple(found)

    return implementation


def assert_within(out: np.ndarray, expected: Expected, change: Callable = lambda a: a) -> None:
    """``out`` is what is expected after ``change`` (of elements' places or by a power of two)."""
    judgement = judge(out, expected._replace(value=change(expected.value), bound=change(expected.bound)))
    assert judgement.ok, judgement


def dyadic(rng: np.random.Generator, shape, dtype: str) -> np.ndarray:
    """Multiples of 1/8 within 4: sums with whole numbers up to 8 are exact in every dtype."""
    return (rng.integers(-32, 33, shape) / 8).astype(scalar(dtype))


def whole(rng: np.random.Generator, shape, dtype: str) -> np.ndarray:
    """Whole numbers up to 8: products and sums of a few thousand are exact in float32."""
    return rng.integers(-8, 9, shape).astype(scalar(dtype))


def normal(rng: np.random.Generator, shape, dtype: str) -> np.ndarray:
    return rng.standard_normal(shape).astype(scalar(dtype))


ROWS, COLS = st.integers(1, 4), st.integers(1, 300)


@prop(rows=ROWS, cols=COLS, shift=st.integers(-8, 8))
def shift_invariance(implementation, dtype, rng, rows, cols, shift):
    """softmax(x + c) = softmax(x)."""
    x = dyadic(rng, (rows, cols), dtype)
    moved = (x.astype(np.float32) + shift).astype(x.dtype)
    assert_within(implementation(moved), softmax.expect(x)["out"])


@prop(rows=ROWS, cols=COLS)
def rows_sum_to_one(implementation, dtype, rng, rows, cols):
    x = normal(rng, (rows, cols), dtype)
    out, expected = implementation(x), softmax.expect(x)["out"]
    slack = (expected.bound + half_ulp(expected.value, dtype)).sum(axis=1)
    assert np.all(np.abs(out.astype(np.float64).sum(axis=1) - 1) <= slack)


@prop(rows=ROWS, cols=COLS)
def columns_in_any_order(implementation, dtype, rng, rows, cols):
    """softmax(x P) = softmax(x) P."""
    x, order = normal(rng, (rows, cols), dtype), rng.permutation(cols)
    assert_within(implementation(np.ascontiguousarray(x[:, order])), softmax.expect(x)["out"], lambda a: a[:, order])


@prop(rows=ROWS, cols=COLS, exponent=st.integers(-4, 4))
def scale_does_not_matter(implementation, dtype, rng, rows, cols, exponent):
    """rmsnorm(2^k x, eps 4^k) = rmsnorm(x, eps), rstd 2^-k times as large."""
    x, weight, eps = normal(rng, (rows, cols), dtype), normal(rng, cols, dtype), 2.0**-10
    # The smallest entries, which would be rounded when scaled down, as 0.
    x[np.abs(x) < 2.0**-4] = 0
    y, rstd = implementation(
        np.ldexp(x.astype(np.float32), exponent).astype(x.dtype), weight, eps * 4.0**exponent, return_rstd=True
    )
    expected = rmsnorm.expect(x, weight, eps, return_rstd=True)
    assert_within(y, expected["y"])
    assert_within(rstd, expected["rstd"], lambda a: np.ldexp(a, -exponent))


@prop(rows=ROWS, cols=COLS)
def residual_is_added_first(implementation, dtype, rng, rows, cols):
    """rmsnorm(x, residual=r) = rmsnorm(x + r), and returns x + r."""
    x, residual, weight = dyadic(rng, (rows, cols), dtype), dyadic(rng, (rows, cols), dtype), normal(rng, cols, dtype)
    y, total = implementation(x, weight, 1e-6, residual=residual)
    added = (x.astype(np.float32) + residual.astype(np.float32)).astype(x.dtype)
    assert np.array_equal(total.astype(np.float32), added.astype(np.float32))
    assert_within(y, rmsnorm.expect(added, weight, 1e-6)["y"])


@prop(rows=ROWS, cols=COLS, exponent=st.integers(-4, 4))
def gradients_are_linear_in_dy(implementation, dtype, rng, rows, cols, exponent):
    """rmsnorm_backward(2^k dy) = 2^k rmsnorm_backward(dy)."""
    dy, x, weight = normal(rng, (rows, cols), dtype), normal(rng, (rows, cols), dtype), normal(rng, cols, dtype)
    dy[np.abs(dy) < 2.0**-4] = 0
    rstd = (1 / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1) + 1e-6)).astype(np.float32)
    found = implementation(np.ldexp(dy.astype(np.float32), exponent).astype(dy.dtype), x, weight, rstd)
    for out, expected in zip(found, rmsnorm.expect_backward(dy, x, weight, rstd).values()):
        assert_within(out, expected, lambda a: np.ldexp(a, exponent))


SIDES = st.integers(1, 70)


@prop(m=SIDES, n=SIDES, k=st.integers(0, 70))
def linearity(implementation, dtype, rng, m, n, k):
    """A B + A C = A (B + C), without an error on whole numbers."""
    a, b, c = whole(rng, (m, k), dtype), whole(rng, (k, n), dtype), whole(rng, (k, n), dtype)
    parts = implementation(a, b, out_dtype="float32") + implementation(a, c, out_dtype="float32")
    assert np.array_equal(parts, implementation(a, (b + c).astype(a.dtype), out_dtype="float32"))


@prop(m=SIDES, n=SIDES, k=st.integers(0, 70), ta=st.booleans(), tb=st.booleans())
def transposes(implementation, dtype, rng, m, n, k, ta, tb):
    """The flags do what transposing does, without an error on whole numbers."""
    a, b = whole(rng, (m, k), dtype), whole(rng, (k, n), dtype)
    given_a, given_b = (np.ascontiguousarray(x.T) if t else x for x, t in ((a, ta), (b, tb)))
    out = implementation(given_a, given_b, transpose_a=ta, transpose_b=tb, out_dtype="float32")
    assert np.array_equal(out, a.astype(np.float32) @ b.astype(np.float32))


SEQUENCE = st.integers(1, 140)


def _qkv(rng, sequence, dtype, head_dim=64):
    return [normal(rng, (1, 2, sequence, head_dim), dtype) for _ in "qkv"]


@prop(sequence=SEQUENCE)
def keys_in_any_order(implementation, dtype, rng, sequence):
    """Full attention does not know in what order keys and values come, as long as it is the same."""
    q, k, v = _qkv(rng, sequence, dtype)
    order = rng.permutation(sequence)
    k_moved, v_moved = (np.ascontiguousarray(x[:, :, order]) for x in (k, v))
    out, lse = implementation(q, k_moved, v_moved, causal=False, return_lse=True)
    expected = attention.expect(q, k, v, causal=False, return_lse=True)
    assert_within(out, expected["out"])
    assert_within(lse, expected["lse"])


@prop(sequence=SEQUENCE, share=st.floats(0, 1))
def later_keys_do_not_matter(implementation, dtype, rng, sequence, share):
    """Under the mask a key may be NaN; a value may not, since a tile multiplies it by 0."""
    q, k, v = _qkv(rng, sequence, dtype)
    first = int(share * sequence)  # of the keys that are NaN
    hidden = k.copy()
    hidden[:, :, first:] = np.nan
    out, lse = implementation(q, hidden, v, causal=True, return_lse=True)
    expected = attention.expect(q, k, v, causal=True, return_lse=True)
    for found, e in ((out, expected["out"]), (lse, expected["lse"])):
        assert_within(found[:, :, :first], e, lambda a: a[:, :, :first])
        assert np.isnan(found[:, :, first:].astype(np.float32)).all()


@prop(sequence=SEQUENCE, causal=st.booleans())
def equal_values_come_back(implementation, dtype, rng, sequence, causal):
    """If all values are one, so is their mean: weights sum to one."""
    q, k, v = _qkv(rng, sequence, dtype)
    v[:] = v[:, :, :1]
    out = implementation(q, k, v, causal=causal)
    assert_within(out, attention.expect(q, k, v, causal=causal)["out"]._replace(value=v.astype(np.float64)))


PROPERTIES: Mapping[str, tuple[Callable, ...]] = {
    "softmax": (shift_invariance, rows_sum_to_one, columns_in_any_order),
    "rmsnorm": (scale_does_not_matter, residual_is_added_first),
    "rmsnorm_backward": (gradients_are_linear_in_dy,),
    "matmul": (linearity, transposes),
    "attention": (keys_in_any_order, later_keys_do_not_matter, equal_values_come_back),
}
REFERENCES: Mapping[str, Callable] = {
    "softmax": reference(softmax.expect),
    "rmsnorm": reference(rmsnorm.expect),
    "rmsnorm_backward": reference(rmsnorm.expect_backward),
    "matmul": reference(matmul.expect),
    "attention": reference(attention.expect),
}
