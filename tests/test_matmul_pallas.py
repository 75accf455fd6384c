"""Matmul in Pallas: what it refuses, which kernel it takes, and the forms that the crosscheck's small cases do not reach."""

import dataclasses

import numpy as np
import pytest

from crosscheck import backends
from reference.contract import Unsupported, scalar
from reference.matmul import expect


@pytest.fixture
def matmul(pytestconfig):
    """A function that gives matmul by a variant, race detector on."""
    backend = backends.find("pallas")
    if reason := backend.unavailable(pytestconfig.tier):
        pytest.skip(reason)
    return lambda variant=None: backend.function("matmul", variant, pytestconfig.tier)


def draw(*shape, dtype="bfloat16", seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(scalar(dtype))


def operands(m, n, k, ta=False, tb=False, dtype="bfloat16"):
    a, b = (k, m) if ta else (m, k), (n, k) if tb else (k, n)
    return draw(*a, dtype=dtype), draw(*b, dtype=dtype, seed=1)


def within(out, a, b, *arguments):
    expected = expect(a, b, *arguments)["out"]
    out = np.asarray(out)
    assert out.dtype == scalar(expected.dtype) and out.shape == expected.value.shape
    error = np.abs(out.astype(np.float64) - expected.value)
    half_ulp = np.spacing(np.abs(expected.value).astype(out.dtype)).astype(np.float64) / 2
    return np.all(error <= half_ulp + expected.bound)


def override(monkeypatch, **fields):
    """configure, with some fields of its result replaced; returns the configurations that were asked for."""
    from pallas_impl import matmul as module

    real, seen = module.configure, []

    def configure(*arguments):
        seen.append(dataclasses.replace(real(*arguments), **fields))
        return seen[-1]

    monkeypatch.setattr(module, "configure", configure)
    return seen


def to_jax(*values):
    import jax.numpy as jnp

    return [jnp.asarray(value) for value in values]


@pytest.mark.parametrize(
    "variant, dtype, arguments, text",
    (
        ("pipelined", "float32", {}, "dtype is float32; built here: float16 or bfloat16"),
        ("plain", "bfloat16", {}, "dtype is bfloat16; built here: float32"),
        (None, "float32", {"precision": "tf32"}, "precision is 'tf32' and K goes down the rows of a or b"),
        (None, "float32", {"precision": "tf32", "transpose_a": True, "transpose_b": True}, "K goes down the rows"),
    ),
)
def test_what_is_not_built_is_refused(matmul, variant, dtype, arguments, text):
    a, b = to_jax(draw(8, 8, dtype=dtype), draw(8, 8, dtype=dtype))
    with pytest.raises(Unsupported, match=text):
        matmul(variant)(a, b, **arguments)


def test_bad_input_is_refused(matmul):
    a, b = to_jax(*operands(4, 5, 6))
    with pytest.raises(ValueError, match=r"b has shape \(6, 5\), K = 5, and a has \(4, 6\), K = 6"):
        matmul()(a, b, transpose_b=True)
    with pytest.raises(TypeError, match="b is a numpy.ndarray; accepted: jax.Array"):
        matmul()(a, np.zeros((6, 5), "f4"))
    with pytest.raises(ValueError, match="variant is 'fast'; accepted:"):
        matmul("fast")(a, b)
    with pytest.raises(ValueError, match=r"bias has shape \(4,\); accepted: \(5,\), N"):
        matmul()(a, b, bias=to_jax(draw(4))[0])


@pytest.mark.parametrize(
    "kernel, m, n, itemsize, tile, pairs",
    (
        ("persistent", 4096, 4096, 2, (128, 256, 64), (2, 2)),
        ("specialised", 4096, 4096, 2, (128, 256, 64), (2, 1)),
        ("persistent", 8192, 4096, 4, (128, 256, 32), (2, 2)),
        ("persistent", 1, 4096, 2, (64, 32, 64), (1, 1)),
        ("persistent", 16, 8192, 2, (64, 64, 64), (1, 1)),
        ("pipelined", 4096, 4096, 2, (128, 128, 64), (1, 1)),
        ("plain", 4096, 4096, 4, (64, 64, 16), (1, 1)),
    ),
)
def test_the_tiles_follow_the_shape(kernel, m, n, itemsize, tile, pairs):
    module = pytest.importorskip("pallas_impl.matmul")
    config = module.configure(kernel, m, n, itemsize, 4)
    assert (config.tile_m, config.tile_n, config.tile_k) == tile
    assert (config.consumers, config.cluster) == pairs


def test_the_shared_memory_of_every_configuration_fits(matmul):
    from pallas_impl.matmul import TABLE
    from pallas_impl.matmul_tiles import Problem, Shared

    for config in TABLE:
        for size, out_size in ((2, 2), (2, 4), (4, 4)):
            config = dataclasses.replace(config, tile_k=128 // size)
            slots = Shared.of(config, Problem(1, 1, 1, False, False, None), size, out_size)
            a, b, out = (np.prod(shape) for shape in (slots.a, slots.b, slots.out))
            room = 227 * 1024 - 1024  # 1 KiB for barriers
            assert config.stages * (a + b) * size + config.consumers * 2 * out * out_size <= room


# Blocks that take several tiles of a ragged grid one after the other, rings that go round, two epilogues' slots.
@pytest.mark.parametrize("ta, tb", ((False, False), (True, True)))
def test_a_block_takes_several_tiles(matmul, monkeypatch, ta, tb):
    from pallas_impl import matmul as module

    monkeypatch.setattr(module, "MULTIPROCESSORS", 2)
    seen = override(monkeypatch, tile_m=64, tile_n=128, stages=2, width=2)
    a, b = operands(130, 300, 200, ta, tb)
    bias = draw(300, seed=2)
    out = matmul()(*to_jax(a, b), ta, tb, *to_jax(bias), "gelu_tanh", "float32")
    assert within(out, a, b, ta, tb, bias, "gelu_tanh", "float32")
    assert seen[0].kernel == "persistent"


@pytest.mark.parametrize("variant", ("pipelined", "specialised"))
def test_a_ring_goes_round(matmul, monkeypatch, variant):
    override(monkeypatch, stages=2)
    a, b = operands(65, 136, 330)
    assert within(matmul(variant)(*to_jax(a, b)), a, b)


@pytest.mark.parametrize("ta, tb", ((False, True), (True, False)))
def test_plain_turns_what_it_has_to(matmul, ta, tb):
    a, b = operands(66, 35, 70, ta, tb, "float32")
    for precision in ("ieee", "tf32"):
        assert within(matmul("plain")(*to_jax(a, b), ta, tb, precision=precision), a, b, ta, tb)


@pytest.mark.parametrize("dtype, variant", (("float16", "pipelined"), ("bfloat16", None), ("float32", None)))
def test_an_empty_sum_is_0(matmul, dtype, variant):
    a, b = operands(3, 70, 0, dtype=dtype)
    bias = draw(70, dtype=dtype)
    out = matmul(variant)(*to_jax(a, b), bias=to_jax(bias)[0], activation="gelu")
    assert within(out, a, b, False, False, bias, "gelu")


def test_what_is_not_finite_stays_in_its_row(matmul):
    a, b = operands(5, 70, 65)
    a[1, 64], a[3, 0] = np.nan, np.inf
    out = np.asarray(matmul()(*to_jax(a, b))).astype("f4")
    assert np.isnan(out[1]).all() and np.isinf(out[3]).all() and np.isfinite(out[[0, 2, 4]]).all()


@pytest.mark.parametrize("activation", ("gelu", "gelu_tanh"))
def test_activations_at_the_ends(matmul, activation):
    z = np.array([[np.inf, -np.inf, np.nan, 0, -0.0, 1e30, -1e30, 40, -40, 6, -6, 1e-30]], "f4").T
    out = np.asarray(matmul()(*to_jax(z, np.ones((1, 1), "f4")), activation=activation))[:, 0]
    assert out[0] == np.inf and np.isnan(out[1:3]).all() and out[5] == np.float32(1e30)
    assert (np.abs(out[[3, 4, 6, 8]]) == 0).all() and out[7] == 40 and out[9] == 6 and -1e-5 < out[10] <= 0


@pytest.mark.parametrize("n", (128, 100))
def test_out_is_written_and_returned(matmul, n):
    import jax

    a, b = operands(40, n, 72)
    out = jax.new_ref(to_jax(np.full((40, n), np.nan, "f4"))[0])
    assert matmul()(*to_jax(a, b), out_dtype="float32", out=out) is out
    assert within(jax.freeze(out), a, b, False, False, None, None, "float32")


def test_under_jit(matmul):
    import jax

    a, b = operands(33, 40, 50)
    call = jax.jit(lambda a, b: matmul()(a, b, activation="gelu"))
    assert within(call(*to_jax(a, b)), a, b, False, False, None, "gelu")
