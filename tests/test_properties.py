"""The properties hold of the references and of right implementations, and fail for a wrong one of each kind."""

import numpy as np
import pytest
from properties import PROPERTIES, REFERENCES

from crosscheck import right, wrong
from crosscheck.cases import OPERATORS

EVERY = [
    (name, prop, dtype) for name, props in PROPERTIES.items() for prop in props for dtype in OPERATORS[name].dtypes
]
IDS = [f"{name}-{prop.__name__}-{dtype}" for name, prop, dtype in EVERY]


@pytest.mark.parametrize("name, prop, dtype", EVERY, ids=IDS)
def test_of_the_reference(name, prop, dtype):
    prop(REFERENCES[name], dtype)


@pytest.mark.parametrize("name, prop, dtype", EVERY, ids=IDS)
def test_of_a_right_implementation(name, prop, dtype):
    with np.errstate(all="ignore"):
        prop(getattr(right, name), dtype, examples=10)


@pytest.mark.parametrize(
    "name, prop, fault",
    [
        ("softmax", "shift_invariance", "base 2"),
        ("softmax", "rows_sum_to_one", "last element of the sum dropped"),
        ("softmax", "columns_in_any_order", "tiles after the first not summed"),
        ("rmsnorm", "scale_does_not_matter", "eps outside the root"),
        ("rmsnorm", "residual_is_added_first", "residual ignored"),
        ("rmsnorm_backward", "gradients_are_linear_in_dy", "rank-one part left out"),
        ("matmul", "linearity", "accumulator not cleared"),
        ("matmul", "transposes", "columns off by one"),
        ("attention", "keys_in_any_order", "online rescale forgotten"),
        ("attention", "later_keys_do_not_matter", "causal mask off by one, a key too many"),
        ("attention", "equal_values_come_back", "l in 16 bits"),
    ],
)
def test_of_a_wrong_one(name, prop, fault):
    implementation, names = wrong.WRONG[name][fault], REFERENCE_NAMES[name]
    by_name = lambda *args, **arguments: implementation(**dict(zip(names, args)), **arguments)
    (check,) = (p for p in PROPERTIES[name] if p.__name__ == prop)
    with np.errstate(all="ignore"), pytest.raises(AssertionError):
        check(by_name, "float16")


REFERENCE_NAMES = {name: (*OPERATORS[name].inputs, *(("eps",) if name == "rmsnorm" else ())) for name in PROPERTIES}
