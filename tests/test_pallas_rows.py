"""The Pallas row kernels' wide forms, which the small cases do not reach, at sizes that an interpreter manages."""

import dataclasses

import numpy as np
import pytest

from crosscheck import backends
from crosscheck.compare import judge
from reference import rmsnorm as rmsnorm_contract
from reference import softmax as softmax_contract
from reference.contract import scalar


@pytest.fixture
def pallas(pytestconfig):
    """A function that gives an operator, race detector on."""
    backend = backends.find("pallas")
    if reason := backend.unavailable(pytestconfig.tier):
        pytest.skip(reason)
    return lambda operator: backend.function(operator, None, pytestconfig.tier)


def within(out, expected):
    error = np.abs(np.asarray(out, np.float64) - expected.value)
    half_ulp = np.spacing(np.abs(expected.value).astype(out.dtype)).astype(np.float64) / 2
    return np.all(error <= half_ulp + expected.bound)


def override(monkeypatch, module, **fields):
    """configure, with some fields of its result replaced; returns the configurations that were asked for."""
    real, seen = module.configure, []

    def configure(*arguments, **keywords):
        seen.append(dataclasses.replace(real(*arguments, **keywords), **fields))
        return seen[-1]

    monkeypatch.setattr(module, "configure", configure)
    return seen


# Two warpgroups a block: rows that end within a chunk and with one, rows in registers, whose parts are whole tiles or
# end with an overlap, and rings that go round.
CHUNKS = (((2, 20483), {}, "chunks"), ((2, 24576), {}, "chunks"))
HELD = (((3, 20480), {}, "held"), ((2, 20496), {}, "held"))
RINGS = (
    ((4, 18432), {"blocks": 1, "parts": 1, "slots": 2}, "ring"),
    ((5, 20480), {"blocks": 2, "parts": 2, "slots": 3}, "ring"),
    ((3, 20480), {"blocks": 2, "parts": 5, "slots": 13}, "ring"),
)


@pytest.mark.parametrize("dtype", ("float32", "float16", "bfloat16"))
@pytest.mark.parametrize("shape, fields, kernel", CHUNKS + HELD)
def test_softmax(shape, fields, kernel, dtype, pallas, monkeypatch):
    from pallas_impl import rows as module

    if kernel == "chunks" and dtype != "float32":
        pytest.skip("chunks do not look at dtypes")
    function = pallas("softmax")
    seen = override(monkeypatch, module, **fields)
    x = np.random.default_rng(0).normal(size=shape).astype(scalar(dtype))
    x[0, 5] = -np.inf
    x[-1, 7] = np.nan
    variant = "two_reads" if kernel == "chunks" else None
    out = np.asarray(function(x_of(x), variant=variant))
    assert judge(out, softmax_contract.expect(x)["out"]).error_over_bound <= 1
    held = "registers" if dtype == "float32" else "packed"
    assert seen[0].kernel == (held if kernel == "held" else kernel) and seen[0].warpgroups > 1


@pytest.mark.parametrize("dtype", ("float32", "float16", "bfloat16"))
@pytest.mark.parametrize("shape, fields, kernel", CHUNKS + HELD + RINGS)
@pytest.mark.parametrize("extra", (False, True))
def test_rmsnorm(shape, fields, kernel, extra, dtype, pallas, monkeypatch):
    from pallas_impl import rows as module

    if kernel == "chunks" and dtype != "float32" or (kernel == "ring") != extra and kernel != "chunks":
        pytest.skip("without a residual rows are held, with one they go through a ring; chunks do not look at dtypes")
    function = pallas("rmsnorm")
    seen = override(monkeypatch, module, **fields)
    rng = np.random.default_rng(1)
    x, residual = (rng.normal(size=shape).astype(scalar(dtype)) for _ in range(2))
    weight = rng.normal(size=shape[1:]).astype(scalar(dtype))
    variant = "two_reads" if kernel == "chunks" else None
    given = {"residual": x_of(residual)} if extra else {}
    results = function(x_of(x), x_of(weight), 1e-6, **given, return_rstd=True, variant=variant)
    expected = rmsnorm_contract.expect(x, weight, 1e-6, residual if extra else None, True)
    for value, wanted in zip(results, expected.values(), strict=True):
        assert judge(np.asarray(value), wanted).error_over_bound <= 1
    held = "registers" if dtype == "float32" else "packed"
    assert seen[0].kernel == (held if kernel == "held" else kernel) and seen[0].warpgroups > 1


VARIANT = {"strips": "two_reads", "registers": "one_read", "ring": "prefetched", "ahead": "prefetched"}


@pytest.mark.parametrize(
    "shape, fields, kernel",
    (
        ((2, 20483), {}, "strips"),
        ((9, 1100), {"blocks": 4}, "strips"),
        ((9, 1024), {"blocks": 2}, "registers"),
        ((3, 1027), {}, "registers"),
        ((7, 4099), {"blocks": 3}, "registers"),
        ((9, 1024), {"blocks": 4, "slots": 2}, "ring"),
        ((23, 4096), {"blocks": 5}, "ring"),
        ((17, 4096), {"blocks": 4, "tiles": 2, "slots": 3}, "ring"),
        ((11, 8192), {"blocks": 2, "parts": 1, "slots": 3}, "ahead"),
        ((9, 8192), {"blocks": 4, "parts": 4, "slots": 9}, "ahead"),
        ((2, 16384), {"blocks": 2, "parts": 4, "slots": 7}, "ahead"),
    ),
)
def test_rmsnorm_backward(shape, fields, kernel, pallas, monkeypatch):
    import jax

    from pallas_impl import rmsnorm_backward as module

    function = pallas("rmsnorm_backward")
    seen = override(monkeypatch, module, **fields)
    monkeypatch.setattr(module, "CHAIN", 2)  # so that a block hands over several partial sums
    jax.clear_caches()
    rng = np.random.default_rng(2)
    dy, x = (rng.normal(size=shape).astype("f4") for _ in range(2))
    weight = rng.normal(size=shape[1:]).astype("f4")
    rstd = (1 / np.sqrt((x * x).mean(axis=1))).astype("f4")
    results = function(*map(x_of, (dy, x, weight, rstd)), variant=VARIANT[kernel])
    for value, wanted in zip(results, rmsnorm_contract.expect_backward(dy, x, weight, rstd).values()):
        assert within(np.asarray(value), wanted)
    assert seen[0].kernel == kernel
    jax.clear_caches()


def x_of(values):
    import jax

    return jax.numpy.asarray(values)
