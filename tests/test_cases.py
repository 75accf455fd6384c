"""The case table: legal calls, drawn alike every time, with the shapes that it promises."""

from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest

from crosscheck.case import pairwise, some, table
from crosscheck.cases import CASES, OPERATORS
from crosscheck.tables import attention as attention_table
from crosscheck.tables import matmul as matmul_table
from crosscheck.tables import softmax as softmax_table
from reference import attention, matmul, rmsnorm, softmax, vector_add
from reference.contract import ArrayInfo, row_major

CHECKS = {
    "vector_add": vector_add.check,
    "softmax": softmax.check,
    "rmsnorm": rmsnorm.check,
    "rmsnorm_backward": rmsnorm.check_backward,
    "matmul": matmul.check,
    "attention": attention.check,
}
FOR_A_CPU = [case for case in CASES.values() if "cpu" in case.sets]


def test_pairwise_brings_every_two_values_together():
    axes = {"a": range(7), "b": "xyz", "c": (False, True), "d": [None, 1, 2, 3, 4]}
    picks = list(pairwise(**axes))
    for (i, first), (j, second) in combinations(axes.items(), 2):
        assert {(pick[i], pick[j]) for pick in picks} == set(product(first, second))
    assert 35 <= len(picks) <= 42 and picks == list(pairwise(**axes))


def test_a_case_that_comes_twice_is_in_the_sets_of_both():
    one = softmax_table._case("float32", 2, 3, sets=("gpu",))
    two = softmax_table._case("float32", 2, 3, sets=("performance",))
    (case,) = table([one, two]).values()
    assert case.sets == {"gpu", "performance"}


@pytest.mark.parametrize("case", FOR_A_CPU, ids=lambda case: case.id)
def test_the_contract_accepts_every_case(case):
    operator = OPERATORS[case.operator]
    infos = {
        name: ArrayInfo(x.shape, x.dtype.name, row_major(x.shape), "cpu") for name, x in operator.draw(case).items()
    }
    positional, keywords = operator.call(case, infos)
    CHECKS[case.operator](*positional, **keywords, platform="cpu")
    assert set(operator.inputs) <= set(infos) and set(infos) - set(operator.inputs) <= set(keywords)
    assert case.id.startswith(f"{case.operator}-{case.dtype}-")


@pytest.mark.parametrize("case", FOR_A_CPU, ids=lambda case: case.id)
def test_drawn_alike_every_time_and_each_input_by_itself(case):
    operator = OPERATORS[case.operator]
    once, again = operator.draw(case), operator.draw(case)
    assert {name: x.tobytes() for name, x in once.items()} == {name: x.tobytes() for name, x in again.items()}
    if case.distribution in ("normal", "outliers"):
        same = Counter(x.tobytes() for x in once.values() if x.size > 1)
        assert not same or max(same.values()) == 1


def test_nan_and_infinity_only_where_the_case_says_so():
    said = {"nan", "nan_query", "nan_keys", "plus_inf", "minus_inf", "special", "bits"}
    for case in FOR_A_CPU:
        finite = all(np.isfinite(x.astype(np.float32)).all() for x in OPERATORS[case.operator].draw(case).values())
        # One key has no later half.
        assert finite == (case.distribution not in said) or case.shape.get("sequence") == 1, case.id


def test_small_enough_for_interpreters():
    counts = Counter(case.operator for case in FOR_A_CPU)
    assert all(20 <= counts[name] <= 25 for name in OPERATORS if name != "vector_add")
    assert all(np.prod(list(case.shape.values())) <= 130**3 for case in FOR_A_CPU)


@pytest.mark.parametrize("name", ["softmax", "rmsnorm", "rmsnorm_backward"])
def test_every_width_meets_every_number_of_rows(name):
    found = {(c.shape["rows"], c.shape["cols"]) for c in CASES.values() if c.operator == name and "gpu" in c.sets}
    missing = set(product(softmax_table.ROWS, softmax_table.WIDTHS)) - found
    assert missing == {(4097, 131072), (4097, 262144)}
    timed = {
        (c.shape["rows"], c.shape["cols"]) for c in CASES.values() if c.operator == name and "performance" in c.sets
    }
    assert timed == set(softmax_table.BENCH)


def test_every_two_lengths_of_a_product_meet():
    shapes = [c.shape for c in CASES.values() if c.operator == "matmul" and "gpu" in c.sets]
    for one, other in ("mn", "mk", "nk"):
        found = {(shape[one], shape[other]) for shape in shapes}
        assert set(product(matmul_table.LENGTHS, repeat=2)) <= found
    timed = {tuple(c.shape.values()) for c in CASES.values() if c.operator == "matmul" and "performance" in c.sets}
    assert timed == set(matmul_table.BENCH)


def test_every_correctness_case_of_attention_asks_for_the_log_sum_exp():
    cases = [c for c in CASES.values() if c.operator == "attention"]
    assert all(c.arguments.get("return_lse") for c in cases if c.sets & {"cpu", "gpu"})
    timed = {tuple(c.shape.values()) for c in cases if "performance" in c.sets}
    assert timed == set(attention_table.BENCH)


def test_some_rows_of_many():
    for n in (1, 5, 130, 1000, 10**6):
        index = some(n, seed=0)
        assert index[0] == 0 and index[-1] == n - 1 and np.all(np.diff(index) > 0) and len(index) <= 256
    assert {127, 128, 129, 895, 896, 897, 998} <= set(some(1000, seed=0).tolist())


def test_arrays_are_said_as_they_are_drawn():
    for case in CASES.values():
        if "cpu" in case.sets:
            operator = OPERATORS[case.operator]
            drawn = {name: (values.shape, values.dtype.name) for name, values in operator.draw(case).items()}
            assert operator.arrays(case) == drawn, case.id
