"""The check of the check: what would make it pass wrongly is planted, and found."""

import numpy as np
import pytest

from crosscheck import right, self_test, wrong
from crosscheck.cases import CASES, OPERATORS
from crosscheck.self_test import Right, Wrong, find_wrong, measure_right, report


@pytest.mark.parametrize("name", OPERATORS)
def test_enough_of_both_for_every_operator(name):
    assert len(wrong.WRONG[name]) >= 12 and len(right.RIGHT[name]) >= 2
    assert all(
        fault in wrong.WRONG[name] and dtype in OPERATORS[name].dtypes for fault, dtype in wrong.UNSEEN.get(name, {})
    )


def test_a_right_one_among_the_wrong_is_not_caught():
    (row,) = find_wrong(OPERATORS["softmax"], "float16", {"none": right.softmax}, {})
    assert row.case is None and not row.ok


def test_a_fault_said_to_be_unseen_that_is_seen_is_a_miss():
    faults = {"zeros": lambda x: np.zeros_like(x)}
    (row,) = find_wrong(OPERATORS["softmax"], "float16", faults, {("zeros", "float16"): "said so"})
    assert row.case and not row.ok


def test_a_wrong_one_among_the_right_is_caught():
    cut = wrong.WRONG["softmax"]["last element of the sum dropped"]
    good, bad = measure_right(OPERATORS["softmax"], "bfloat16", {"good": right.softmax, "bad": cut}, drawn=20)
    assert good.ok and good.cases >= 20 and not bad.ok and bad.case


def test_a_wrong_number_shape_or_dtype_of_outputs_is_caught():
    faults = {
        "two": lambda x: (x, x),
        "shape": lambda x: right.softmax(x)[:1],
        "dtype": lambda x: right.softmax(x).astype(np.float64),
    }
    assert all(row.case for row in find_wrong(OPERATORS["softmax"], "float32", faults, {}))


@pytest.mark.parametrize(
    "faulty, good, said",
    [
        (
            Wrong("softmax", "float32", "zeros", None, None),
            Right("softmax", "float32", "tree", 9, 0.2, "c"),
            "softmax float32: zeros passes",
        ),
        (
            Wrong("softmax", "float32", "zeros", "some-case", "why"),
            Right("softmax", "float32", "tree", 9, 0.2, "c"),
            "softmax float32: zeros is said to be not observable, some-case shows it",
        ),
        (
            Wrong("softmax", "float32", "zeros", "some-case", None),
            Right("softmax", "float32", "tree", 9, 0.7, "c"),
            "softmax float32: tree reaches 0.700 of the bound in c",
        ),
    ],
)
def test_a_miss_is_reported(faulty, good, said):
    lines = report([faulty], [good]).splitlines()
    assert said in lines and lines[-1].startswith("self-test failed: ") and lines[-1].endswith("1 misses")


def test_the_summary_comes_last():
    rows = (
        [Wrong("softmax", "float32", "zeros", "some-case", None)],
        [Right("softmax", "float32", "tree", 9, 0.25, "c")],
    )
    assert report(*rows).splitlines()[-1] == (
        "self-test passed: 1 of 1 wrong implementations caught, "
        "worst right one at 0.250 of its bound (limit 0.6), 0 misses"
    )


def test_the_status_is_that_of_the_rows(monkeypatch, capsys):
    monkeypatch.setattr(self_test, "DRAWN", 5)
    assert self_test.run(["vector_add"]) == 0
    monkeypatch.setattr(self_test, "MARGIN", 0.0)  # now no right one is right
    assert self_test.run(["vector_add"]) == 1
    assert capsys.readouterr().out.count("self-test") == 2


def test_the_model_of_a_tensor_core():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 9, shape).astype(np.float32) for shape in ((5, 70), (70, 6)))
    assert np.array_equal(right.tensor_core(a, b), a @ b)  # nothing to cut
    a, b = (abs(rng.standard_normal(shape)).astype(np.float16).astype(np.float32) for shape in ((5, 700), (700, 6)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.all(right.tensor_core(a, b) < exact) and np.allclose(right.tensor_core(a, b), exact, rtol=700 * 2.0**-24)
    assert right.tf32(np.float32([1 + 2**-10, 1 + 2**-10 + 2**-11, -1 - 2**-11])).tolist() == [
        1 + 2**-10,
        1 + 2**-10,
        -1,
    ]


@pytest.mark.parametrize("name", OPERATORS)
def test_expected_at_some_elements_is_expected_there(name):
    """What is sampled from a big case is what the whole would be, tried on small ones."""
    operator, rng = OPERATORS[name], np.random.default_rng(0)
    for case in CASES.values():
        if case.operator == name and "cpu" in case.sets:
            inputs = operator.draw(case)
            whole = operator.expect(case, inputs, None)
            assert {n: (e.value.shape, e.dtype) for n, e in whole.items()} == operator.outputs(case)
            for output, e in whole.items():
                if e.value.size:
                    at = rng.integers(0, e.value.size, 40)
                    part = operator.expect(case, inputs, {output: at})[output]
                    assert np.allclose(part.value, e.value.ravel()[at], rtol=1e-12, atol=1e-12, equal_nan=True), case.id
                    assert np.allclose(part.bound, e.bound.ravel()[at], rtol=1e-6, atol=1e-14, equal_nan=True), case.id


def test_a_big_case_is_sampled():
    """By rows, of so many columns, and fewer of them where they are wide."""
    cases = {
        "softmax-bfloat16-2048x131072": (131072, 25, 32),
        "softmax-bfloat16-4096x32768": (32768, 55, 64),
        "matmul-bfloat16-4096x4096x4096": (4096, 200, 256),
        "attention-bfloat16-4x16x4096x64-causal": (64, 200, 256),
    }
    for id, (cols, least, most) in cases.items():
        sample = OPERATORS[CASES[id].operator].sample(CASES[id])["out"]
        assert least * cols < len(sample) <= most * cols and sample[0] == 0 and (np.diff(sample) > 0).all()
