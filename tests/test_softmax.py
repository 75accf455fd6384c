"""Softmax: the implementations against the reference, and what each refuses."""

import numpy as np
import pytest

from crosscheck import backends
from crosscheck.arrays import KINDS
from reference.contract import ArrayInfo, row_major
from reference.softmax import check

OPERATORS = ("softmax",)
BUILT = [name for name in backends.IMPLEMENTATIONS if backends.find(name).has("softmax")]


def test_agreement(agreement, passes):
    passes(agreement)


# What the contract refuses, in the words of all three


def info(shape=(3, 4), dtype="float32", strides=None, device="cuda:0", address=0):
    return ArrayInfo(shape, dtype, strides or row_major(shape), device, address)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ((info(dtype="float64"),), TypeError, "x has dtype float64; accepted: float32, float16 or bfloat16"),
        ((info((4,)),), ValueError, "x has shape (4,); accepted: two axes, (rows, cols)"),
        ((info((2, 3, 4)),), ValueError, "x has shape (2, 3, 4); accepted: two axes, (rows, cols)"),
        ((info((3, 0)),), ValueError, "x has shape (3, 0); accepted: cols of 1 or more"),
        ((info(strides=(8, 2)),), ValueError, "x has strides (8, 2); accepted: contiguous, (4, 1)"),
        ((info(strides=(8, 1)),), ValueError, "x has strides (8, 1); accepted: contiguous, (4, 1)"),
        ((info(device="cpu"),), ValueError, "x is on cpu; accepted: arrays on a cuda device"),
        (
            (info(), info(device="cuda:1", address=512)),
            ValueError,
            "out is on cuda:1 and x on cuda:0; accepted: one device for all",
        ),
        ((info(), info(dtype="float16", address=512)), TypeError, "out has dtype float16; accepted: float32"),
        ((info(), info((4, 3), address=512)), ValueError, "out has shape (4, 3); accepted: (3, 4)"),
        (
            (info(), info(strides=(8, 1), address=512)),
            ValueError,
            "out has strides (8, 1); accepted: contiguous, (4, 1)",
        ),
        ((info(), info()), ValueError, "out overlaps x; accepted: memory of its own"),
        ((info(), info(address=44)), ValueError, "out overlaps x; accepted: memory of its own"),
    ],
)
def test_refusals(arguments, error, message):
    with pytest.raises(error) as caught:
        check(*arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "arguments",
    [
        (info(), info(address=48)),  # side by side
        (info((0, 5)),),
        (info((1, 5), strides=(7, 1)),),  # a stride without a second row is no stride
        (ArrayInfo((3, 4), "bfloat16"), ArrayInfo((3, 4), "bfloat16")),
    ],
)
def test_accepted(arguments):
    check(*arguments)


@pytest.fixture(params=BUILT)
def implementation(request, pytestconfig):
    """The public function of an implementation, and its arrays."""
    backend, tier = backends.find(request.param), pytestconfig.tier
    if reason := backend.unavailable(tier):
        pytest.skip(reason)
    best = backend.best("softmax", "float32", pytestconfig.gpu)
    return backend.function("softmax", best, tier), KINDS[backend.kind(tier)](tier)


@pytest.mark.parametrize(
    "x, message",
    [
        (np.ones((2, 3), np.int32), "TypeError: x has dtype int32; accepted: float32, float16 or bfloat16"),
        (np.ones(3, "f4"), "ValueError: x has shape (3,); accepted: two axes, (rows, cols)"),
        (np.ones((2, 0), "f4"), "ValueError: x has shape (2, 0); accepted: cols of 1 or more"),
    ],
)
def test_implementations_refuse_alike(implementation, x, message):
    function, arrays = implementation
    with pytest.raises((TypeError, ValueError)) as caught:
        function(arrays.put(x))
    assert f"{type(caught.value).__name__}: {caught.value}" == message


def test_foreign_arrays(implementation):
    function, _ = implementation
    with pytest.raises(TypeError, match="x is a builtins.list; accepted: "):
        function([[1, 2, 3]])


@pytest.mark.parametrize("name", BUILT)
def test_unknown_variant(name, pytestconfig):
    backend, tier = backends.find(name), pytestconfig.tier
    if reason := backend.unavailable(tier):
        pytest.skip(reason)
    x = KINDS[backend.kind(tier)](tier).put(np.ones((2, 3), "f4"))
    with pytest.raises(ValueError, match="variant is 'fastest'; accepted: "):
        backend.function("softmax", "fastest", tier)(x)


def test_strided_views(implementation):
    function, arrays = implementation
    if type(arrays).__name__ == "JaxArrays":
        pytest.skip("JAX arrays have no strides")
    x = arrays.put(np.ones((4, 8), "f4"))
    with pytest.raises(ValueError, match=r"x has strides \(8, 2\); accepted: contiguous, \(4, 1\)"):
        function(x[:, ::2])


def test_no_rows(implementation):
    function, arrays = implementation
    assert arrays.get(function(arrays.put(np.ones((0, 5), "f4")))).shape == (0, 5)


def test_out_is_returned(implementation):
    function, arrays = implementation
    if type(arrays).__name__ == "JaxArrays":
        pytest.skip("JAX arrays are written through a jax.Ref")
    x, out = arrays.put(np.zeros((3, 5), "f4")), arrays.put(np.ones((3, 5), "f4"))
    assert function(x, out=out) is out
    assert np.array_equal(arrays.get(out), np.full((3, 5), np.float32(0.2)))
    with pytest.raises(ValueError, match="out overlaps x; accepted: memory of its own"):
        function(x, out=x)


@pytest.mark.parametrize("dtype", ("float32", "float16"))
@pytest.mark.parametrize("offset", (1, 2, 4))
def test_misaligned_views(implementation, dtype, offset):
    """A view that starts off a 16-byte boundary is contiguous all the same."""
    function, arrays = implementation
    if type(arrays).__name__ == "JaxArrays":
        pytest.skip("JAX arrays have no views")
    rows, cols = 3, 256
    values = np.arange(rows * cols + 8).astype(dtype) % 7
    x, out = arrays.put(values), arrays.put(np.zeros_like(values))
    view = out[offset : offset + rows * cols].reshape(rows, cols)
    function(x[8 - offset : 8 - offset + rows * cols].reshape(rows, cols), out=view)
    part = values[8 - offset : 8 - offset + rows * cols].reshape(rows, cols)
    e = np.exp(part.astype(np.float64) - part.max(axis=1, keepdims=True))
    assert np.allclose(arrays.get(view), e / e.sum(axis=1, keepdims=True), rtol=2e-3, atol=0)
    assert not arrays.get(out)[:offset].any() and not arrays.get(out)[offset + rows * cols :].any()


# The tiles of the CUDA kernels


@pytest.mark.parametrize("variant", ("5_persistent", "6_packed"))
@pytest.mark.parametrize(
    "rows, cols, dtype",
    [
        (3, 17000, "bfloat16"),  # a block a row
        (19, 17001, "float16"),  # one element at a time
        (19, 40000, "bfloat16"),  # three rows of a cluster of two
        (3, 131072, "float32"),  # a cluster of eight
        (2, 270001, "float16"),  # the online form
    ],
)
def test_cuda_wide_rows(rows, cols, dtype, variant, pytestconfig):
    """What wide rows take, at sizes that a machine without a GPU manages."""
    check_wide_rows("cuda", rows, cols, dtype, pytestconfig, variant)


def check_wide_rows(name, rows, cols, dtype, pytestconfig, variant=None):
    """A variant, or the best one, against the reference; one row is minus infinity but for its end."""
    from crosscheck.compare import judge
    from reference.contract import scalar
    from reference.softmax import expect

    backend, tier = backends.find(name), pytestconfig.tier
    if reason := backend.unavailable(tier):
        pytest.skip(reason)
    arrays = KINDS[backend.kind(tier)](tier)
    x = np.random.default_rng(cols).standard_normal((rows, cols)).astype(scalar(dtype))
    x[1, :-1] = -np.inf
    function = backend.function("softmax", variant or backend.best("softmax", dtype, pytestconfig.gpu), tier)
    assert judge(arrays.get(function(arrays.put(x))), expect(x)["out"]).error_over_bound <= 1


@pytest.mark.parametrize("dtype", ("bfloat16", "float32"))
@pytest.mark.parametrize("cols", (1, 33, 1024, 16384, 16385, 32768, 40000, 50257, 131072, 262144))
@pytest.mark.parametrize("variant", (4, 5))
def test_cuda_tiles(cols, dtype, variant):
    """What holds a row fits on chip: threads, shared memory, and every element has an owner."""
    from cupy_impl.softmax import VARIANTS, plan

    x = info((4096, cols), dtype, address=0)
    (launch,) = plan(x, x, variant=VARIANTS["softmax"][variant])
    sizes = {name: int(value) for name, value in launch.kernel.defines if value.isdigit()}
    if "TEAMS" not in sizes:  # the rung for other widths
        return
    assert launch.block[0] == sizes["TEAM"] * sizes["TEAMS"] <= 1024 and launch.shared_bytes <= 226 * 1024
    assert sizes["CLUSTER"] * sizes["TEAM"] * sizes["VECTORS"] * sizes["VECTOR"] >= cols
    assert cols % sizes["VECTOR"] == 0 and launch.grid[0] % sizes["CLUSTER"] == 0
    assert launch.cluster == (sizes["CLUSTER"], 1, 1) and sizes["CLUSTER"] <= 8


@pytest.mark.parametrize(
    "variant, cols, dtype, cluster, stages",
    [
        ("6_packed", 1024, "bfloat16", 1, 0),
        ("6_packed", 16384, "bfloat16", 1, 0),
        ("6_packed", 32768, "bfloat16", 1, 0),
        ("6_packed", 32768, "float32", 1, 0),
        ("6_packed", 50257, "bfloat16", 4, 0),
        ("6_packed", 131072, "bfloat16", 4, 0),
        ("6_packed", 262144, "float32", 8, 0),
        ("5_persistent", 40000, "bfloat16", 2, 3),
        ("5_persistent", 32768, "float32", 2, 3),
        ("5_persistent", 50257, "bfloat16", 4, 3),
        ("5_persistent", 131072, "bfloat16", 4, 3),
    ],
)
def test_cuda_wide_tiles(variant, cols, dtype, cluster, stages):
    """How many blocks share a row, and how many rows they have in shared memory."""
    from cupy_impl.rows import packed_tile, vector_width
    from cupy_impl.softmax import VARIANTS, persistent_tile, plan
    from reference.contract import scalar

    x = info((4096, cols), dtype)
    vector, size = vector_width(cols, x, x), scalar(dtype).itemsize
    tile = {"5_persistent": persistent_tile, "6_packed": packed_tile}[variant](cols, vector, size)
    assert (tile.shares, tile.stages) == (cluster, stages)
    (launch,) = plan(x, x, variant=next(v for v in VARIANTS["softmax"] if v.name == variant))
    assert launch.kernel.source == f"softmax/{variant}.cu" and launch.cluster == (cluster, 1, 1)
    assert launch.shared_bytes == stages * tile.held * size <= 227 * 1024


def test_cuda_past_a_cluster():
    """Wider rows than a cluster holds take the rung that goes along them twice."""
    from cupy_impl.softmax import VARIANTS, plan

    x = info((2, 524288 + 8), "bfloat16")
    (launch,) = plan(x, x, variant=VARIANTS["softmax"][-1])
    assert launch.kernel.source == "softmax/3_warp.cu"


# The tiles of the Triton kernels


@pytest.mark.parametrize(
    "rows, cols, dtype",
    [
        (5, 32768, "float16"),  # packed
        (3, 20480, "float16"),  # packed, the tile wider than the row
        (3, 11008, "float32"),
        (3, 20481, "float16"),  # not by TMA
    ],
)
def test_triton_wide_rows(rows, cols, dtype, pytestconfig):
    check_wide_rows("triton", rows, cols, dtype, pytestconfig)
