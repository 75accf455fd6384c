"""Rounding, distances and verdicts of single outputs."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosscheck.compare import half_ulp, judge
from reference.contract import Expected, round_once, scalar

DTYPES = ("float32", "float16", "bfloat16")


def expected(values, bound=0.0, dtype="float32", bitwise=False):
    values = np.asarray(values, np.float64)
    return Expected(values, np.full_like(values, bound), dtype, bitwise)


@given(st.floats(width=64, allow_nan=False))
def test_bfloat16_is_rounded_once(value):
    """Against the definition: the nearest of all bfloat16 numbers, of two the one with an even mantissa."""
    every = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    finite = every[np.isfinite(every.astype(np.float32))]
    got = round_once(np.array([value]), "bfloat16")[0]
    if abs(value) >= 2.0**128 - 2.0**119:  # half a unit past the largest
        assert np.isinf(np.float32(got)) and (np.float32(got) > 0) == (value > 0)
        return
    scaled = finite.astype(np.float64) - value if abs(value) < 1e300 else None
    distance = np.abs(scaled)
    nearest = finite[distance == distance.min()]
    even = [v for v in nearest if v.view(np.uint16) & 1 == 0] if len(set(nearest.astype(np.float32))) > 1 else nearest
    assert np.float32(got) == np.float32(even[0])


def test_two_roundings_are_not_one():
    value = np.array([1 + 2.0**-8 + 2.0**-40, -(1 + 2.0**-8 + 2.0**-40)])
    assert value.astype(np.float32).astype(ml_dtypes.bfloat16).astype(float).tolist() == [1, -1]
    assert round_once(value, "bfloat16").astype(float).tolist() == [1 + 2.0**-7, -1 - 2.0**-7]


def test_overflow_and_specials_round_as_the_format_does():
    value = np.array([np.inf, -np.inf, np.nan, -0.0, 3.4e38, 1e-45, 65520.0])
    assert str(round_once(value, "bfloat16").astype(np.float32)[4]) == "inf"
    assert np.isinf(round_once(value, "float16")[6]) and round_once(np.array([65519.9]), "float16")[0] == 65504
    assert np.signbit(round_once(value, "bfloat16")[3].astype(np.float32))
    assert np.isnan(round_once(value, "bfloat16")[2].astype(np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_half_ulp_is_half_the_spacing(dtype):
    kind = scalar(dtype)
    for value in (
        1.0,
        1.5,
        1.9,
        2.0,
        0.1,
        1e-6,
        float(ml_dtypes.finfo(kind).tiny),
        float(ml_dtypes.finfo(kind).tiny) / 4,
    ):
        v = np.array([value]).astype(kind)
        above = (v.view(f"u{kind.itemsize}") + 1).astype(f"u{kind.itemsize}").view(kind)
        assert half_ulp(v.astype(np.float64), dtype)[0] == (float(above[0]) - float(v[0])) / 2, value


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_spacing_halves_below_a_power_of_two(dtype):
    one = np.array([1.0]).astype(scalar(dtype))
    below = (one.view(f"u{one.itemsize}") - 1).view(one.dtype)
    step = 1.0 - float(below[0].astype(np.float64))
    assert not judge(below, expected([1.0], 1e-12, dtype)).ok
    assert judge(below, expected([1.0 - step / 2], 1e-12, dtype)).error_over_bound == 0
    assert not judge(one, expected([1.0 - step * 0.6], 1e-12, dtype)).ok
    assert judge(one, expected([1.0 + step], 1e-12, dtype)).error_over_bound == 0
    assert half_ulp(np.zeros(1), dtype)[0] == float(ml_dtypes.finfo(one.dtype).smallest_subnormal) / 2


def test_rounding_is_free_and_arithmetic_is_counted():
    third = 1 / 3
    right = np.float32(third)
    off = np.nextafter(right, np.float32(1))
    assert judge(np.array([right]), expected([third], 1e-9)).error_over_bound == 0
    ulp = float(off) - float(right)
    judgement = judge(np.array([off]), expected([third], ulp / 4))
    assert judgement.error_over_bound == pytest.approx((float(off) - third - ulp / 2) / (ulp / 4))
    assert judgement.max_ulp == 1 and not judgement.bitwise_equal
    assert not judge(np.array([off]), expected([third])).ok


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "out, reference, right",
    [
        (np.nan, 1.0, False),
        (1.0, np.nan, False),
        (np.nan, np.nan, True),
        (np.inf, 1.0, False),
        (np.inf, np.inf, True),
        (-np.inf, np.inf, False),
        (1.0, np.inf, False),
        (np.inf, 1e39, True),
        (0.0, 1.0, False),
        (-0.0, 0.0, True),
    ],
)
def test_nan_and_infinity(dtype, out, reference, right):
    for bound in (0.0, 1e-3):
        judgement = judge(np.array([1, out]).astype(scalar(dtype)), expected([1, reference], bound, dtype))
        assert judgement.ok == right
        assert right or judgement.worst == 1


def test_the_largest_finite_number_is_no_infinity():
    top = np.array([65504.0])
    assert not judge(top.astype(np.float16), expected([70000.0], 1e6, "float16")).ok
    assert not judge(np.array([np.inf], np.float16), expected([65504.0], 1e6, "float16")).ok


def test_bitwise_tells_zeros_apart_and_no_nans():
    assert not judge(np.array([-0.0], np.float32), expected([0.0], bitwise=True)).ok
    payload = np.array([0x7FC00001], np.uint32).view(np.float32)
    assert judge(payload, expected([np.nan], bitwise=True)).bitwise_equal


def test_max_ulp_counts_steps_across_zero():
    least = np.float32(1e-45)
    assert judge(np.array([-least]), expected([float(least)], 1.0)).max_ulp == 2
    assert judge(np.array([np.nan], np.float32), expected([1.0], 1.0)).max_ulp is None


def test_shape_and_dtype_must_be_the_expected_ones():
    with pytest.raises(ValueError, match=r"shape \(2,\) and dtype float32; expected: \(3,\), float32"):
        judge(np.zeros(2, np.float32), expected([0, 0, 0]))
    with pytest.raises(ValueError, match="dtype float64; expected: "):
        judge(np.zeros(3), expected([0, 0, 0]))


def test_nothing_to_compare():
    assert judge(np.zeros(0, np.float32), expected([])) == (0.0, 0, True, None)
