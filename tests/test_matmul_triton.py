"""Triton's matmul: what it refuses, which form a call takes, views, odd tails, split sums."""

import dataclasses

import numpy as np
import pytest

from crosscheck import backends
from crosscheck.compare import judge
from reference.contract import Unsupported
from reference.matmul import expect

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton_impl import matmul as module  # noqa: E402
from triton_impl import matmul_tiles as tiles  # noqa: E402
from triton_impl.matmul import matmul  # noqa: E402
from triton_impl.matmul_tiles import Rows, Tile  # noqa: E402


@pytest.fixture
def device(pytestconfig):
    return "cuda" if pytestconfig.tier == "gpu" else "cpu"


@pytest.fixture
def launched(monkeypatch):
    """The kernels that calls launch, in their order."""
    names = []
    for name in ("_tiled", "_descriptors", "_persistent", "_fold"):
        kernel = getattr(module, name)

        class Noted:
            def __init__(self, kernel, name):
                self.kernel, self.name = kernel, name

            def __getitem__(self, grid):
                names.append(self.name)
                return self.kernel[grid]

        monkeypatch.setattr(module, name, Noted(kernel, name))
    return names


def draw(device, *shape, dtype="float16", seed=0):
    values = np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)
    return torch.from_numpy(values).to(device)


def assert_right(out, a, b, **arguments):
    """out against the reference on the logical matrices."""
    values = {name: v.cpu().numpy() if isinstance(v, torch.Tensor) else v for name, v in arguments.items()}
    judgement = judge(out.cpu().numpy(), expect(a.cpu().numpy(), b.cpu().numpy(), **values)["out"])
    assert judgement.error_over_bound <= 1


# Which form a call takes


@pytest.mark.parametrize(
    "m, n, k, variant, kernels",
    [
        (136, 520, 72, None, ["_persistent"]),
        (136, 520, 72, "descriptors", ["_descriptors"]),
        (136, 520, 72, "tiled", ["_tiled"]),
        (136, 520, 71, None, ["_tiled"]),  # rows of A off 16 bytes
        (136, 519, 72, None, ["_tiled"]),  # rows of B
        (64, 64, 64, None, ["_descriptors"]),  # one tile
        (3, 64, 2048, None, ["_descriptors", "_fold"]),
        (3, 63, 2048, None, ["_tiled", "_fold"]),
        (16, 33, 0, None, ["_tiled"]),  # TMA takes nothing that is empty
        (1, 1, 1, None, ["_descriptors"]),  # a row that no other follows begins where TMA wants it
    ],
)
def test_forms(device, launched, m, n, k, variant, kernels, pytestconfig):
    if pytestconfig.tier == "gpu" and kernels == ["_persistent"]:
        pytest.skip("a GPU has more multiprocessors than this has tiles")
    a, b, bias = draw(device, m, k), draw(device, k, n), draw(device, n)
    out = matmul(a, b, bias=bias, activation="gelu", variant=variant)
    assert launched == kernels
    assert_right(out, a, b, bias=bias, activation="gelu")


def test_out_that_tma_cannot_store(device, launched):
    """A and B by TMA, out of odd rows by pointers."""
    a, b = draw(device, 264, 64), draw(device, 261, 64)
    assert_right(matmul(a, b, transpose_b=True), a, b, transpose_b=True)
    assert launched == ["_descriptors"]


@pytest.mark.parametrize(
    "transpose_b, precision, kernel",
    [(True, "tf32", "_persistent"), (False, "tf32", "_tiled"), (True, "ieee", "_tiled")],
)
def test_float32(device, launched, transpose_b, precision, kernel, pytestconfig):
    if pytestconfig.tier == "gpu" and kernel == "_persistent":
        pytest.skip("a GPU has more multiprocessors than this has tiles")
    a, b = (
        draw(device, 140, 36, dtype="float32"),
        draw(device, *((264, 36) if transpose_b else (36, 264)), dtype="float32"),
    )
    out = matmul(a, b, transpose_b=transpose_b, precision=precision)
    assert launched == [kernel]
    assert_right(out, a, b, transpose_b=transpose_b, precision=precision)


# Views


@pytest.mark.parametrize("variant", ("tiled", "descriptors", "persistent"))
@pytest.mark.parametrize(
    "a_view, b_view", [("rows", "rows"), ("turned", "rows"), ("rows", "turned"), ("turned rows", "turned rows")]
)
@pytest.mark.parametrize("transposed", (False, True))
def test_views(device, variant, a_view, b_view, transposed):
    """Rows further apart than they are long, columns for rows, and both under either transpose flag."""

    def view(kind, rows, cols):
        if "turned" in kind:
            return view(kind.replace("turned", ""), cols, rows).t()
        wide = draw(device, rows, cols + 16, seed=len(kind))
        return wide[:, 8 : 8 + cols] if "rows" in kind else wide[:, :cols].contiguous()

    a = view(a_view, *((72, 136) if transposed else (136, 72)))
    b = view(b_view, *((264, 72) if transposed else (72, 264)))
    arguments = {"transpose_a": transposed, "transpose_b": transposed}
    assert_right(matmul(a, b, variant=variant, **arguments), a, b, **arguments)


@pytest.mark.parametrize("variant", ("tiled", "descriptors"))
@pytest.mark.parametrize("first_row, first_col", [(0, 1), (1, 3), (5, 0)])
@pytest.mark.parametrize("turned", (False, True))
def test_views_off_a_boundary(device, variant, first_row, first_col, turned):
    """A base or a distance that TMA cannot take, on either side."""

    def view(of):
        cut = of[first_row : first_row + 40, first_col : first_col + 40]
        return cut.t() if turned else cut

    odd, even = draw(device, 48, 48), draw(device, 40, 24)
    a, b = view(odd), even
    assert_right(matmul(a, b, variant=variant), a, b)
    a, b = draw(device, 24, 40), view(odd)
    assert_right(matmul(a, b, variant=variant), a, b)


def test_rows_past_32_bits(device):
    """Rows so far apart that the third begins past 2^31 elements; pages in between are never touched."""
    apart = 2**30 + 8
    a = torch.empty(2 * apart + 16, dtype=torch.float16, device=device).as_strided((3, 16), (apart, 1))
    a.copy_(draw(device, 3, 16))
    b = draw(device, 16, 8)
    assert_right(matmul(a, b, variant="tiled"), a, b)


@pytest.mark.parametrize(
    "rows, cols, stride, down", [(5, 24, (24, 1), False), (5, 24, (40, 1), False), (24, 5, (1, 32), True)]
)
def test_rows(rows, cols, stride, down):
    array = torch.empty(2000, dtype=torch.float16).as_strided((rows, cols), stride)
    found = Rows(array, False)
    assert (tuple(found.array.shape), found.stride, found.down) == ((5, 24), max(stride), down)
    assert found.by_tma() and not found.in_vectors()


def test_one_row_of_any_length():
    """A single row has no distance to another one, whatever its stride says."""
    assert Rows(torch.empty(64, dtype=torch.float16).as_strided((1, 33), (33, 1)), False).by_tma()
    assert not Rows(torch.empty(70, dtype=torch.float16).as_strided((2, 33), (33, 1)), False).by_tma()
    assert not Rows(torch.empty(70, dtype=torch.float16)[1:65].view(4, 16), False).by_tma()


# Tails


@pytest.mark.parametrize("variant", ("tiled", "descriptors", "persistent"))
@pytest.mark.parametrize("m, n, k", [(129, 264, 40), (1, 1, 1), (65, 257, 33), (127, 8, 129)])
def test_nan_stays_in_its_row(device, variant, m, n, k):
    a, b = draw(device, m, k), draw(device, k, n)
    a[m // 2, k - 1] = float("nan")
    out = matmul(a, b, variant=variant)
    rows = out.isnan().cpu()
    assert rows[m // 2].all() and rows.sum() == n
    assert_right(out, a, b)


def test_two_groups_of_tiles(device):
    """Nine rows of tiles: a whole group of eight and one that is not; every element is written."""
    a, b = draw(device, 1040, 8), draw(device, 8, 130)
    out = torch.full((1040, 130), float("nan"), dtype=torch.float16, device=device)
    assert_right(matmul(a, b, out=out, variant="tiled"), a, b)


@pytest.mark.parametrize("variant", ("tiled", "descriptors", "persistent"))
def test_infinity_stays_in_its_row(device, variant):
    a, b = draw(device, 72, 72), draw(device, 72, 520)
    a[70, 71] = float("inf")
    out = matmul(a, b, variant=variant).cpu()
    assert not out[70].isfinite().any() and out[torch.arange(72) != 70].isfinite().all()


@pytest.mark.parametrize("activation, value", [(None, 0.5), ("gelu", 0.34573123), ("gelu_tanh", 0.34571401)])
def test_empty_sum(device, activation, value):
    bias = torch.full((3,), 0.5, device=device)
    out = matmul(
        torch.empty((2, 0), device=device), torch.empty((0, 3), device=device), bias=bias, activation=activation
    )
    assert out.shape == (2, 3) and torch.allclose(out, torch.full_like(out, value), rtol=1e-6, atol=0)


@pytest.mark.parametrize("variant", ("tiled", "descriptors"))
def test_parts_are_folded_in_order(device, launched, variant):
    """Two calls give the same bits, in float32 from 16-bit numbers too."""
    a, b, bias = draw(device, 16, 4096), draw(device, 4096, 72), draw(device, 72)
    first, second = (matmul(a, b, bias=bias, out_dtype="float32", variant=variant) for _ in range(2))
    assert launched == [f"_{variant}", "_fold"] * 2
    assert torch.equal(first, second)
    assert_right(first, a, b, bias=bias, out_dtype="float32")


# Tiles


def every_tile():
    tables = [*tiles.TILED.values(), tiles.DESCRIPTORS]
    return {t for table in tables for t in table.values()} | {tiles.MANY, tiles.PERSISTENT}


def test_splits():
    tile = Tile(64, 64, 64, 4, 4, programs=1)
    assert [tile.splits(64, 64 * n, 1 << 14) for n in (1, 4, 5, 64, 65, 1000)] == [32, 32, 16, 2, 1, 1]
    assert [tile.splits(64, 64, k) for k in (0, 255, 256, 512, 1023, 1024)] == [1, 1, 1, 2, 2, 4]
    assert dataclasses.replace(tile, programs=0).splits(1, 1, 1 << 20) == 1


@pytest.mark.parametrize("shared", (227 << 10, 163 << 10, 99 << 10))
@pytest.mark.parametrize("dtype, precision", [("float16", "ieee"), ("float32", "ieee"), ("float32", "tf32")])
@pytest.mark.parametrize("m", (1, 16, 17, 64, 65, 8192))
def test_tiled_fits(m, dtype, precision, shared):
    for vectors in (False, True):
        t = tiles.tiled_tile(m, getattr(torch, dtype), precision, vectors, shared)
        assert t.stages * (t.block_m + t.block_n) * t.block_k * getattr(torch, dtype).itemsize <= shared - 2048


def test_the_narrowest_table_row_holds():
    """Every table ends in a row for all sizes, and blocks are powers of two that tl.dot takes."""
    for table in (*tiles.TILED.values(), tiles.DESCRIPTORS):
        assert list(table)[-1] is None
    for t in every_tile():
        assert all(n & (n - 1) == 0 and n >= 16 for n in (t.block_m, t.block_n, t.block_k))


def test_persistent_from_almost_a_tile_each():
    choose = lambda m, n, sms=132: tiles.persistent_tile(m, n, torch.bfloat16, torch.bfloat16, sms)
    assert choose(2048, 2048) == tiles.PERSISTENT and choose(1920, 2048) is None
    assert choose(8192, 8192) == tiles.PERSISTENT and choose(1, 1 << 17) is not None and choose(64, 4096) is None


# Refusals


def test_refusals(device):
    a, b = draw(device, 4, 8), draw(device, 8, 6)
    for arguments, error, message in [
        ({"variant": "fastest"}, ValueError, "variant is 'fastest'; accepted: tiled, persistent_tf32, descriptors or persistent"),
        ({"precision": "tf32"}, ValueError, "precision is 'tf32' and a has dtype float16; accepted: tf32 with float32"),
        ({"activation": "relu"}, ValueError, "activation is 'relu'; accepted: None, gelu or gelu_tanh"),
        ({"out_dtype": "bfloat16"}, TypeError, "out_dtype is 'bfloat16'; accepted: float16 or float32"),
        ({"transpose_a": True}, ValueError, "b has shape (8, 6), K = 8, and a has (4, 8), K = 4; accepted: one K for both"),
        ({"bias": draw(device, 5)}, ValueError, "bias has shape (5,); accepted: (6,), N"),
        ({"bias": draw(device, 6, dtype="float32")}, TypeError, "bias has dtype float32 and a has float16; accepted: one dtype for all"),
        ({"out": draw(device, 4, 12)[:, ::2]}, ValueError, "out has strides (12, 2); accepted: contiguous, (6, 1)"),
        ({"out": draw(device, 4, 6, dtype="float32")}, TypeError, "out has dtype float32; accepted: float16"),
        ({"variant": "persistent_tf32"}, Unsupported, "dtype is float16; built here: float32"),
    ]:  # fmt: skip
        with pytest.raises(error) as caught:
            matmul(a, b, **arguments)
        assert str(caught.value) == message
    with pytest.raises(Unsupported, match="a requires a gradient"):
        matmul(a.requires_grad_(), b)
    with pytest.raises(TypeError, match="a is a builtins.list; accepted: torch.Tensor"):
        matmul([[1.0]], b)


def test_strides_of_neither_kind(device):
    a, b = draw(device, 4, 16), draw(device, 8, 6)
    with pytest.raises(ValueError, match=r"a has strides \(16, 2\); accepted: row-major"):
        matmul(a[:, ::2], b)


def test_out(device):
    a, b, out = draw(device, 5, 7), draw(device, 7, 3), torch.empty((5, 3), dtype=torch.float32, device=device)
    assert matmul(a, b, out_dtype="float32", out=out) is out
    assert_right(out, a, b, out_dtype="float32")


def test_variants_by_device():
    """Whatever is not Hopper gets the form by pointers."""
    from reference.contract import pick

    for dtype, best in (("float16", "persistent"), ("bfloat16", "persistent"), ("float32", "persistent_tf32")):
        named = [pick(module.VARIANTS["matmul"], None, dtype, arch).name for arch in ("sm_80", "sm_90", "sm_100", None)]
        assert named == ["tiled", best, "tiled", best]
    assert backends.find("triton").variants("matmul") == ("tiled", "persistent_tf32", "descriptors", "persistent")
