"""RMSNorm and its backward pass: the implementations against the reference, and what each refuses."""

import numpy as np
import pytest

from crosscheck import backends
from crosscheck.arrays import KINDS
from crosscheck.compare import judge
from reference.contract import ArrayInfo, row_major, scalar
from reference.rmsnorm import check, check_backward, expect, expect_backward

OPERATORS = ("rmsnorm", "rmsnorm_backward")
BUILT = [name for name in backends.IMPLEMENTATIONS if backends.find(name).has("rmsnorm")]


def test_agreement(agreement, passes):
    passes(agreement)


# What the contract refuses, in the words of all three


def info(shape=(3, 4), dtype="float32", strides=None, device="cuda:0", address=None):
    return ArrayInfo(shape, dtype, strides or row_major(shape), device, address)


X, W, R = info(), info((4,)), info((3,))
POSITIVE = "accepted: a finite number above 0 that float32 can hold"


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"x": info(dtype="float64")}, TypeError, "x has dtype float64; accepted: float32, float16 or bfloat16"),
        (
            {"residual": info(dtype="float16")},
            TypeError,
            "residual has dtype float16 and x has float32; accepted: one dtype for all",
        ),
        ({"weight": info((4,), "float16")}, TypeError, "weight has dtype float16; accepted: float32"),
        (
            {"x": info(dtype="float16"), "weight": info((4,), "bfloat16")},
            TypeError,
            "weight has dtype bfloat16; accepted: float16 or float32",
        ),
        ({"x": info((4,))}, ValueError, "x has shape (4,); accepted: two axes, (rows, cols)"),
        ({"x": info((3, 0))}, ValueError, "x has shape (3, 0); accepted: cols of 1 or more"),
        (
            {"residual": info((4, 4))},
            ValueError,
            "residual has shape (4, 4) and x has (3, 4); accepted: equal shapes",
        ),
        ({"weight": info((5,))}, ValueError, "weight has shape (5,); accepted: (4,), the cols of x"),
        ({"weight": info((1, 4))}, ValueError, "weight has shape (1, 4); accepted: (4,), the cols of x"),
        ({"x": info(strides=(8, 2))}, ValueError, "x has strides (8, 2); accepted: contiguous, (4, 1)"),
        ({"weight": info((4,), strides=(2,))}, ValueError, "weight has strides (2,); accepted: contiguous, (1,)"),
        ({"eps": 0.0}, ValueError, f"eps is 0.0; {POSITIVE}"),
        ({"eps": -1e-6}, ValueError, f"eps is -1e-06; {POSITIVE}"),
        ({"eps": float("nan")}, ValueError, f"eps is nan; {POSITIVE}"),
        ({"eps": float("inf")}, ValueError, f"eps is inf; {POSITIVE}"),
        ({"eps": "1e-6"}, TypeError, f"eps is '1e-6'; {POSITIVE}"),
        (
            {"weight": info((4,), device="cuda:1")},
            ValueError,
            "weight is on cuda:1 and x on cuda:0; accepted: one device for all",
        ),
        ({"x": info(device="cpu")}, ValueError, "x is on cpu; accepted: arrays on a cuda device"),
        ({"out": [X], "return_rstd": True}, ValueError, "out has length 1; accepted: 2, (y, rstd)"),
        ({"out": [X], "residual": X}, ValueError, "out has length 1; accepted: 2, (y, sum)"),
        ({"out": [X, X, X]}, ValueError, "out has length 3; accepted: 1, (y)"),
        (
            {"out": [X, info((3,), "float16")], "return_rstd": True},
            TypeError,
            "rstd has dtype float16; accepted: float32",
        ),
        ({"out": [info((4, 3))]}, ValueError, "y has shape (4, 3); accepted: (3, 4)"),
        (
            {"x": info(address=0), "out": [info(address=16)]},
            ValueError,
            "y overlaps x; accepted: memory of its own",
        ),
    ],
)
def test_refusals(arguments, error, message):
    with pytest.raises(error) as caught:
        check(**{"x": X, "weight": W, "eps": 1e-6} | arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"dy": info(dtype="float64")}, TypeError, "dy has dtype float64; accepted: float32, float16 or bfloat16"),
        (
            {"dy": info(dtype="float16")},
            TypeError,
            "dy has dtype float16 and x has float32; accepted: one dtype for all",
        ),
        ({"dy": info((3, 5))}, ValueError, "dy has shape (3, 5) and x has (3, 4); accepted: equal shapes"),
        ({"weight": info((3,))}, ValueError, "weight has shape (3,); accepted: (4,), the cols of x"),
        ({"rstd": info((4,))}, ValueError, "rstd has shape (4,); accepted: (3,), the rows of x"),
        ({"rstd": info((3, 1))}, ValueError, "rstd has shape (3, 1); accepted: (3,), the rows of x"),
        ({"rstd": info((3,), "float16")}, TypeError, "rstd has dtype float16; accepted: float32"),
        ({"rstd": info((3,), strides=(2,))}, ValueError, "rstd has strides (2,); accepted: contiguous, (1,)"),
        ({"dy": info(strides=(5, 1))}, ValueError, "dy has strides (5, 1); accepted: contiguous, (4, 1)"),
        ({"out": [X]}, ValueError, "out has length 1; accepted: 2, (dx, dweight)"),
        ({"out": [X, info((3,))]}, ValueError, "dweight has shape (3,); accepted: (4,)"),
        (
            {"rstd": info((3,), device="cuda:1")},
            ValueError,
            "rstd is on cuda:1 and x on cuda:0; accepted: one device for all",
        ),
    ],
)
def test_backward_refusals(arguments, error, message):
    with pytest.raises(error) as caught:
        check_backward(**{"dy": X, "x": X, "weight": W, "rstd": R} | arguments)
    assert str(caught.value) == message


@pytest.fixture(params=BUILT)
def implementation(request, pytestconfig):
    """An implementation's two functions in its best variants, and its arrays."""
    backend, tier = backends.find(request.param), pytestconfig.tier
    if reason := backend.unavailable(tier):
        pytest.skip(reason)
    functions = [backend.function(o, backend.best(o, "float32", pytestconfig.gpu), tier) for o in OPERATORS]
    return *functions, KINDS[backend.kind(tier)](tier)


@pytest.mark.parametrize(
    "x, weight, eps, message",
    [
        (np.ones((2, 3), "i4"), np.ones(3, "f4"), 1e-6, "TypeError: x has dtype int32; accepted: float32, float16 or bfloat16"),
        (np.ones((2, 0), "f4"), np.ones(0, "f4"), 1e-6, "ValueError: x has shape (2, 0); accepted: cols of 1 or more"),
        (np.ones((2, 3), "f4"), np.ones(4, "f4"), 1e-6, "ValueError: weight has shape (4,); accepted: (3,), the cols of x"),
        (np.ones((2, 3), "f4"), np.ones(3, "f2"), 1e-6, "TypeError: weight has dtype float16; accepted: float32"),
        (np.ones((2, 3), "f4"), np.ones(3, "f4"), 0, f"ValueError: eps is 0; {POSITIVE}"),
        (np.ones((2, 3), "f4"), np.ones(3, "f4"), float("nan"), f"ValueError: eps is nan; {POSITIVE}"),
    ],
)  # fmt: skip
def test_implementations_refuse_alike(implementation, x, weight, eps, message):
    function, _, arrays = implementation
    with pytest.raises((TypeError, ValueError)) as caught:
        function(arrays.put(x), arrays.put(weight), eps)
    assert f"{type(caught.value).__name__}: {caught.value}" == message


def test_implementations_refuse_alike_backward(implementation):
    _, function, arrays = implementation
    x, w, r = arrays.put(np.ones((2, 3), "f4")), arrays.put(np.ones(3, "f4")), arrays.put(np.ones(2, "f4"))
    for given, message in (
        ((arrays.put(np.ones((3, 3), "f4")), x, w, r), "dy has shape (3, 3) and x has (2, 3); accepted: equal shapes"),
        ((x, x, w, w), "rstd has shape (3,); accepted: (2,), the rows of x"),
    ):
        with pytest.raises(ValueError) as caught:
            function(*given)
        assert str(caught.value) == message


def test_strided_views(implementation):
    function, _, arrays = implementation
    if type(arrays).__name__ == "JaxArrays":
        pytest.skip("JAX arrays have no strides")
    x, w = arrays.put(np.ones((4, 8), "f4")), arrays.put(np.ones(4, "f4"))
    with pytest.raises(ValueError, match=r"x has strides \(8, 2\); accepted: contiguous, \(4, 1\)"):
        function(x[:, ::2], w, 1e-6)


@pytest.mark.parametrize("name", BUILT)
@pytest.mark.parametrize("operator", OPERATORS)
def test_unknown_variant(name, operator, pytestconfig):
    backend, tier = backends.find(name), pytestconfig.tier
    if reason := backend.unavailable(tier):
        pytest.skip(reason)
    arrays = KINDS[backend.kind(tier)](tier)
    x, w = arrays.put(np.ones((2, 3), "f4")), arrays.put(np.ones(3, "f4"))
    given = (x, w, 1e-6) if operator == "rmsnorm" else (x, x, w, arrays.put(np.ones(2, "f4")))
    with pytest.raises(ValueError, match="variant is 'fastest'; accepted: "):
        backend.function(operator, "fastest", tier)(*given)


# What is returned


def inputs(rows, cols, dtype="float32", weight_dtype=None):
    """dy, x, weight and rstd, drawn normal."""
    rng = np.random.default_rng([rows, cols])
    dy, x = (rng.standard_normal((rows, cols)).astype(scalar(dtype)) for _ in range(2))
    weight = rng.standard_normal(cols).astype(scalar(weight_dtype or dtype))
    rstd = 1 / np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=1) + 1e-6)
    return dy, x, weight, rstd.astype(np.float32)


def test_outputs_come_in_order(implementation):
    function, _, arrays = implementation
    residual, x, weight, _ = inputs(3, 130)
    put = [arrays.put(a) for a in (x, weight, residual)]
    for with_residual in (False, True):
        for return_rstd in (False, True):
            wanted = expect(x, weight, 1e-6, residual if with_residual else None, return_rstd)
            found = function(put[0], put[1], 1e-6, put[2] if with_residual else None, return_rstd)
            found = found if isinstance(found, tuple) else (found,)
            assert len(found) == len(wanted)
            for array, expected in zip(found, wanted.values()):
                assert judge(arrays.get(array), expected).error_over_bound <= 1


def test_out_is_the_same_tuple(implementation):
    function, backward, arrays = implementation
    if type(arrays).__name__ == "JaxArrays":
        pytest.skip("JAX arrays are written through a jax.Ref")
    dy, x, weight, rstd = (arrays.put(a) for a in inputs(3, 130))
    empty = lambda *shape: arrays.put(np.zeros(shape, "f4"))
    y = empty(3, 130)
    assert function(x, weight, 1e-6, out=y) is y
    out = empty(3, 130), empty(3, 130), empty(3)
    result = function(x, weight, 1e-6, dy, True, out=out)
    assert all(a is b for a, b in zip(result, out, strict=True))
    out = empty(3, 130), empty(130)
    result = backward(dy, x, weight, rstd, out=out)
    assert all(a is b for a, b in zip(result, out, strict=True))
    with pytest.raises(ValueError, match=r"out has length 1; accepted: 2, \(y, rstd\)"):
        function(x, weight, 1e-6, None, True, out=(y,))
    with pytest.raises(ValueError, match="y overlaps x; accepted: memory of its own"):
        function(x, weight, 1e-6, out=x)


def test_no_rows(implementation):
    function, backward, arrays = implementation
    x, weight, rstd = (arrays.put(np.ones(shape, "f4")) for shape in ((0, 5), 5, 0))
    assert arrays.get(function(x, weight, 1e-6)).shape == (0, 5)
    dx, dweight = backward(x, x, weight, rstd)
    assert arrays.get(dx).shape == (0, 5) and np.array_equal(arrays.get(dweight), np.zeros(5))


def test_the_sum_is_rounded_before_the_norm(implementation):
    """y is the norm of the sum that is returned, not of one that is never seen."""
    function, _, arrays = implementation
    residual, x, weight, _ = inputs(4, 260, "float16")
    y, total = function(*(arrays.put(a) for a in (x, weight)), 1e-6, arrays.put(residual))
    alone = function(total, arrays.put(weight), 1e-6)
    assert judge(arrays.get(y), expect(arrays.get(total), weight, 1e-6)["y"]).error_over_bound <= 1
    assert np.array_equal(arrays.get(alone), arrays.get(y)) or type(arrays).__name__ != "NumpyArrays"


@pytest.mark.parametrize("name", BUILT)
def test_dweight_has_the_same_bits_twice(name, pytestconfig):
    backend, tier = backends.find(name), pytestconfig.tier
    if reason := backend.unavailable(tier):
        pytest.skip(reason)
    arrays = KINDS[backend.kind(tier)](tier)
    # Interpreters go one way always: there it is enough that the wrapper does.
    for rows, cols in ((19, 129),) if tier == "cpu" else ((600, 40), (37, 1025), (5000, 257), (700, 8192), (9, 50257)):
        given = inputs(rows, cols)
        for variant in backend.variants("rmsnorm_backward"):
            function = backend.function("rmsnorm_backward", variant, tier)
            first, second = (arrays.get(function(*(arrays.put(a) for a in given))[1]) for _ in range(2))
            assert first.tobytes() == second.tobytes(), (variant, rows, cols)


# The tiles of the CUDA kernels


@pytest.mark.parametrize(
    "rows, cols, dtype, weight_dtype, residual",
    [
        (19, 17000, "bfloat16", "bfloat16", True),  # backward shared between blocks
        (3, 17000, "bfloat16", "bfloat16", False),  # in registers, the weight read when it is needed
        (19, 17001, "float16", "float32", True),  # the same, one element at a time
        (19, 40000, "float32", "float32", False),  # clusters
        (2, 270000, "float16", "float16", False),  # past a cluster
    ],
)
def test_cuda_wide_rows(rows, cols, dtype, weight_dtype, residual, pytestconfig, monkeypatch):
    """What wide rows take, at sizes that a machine without a GPU manages."""
    from cupy_impl import host

    # Rows of 34 KB are shared by 9 blocks then: two groups, one of which is without a row in the end.
    monkeypatch.setattr(host, "multiprocessors", lambda array: 5)
    backend, tier = backends.find("cuda"), pytestconfig.tier
    if reason := backend.unavailable(tier):
        pytest.skip(reason)
    arrays = KINDS[backend.kind(tier)](tier)
    dy, x, weight, rstd = inputs(rows, cols, dtype, weight_dtype)
    added = dy if residual else None
    given = arrays.put(x), arrays.put(weight), 1e-6, None if added is None else arrays.put(added), True
    for variant in ("5_persistent", "6_packed"):
        found = backend.function("rmsnorm", variant, tier)(*given)
        for array, expected in zip(found, expect(x, weight, 1e-6, added, True).values(), strict=True):
            assert judge(arrays.get(array), expected).error_over_bound <= 1
    best = backend.function("rmsnorm_backward", backend.best("rmsnorm_backward", dtype, pytestconfig.gpu), tier)
    found = best(*(arrays.put(a) for a in (dy, x, weight, rstd)))
    for array, expected in zip(found, expect_backward(dy, x, weight, rstd).values(), strict=True):
        assert judge(arrays.get(array), expected).error_over_bound <= 1


@pytest.mark.parametrize("weight_dtype", ("own", "float32"))
@pytest.mark.parametrize("dtype", ("bfloat16", "float32"))
@pytest.mark.parametrize("cols", (1, 33, 1024, 4096, 8192, 16384, 32768, 50257, 131072, 262144))
def test_cuda_tiles(cols, dtype, weight_dtype):
    """What holds the rows of a launch fits on chip, and every element has an owner."""
    from cupy_impl.rmsnorm import VARIANTS, plan, plan_backward

    x = info((4096, cols), dtype, address=0)
    w = info((cols,), dtype if weight_dtype == "own" else weight_dtype, address=0)
    r = info((4096,), address=0)
    launches = [
        *plan(x, w, x, eps=1e-6, variant=VARIANTS["rmsnorm"][-1]),
        *plan(x, w, x, x, r, eps=1e-6, residual=x, return_rstd=True, variant=VARIANTS["rmsnorm"][-1]),
        *plan_backward(x, x, w, r, x, w, variant=VARIANTS["rmsnorm_backward"][1]),
        *plan_backward(x, x, w, r, x, w, variant=VARIANTS["rmsnorm_backward"][2]),
    ]
    for launch in launches:
        sizes = {name: int(value) for name, value in launch.kernel.defines if value.isdigit()}
        if "TEAMS" not in sizes:  # the rung for other widths
            continue
        assert launch.block[0] == sizes["TEAM"] * sizes["TEAMS"] <= 1024 and launch.shared_bytes <= 226 * 1024
        blocks = sizes["SHARES" if "SHARES" in sizes else "CLUSTER"]  # that share a row
        owned = blocks * sizes["TEAM"] * sizes["VECTORS"] * sizes["VECTOR"]
        assert owned >= cols and cols % sizes["VECTOR"] == 0
        assert launch.grid[0] % blocks == 0 and launch.cluster == (sizes.get("CLUSTER", 1), 1, 1)
        assert launch.cooperative or sizes.get("SHARES", 1) == 1, "they wait for each other"
        if launch.cooperative:  # all blocks are resident at once
            blocks = -(-launch.grid[0] // 132)
            threads = blocks * launch.block[0]
            assert (
                threads <= max(640 if sizes["SHARES"] > 1 else 512, launch.block[0])
                and blocks * (launch.shared_bytes + 2048) <= 228 * 1024
            )


# The tiles of the Triton kernels


@pytest.mark.parametrize(
    "rows, cols, dtype, weight_dtype",
    [
        (5, 32768, "float16", "float16"),  # packed; backward shared between programs, on a GPU
        (3, 20480, "float16", "float16"),  # the tile wider than the row
        (3, 11008, "float32", "float32"),
        (3, 11008, "float16", "float32"),  # forward not packed
        (3, 20481, "float16", "float16"),  # not by TMA
    ],
)
def test_triton_wide_rows(rows, cols, dtype, weight_dtype, pytestconfig):
    """What wide rows take; a NaN stays in its own row."""
    backend, tier = backends.find("triton"), pytestconfig.tier
    if reason := backend.unavailable(tier):
        pytest.skip(reason)
    arrays = KINDS[backend.kind(tier)](tier)
    best = lambda o: backend.function(o, backend.best(o, dtype, pytestconfig.gpu), tier)
    dy, x, weight, rstd = inputs(rows, cols, dtype, weight_dtype)
    found = best("rmsnorm_backward")(*(arrays.put(a) for a in (dy, x, weight, rstd)))
    for array, expected in zip(found, expect_backward(dy, x, weight, rstd).values(), strict=True):
        assert judge(arrays.get(array), expected).error_over_bound <= 1
    x[0, 7] = np.nan
    found = best("rmsnorm")(arrays.put(x), arrays.put(weight), 1e-6, None, True)
    for array, expected in zip(found, expect(x, weight, 1e-6, None, True).values(), strict=True):
        assert judge(arrays.get(array), expected).error_over_bound <= 1


@pytest.mark.parametrize("rows, shares", [(7, 2), (9, 3), (40, 3)])
def test_triton_shares(rows, shares, pytestconfig, monkeypatch):
    """The programs that share rows, one after the other in the interpreter: twice, as none can wait for the next."""
    if pytestconfig.tier == "gpu" or backends.find("triton").unavailable("cpu"):
        pytest.skip("for Triton's interpreter")
    import torch
    import triton.language as tl

    from triton_impl import rmsnorm, rmsnorm_backward, tensors

    def published(words, wanted):
        return tl.load(words, mask=wanted, other=0).to(tl.int32).to(tl.float32, bitcast=True)

    cols, words, zeros = shares * 1024 - 32, [], torch.zeros
    kept = lambda *arguments, **keywords: words[0] if words else words.append(zeros(*arguments, **keywords)) or words[0]
    monkeypatch.setattr(rmsnorm_backward, "_published", published)
    monkeypatch.setattr(rmsnorm_backward, "shared_backward_tiles", lambda *_: tensors.Tiles(1024, 1, 1, 2, programs=3))
    monkeypatch.setattr(rmsnorm_backward, "CHAIN", 6)  # rows of a program, and then the next part of dweight
    monkeypatch.setattr(torch, "zeros", kept)
    given = inputs(rows, cols)
    for _ in range(2):
        dx, dweight = rmsnorm.rmsnorm_backward(*map(torch.from_numpy, given), variant="shared_backward")
    for array, expected in zip((dx, dweight), expect_backward(*given).values()):
        assert judge(array.numpy(), expected).error_over_bound <= 1
