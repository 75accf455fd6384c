"""Matmul in Triton: which kernels a call takes, views, tails, and what it refuses."""

import numpy as np
import pytest

from crosscheck import backends
from crosscheck.arrays import KINDS
from crosscheck.compare import judge
from reference.matmul import expect

TRITON = backends.find("triton")


@pytest.fixture
def matmul(pytestconfig):
    """The public function; skips where Triton is not there."""
    if reason := TRITON.unavailable(pytestconfig.tier):
        pytest.skip(reason)
    from triton_impl.matmul import matmul

    return matmul


@pytest.fixture
def put(pytestconfig):
    return KINDS[TRITON.kind(pytestconfig.tier)](pytestconfig.tier).put


@pytest.fixture
def launched(matmul, monkeypatch):
    """The names of the kernels that calls launch, one after the other."""
    from triton_impl import matmul as module

    names = []

    class Watched:
        def __init__(self, name, kernel):
            self.name, self.kernel = name, kernel

        def __getitem__(self, grid):
            names.append(self.name)
            return self.kernel[grid]

    for name in ("_tiled", "_descriptors", "_persistent", "_fold"):
        monkeypatch.setattr(module, name, Watched(name, getattr(module, name)))
    return names


def drawn(*shape, dtype="f2", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def agrees(out, a, b, **arguments):
    """Whether out, a tensor, is within the contract's bound of what a and b, arrays, give."""
    return judge(out.cpu().numpy(), expect(a, b, **arguments)["out"]).error_over_bound <= 1


# --- which kernels a call takes


@pytest.mark.parametrize(
    "a, b, more, kernels",
    [
        ((64, 72), (72, 72), {}, ["_descriptors"]),
        ((64, 72), (72, 72), {"variant": "tiled"}, ["_tiled"]),
        ((64, 72), (72, 71), {}, ["_tiled"]),  # rows of 142 bytes
        ((64, 0), (0, 72), {}, ["_tiled"]),
        ((3, 2056), (2056, 64), {}, ["_descriptors", "_fold"]),  # too few tiles for a GPU
        ((3, 2049), (2049, 64), {}, ["_tiled", "_fold"]),
        ((8, 64), (64, 3), {"variant": "tiled"}, ["_tiled"]),
    ],
)
def test_kernels_of_float16(matmul, put, launched, a, b, more, kernels):
    a, b = drawn(*a), drawn(*b, seed=1)
    assert agrees(matmul(put(a), put(b), **more), a, b)
    assert launched == kernels


@pytest.mark.parametrize("precision", ("ieee", "tf32"))
def test_kernels_of_float32(matmul, put, launched, precision):
    a, b = drawn(40, 36, dtype="f4"), drawn(36, 44, dtype="f4", seed=1)
    assert agrees(matmul(put(a), put(b), precision=precision), a, b, precision=precision)
    assert launched == ["_tiled"]  # K goes down b


@pytest.mark.parametrize("down_a", (False, True))
@pytest.mark.parametrize("down_b", (False, True))
@pytest.mark.parametrize("out_dtype", (None, "float32"))
def test_persistent(matmul, put, launched, monkeypatch, down_a, down_b, out_dtype):
    """Three rows of tiles and two columns for two programs, all three sizes with tails."""
    from triton_impl import tensors

    monkeypatch.setattr(tensors, "multiprocessors", lambda tensor: 2)
    a = drawn(*((72, 264) if down_a else (264, 72)))
    b = drawn(*((72, 264) if down_b else (264, 72)), seed=1)
    bias = drawn(264, seed=2)
    arguments = {"transpose_a": down_a, "transpose_b": not down_b, "activation": "gelu", "out_dtype": out_dtype}
    out = matmul(put(a), put(b), bias=put(bias), **arguments)
    assert launched == ["_persistent"]
    assert agrees(out, a, b, bias=bias, **arguments)


def test_persistent_tf32(matmul, put, launched, monkeypatch):
    from triton_impl import tensors

    monkeypatch.setattr(tensors, "multiprocessors", lambda tensor: 2)
    a, b = drawn(200, 36, dtype="f4"), drawn(260, 36, dtype="f4", seed=1)
    assert agrees(matmul(put(a), put(b), False, True, precision="tf32"), a, b, transpose_b=True, precision="tf32")
    assert launched == ["_persistent"]


def test_every_tile_of_two_groups_is_written(matmul, put):
    """Nine rows of tiles: a whole group of eight and one of one."""
    a, b = drawn(1040, 8), drawn(8, 130, seed=1)
    out = put(np.full((1040, 130), np.nan, "f2"))
    assert matmul(put(a), put(b), out=out, variant="tiled") is out
    assert agrees(out, a, b)


@pytest.mark.parametrize("k", (4096, 4097))
def test_parts_of_k_give_the_same_bits_twice(matmul, put, launched, k):
    a, b, bias = drawn(3, k), drawn(k, 65, seed=1), drawn(65, seed=2)
    arguments = {"activation": "gelu_tanh", "out_dtype": "float32"}
    first, second = (matmul(put(a), put(b), bias=put(bias), **arguments).cpu().numpy() for _ in range(2))
    assert launched[:2] == ["_tiled", "_fold"] and np.array_equal(first, second)
    assert judge(first, expect(a, b, bias=bias, **arguments)["out"]).error_over_bound <= 1


# --- views


VIEWS = {
    "rows apart": lambda x: x[:, :40],
    "rows apart, off a boundary": lambda x: x[:, 1:41],
    "transposed": lambda x: x[:40, :].T,
    "transposed, off a boundary": lambda x: x[1:41, 3:].T,
    "a row": lambda x: x[5:6, :40],
    "a column as a row": lambda x: x[:40, 5:6].T,
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("variant", ("tiled", "descriptors"))
def test_views_of_a(matmul, put, view, variant):
    stored, b = drawn(48, 48), drawn(40, 24, seed=1)
    a = VIEWS[view](put(stored))
    assert agrees(matmul(a, put(b), variant=variant), VIEWS[view](stored), b)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("variant", ("tiled", "descriptors"))
def test_views_of_b(matmul, put, view, variant):
    stored, a = drawn(48, 48), drawn(24, 40, seed=1)
    b = VIEWS[view](put(stored))
    assert agrees(matmul(put(a), b, transpose_b=True, variant=variant), a, VIEWS[view](stored), transpose_b=True)


def test_offsets_past_32_bits(matmul, pytestconfig):
    """Rows so far apart that the third lies 2^31 elements away; only the pages of the rows are ever touched."""
    import torch

    from triton_impl.tensors import PLATFORM

    apart = 2**30 + 8
    a = torch.empty(2 * apart + 16, dtype=torch.float16, device=PLATFORM).as_strided((3, 16), (apart, 1))
    values, b = drawn(3, 16), drawn(16, 8, seed=1)
    a.copy_(torch.from_numpy(values))
    assert agrees(matmul(a, torch.from_numpy(b).to(PLATFORM), variant="tiled"), values, b)


# --- numbers


@pytest.mark.parametrize("variant", ("tiled", "descriptors"))
@pytest.mark.parametrize("bad", (np.nan, np.inf))
def test_what_is_not_finite_stays_in_its_row(matmul, put, variant, bad):
    a, b = drawn(72, 72), drawn(72, 72, seed=1)
    a[70, 71] = bad
    out = matmul(put(a), put(b), variant=variant).cpu().numpy()
    assert not np.isfinite(out[70]).any() and np.isfinite(np.delete(out, 70, 0)).all()


@pytest.mark.parametrize("variant", ("tiled", "descriptors", "persistent"))
def test_an_empty_sum_is_zero(matmul, put, variant):
    out = matmul(put(np.ones((3, 0), "f2")), put(np.ones((0, 5), "f2")), bias=put(np.ones(5, "f2")), variant=variant)
    assert np.array_equal(out.cpu().numpy(), np.ones((3, 5), "f2"))


# --- refusals


@pytest.mark.parametrize(
    "more, error, message",
    [
        ({"variant": "fastest"}, ValueError, "variant is 'fastest'; accepted: "),
        ({"variant": "persistent_tf32"}, NotImplementedError, "dtype is float16; built here: float32"),
        ({"activation": "relu"}, ValueError, "activation is 'relu'; accepted: "),
        ({"precision": "tf32"}, ValueError, "precision is 'tf32' and a has dtype float16; accepted: "),
        ({"out_dtype": "bfloat16"}, TypeError, "out_dtype is 'bfloat16'; accepted: float16 or float32"),
        ({"transpose_b": True}, ValueError, "b has shape"),
    ],
)
def test_refusals(matmul, put, more, error, message):
    with pytest.raises(error) as caught:
        matmul(put(drawn(4, 8)), put(drawn(8, 16)), **more)
    assert str(caught.value).startswith(message)


def test_out_overlaps_nothing(matmul, put):
    a = put(drawn(8, 8))
    with pytest.raises(ValueError, match="out overlaps a; accepted: memory of its own"):
        matmul(a, put(drawn(8, 8)), out=a)
