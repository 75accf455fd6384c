"""Matmul: the implementations against the reference, and what each refuses."""

import itertools

import numpy as np
import pytest

from crosscheck import backends
from crosscheck.arrays import KINDS
from crosscheck.cases import CASES
from crosscheck.compare import judge
from crosscheck.runner import Runner, Task
from cupy_impl import host, matmul
from reference.contract import ArrayInfo, Unsupported, scalar
from reference.matmul import expect

OPERATORS = ("matmul",)
BUILT = [name for name in backends.IMPLEMENTATIONS if backends.find(name).has("matmul")]


def test_agreement(agreement, passes):
    passes(agreement)


@pytest.fixture(params=BUILT)
def implementation(request, pytestconfig):
    """A function that calls an implementation's best variant, or the one named, and its arrays."""
    backend, tier = backends.find(request.param), pytestconfig.tier
    if reason := backend.unavailable(tier):
        pytest.skip(reason)
    arrays = KINDS[backend.kind(tier)](tier)

    def call(*given, variant=None, **keywords):
        return backend.function("matmul", variant, tier)(*given, **keywords)

    return call, arrays


def draw(*shapes, dtype="float16", seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(scalar(dtype)) for shape in shapes]


def check_right(found, arrays, *given, **keywords):
    expected = expect(*given, **keywords)["out"]
    assert judge(arrays.get(found), expected).error_over_bound <= 1


A, B = np.ones((3, 4), "f4"), np.ones((4, 5), "f4")


@pytest.mark.parametrize(
    "arguments, keywords, message",
    [
        ((A.astype("i4"), B), {}, "TypeError: a has dtype int32; accepted: float16, bfloat16 or float32"),
        ((A, B.astype("f2")), {}, "TypeError: b has dtype float16 and a has float32; accepted: one dtype for all"),
        ((A[0], B), {}, "ValueError: a has shape (4,); accepted: two axes, (M, K)"),
        ((A, A), {}, "ValueError: b has shape (3, 4), K = 3, and a has (3, 4), K = 4; accepted: one K for both"),
        (
            (A[:0], B),
            {},
            "ValueError: a has shape (0, 4), M = 0, and b has (4, 5), N = 5; accepted: M and N of 1 or more",
        ),
        ((A, B), {"activation": "relu"}, "ValueError: activation is 'relu'; accepted: None, gelu or gelu_tanh"),
        ((A, B), {"precision": "fast"}, "ValueError: precision is 'fast'; accepted: ieee or tf32"),
        ((A, B), {"out_dtype": "float16"}, "TypeError: out_dtype is 'float16'; accepted: float32"),
        ((A, B), {"bias": A[0]}, "ValueError: bias has shape (4,); accepted: (5,), N"),
    ],
)
def test_implementations_refuse_alike(implementation, arguments, keywords, message):
    call, arrays = implementation
    keywords = {name: arrays.put(v) if isinstance(v, np.ndarray) else v for name, v in keywords.items()}
    with pytest.raises((TypeError, ValueError)) as caught:
        call(*(arrays.put(a) for a in arguments), **keywords)
    assert f"{type(caught.value).__name__}: {caught.value}" == message


def test_foreign_arrays(implementation):
    call, _ = implementation
    with pytest.raises(TypeError, match="a is a builtins.list; accepted: "):
        call([[1, 2, 3]], [[1], [2], [3]])


def test_unknown_variant(implementation):
    call, arrays = implementation
    with pytest.raises(ValueError, match="variant is 'fastest'; accepted: "):
        call(arrays.put(A), arrays.put(B), variant="fastest")


def test_every_other_element_is_no_row(implementation):
    call, arrays = implementation
    if type(arrays).__name__ == "JaxArrays":
        pytest.skip("JAX arrays have no strides")
    with pytest.raises(ValueError, match=r"a has strides \(8, 2\); accepted: row-major, "):
        call(arrays.put(np.ones((3, 8), "f4"))[:, ::2], arrays.put(B))


@pytest.mark.parametrize("dtype, cols", (("float32", 24), ("float16", 24), ("float16", 23)))
def test_views(implementation, dtype, cols):
    """Rows further apart than they are long, and transposed views; the latter for both operands."""
    call, arrays = implementation
    if type(arrays).__name__ == "JaxArrays":
        pytest.skip("JAX arrays have no strides")
    a, b = draw((40, 64), (64, 48), dtype=dtype)
    turned = lambda array, there: array.T if there else array
    for ta, tb in itertools.product((False, True), repeat=2):
        views = lambda x, y: (turned(x, ta)[:17, :cols], turned(y, tb)[:cols, :33])
        check_right(call(*views(arrays.put(a), arrays.put(b))), arrays, *views(a, b))


@pytest.mark.parametrize("keywords", ({}, {"activation": "gelu"}, {"out_dtype": "float32"}))
def test_no_terms(implementation, keywords):
    """An empty sum is 0; bias and activation follow all the same."""
    call, arrays = implementation
    a, b = np.ones((3, 0), "f2"), np.ones((0, 5), "f2")
    (bias,) = draw((5,))
    check_right(call(arrays.put(a), arrays.put(b), **keywords), arrays, a, b, **keywords)
    found = call(arrays.put(a), arrays.put(b), bias=arrays.put(bias), **keywords)
    check_right(found, arrays, a, b, bias=bias, **keywords)


@pytest.mark.parametrize("ta, tb", list(itertools.product((False, True), repeat=2)))
def test_transposes(implementation, ta, tb):
    call, arrays = implementation
    a, b, bias = draw((40, 33) if ta else (33, 40), (24, 40) if tb else (40, 24), (24,))
    keywords = {"transpose_a": ta, "transpose_b": tb}
    found = call(arrays.put(a), arrays.put(b), bias=arrays.put(bias), activation="gelu_tanh", **keywords)
    check_right(found, arrays, a, b, bias=bias, activation="gelu_tanh", **keywords)


def test_float32_is_ieee_unless_tf32_is_named(implementation):
    """1 + 2^-12 is 1 in TF32."""
    call, arrays = implementation
    a, b = np.full((16, 32), 1 + 2**-12, "f4"), np.ones((32, 16), "f4")
    try:
        found = arrays.get(call(arrays.put(a), arrays.put(b)))
    except Unsupported as refusal:
        pytest.skip(str(refusal))
    assert (found == np.float32(32 * (1 + 2**-12))).all()


def test_nan_stays_in_its_row(implementation):
    call, arrays = implementation
    a, b = draw((17, 40), (40, 24))
    a[5, 39] = np.nan
    found = arrays.get(call(arrays.put(a), arrays.put(b)))
    assert np.isnan(found[5]).all() and not np.isnan(np.delete(found, 5, axis=0)).any()


@pytest.mark.parametrize(
    "rung, dtype, precision, tiles",
    (
        ("3_registers", "float16", "ieee", 6),
        ("4_async", "float32", "ieee", 4),
        ("5_wmma", "bfloat16", "ieee", 6),
        ("6_mma", "float16", "ieee", 6),
        ("6_mma", "float32", "tf32", 6),
    ),
)
@pytest.mark.parametrize("turned", (False, True))
def test_cuda_large_tiles(rung, dtype, precision, tiles, turned):
    """Several of them, each with a tail; the CPU's cases are small enough for the small ones."""
    if reason := host.unavailable():
        pytest.skip(reason)
    m, n, k = 136, 272, 72
    a, b, bias = draw((k, m) if turned else (m, k), (n, k) if turned else (k, n), (n,), dtype=dtype)
    out = np.empty((m, n), a.dtype)
    arrays = {"a": a, "b": b, "bias": bias, "out": out}
    keywords = {"transpose_a": turned, "transpose_b": turned, "precision": precision}
    variant = next(v for v in matmul.LADDER if v.name == rung)
    infos = {name: host.describe(name, array) for name, array in arrays.items()}
    launches = matmul.plan(**infos, **keywords, variant=variant, config=matmul.CONFIGS[rung][0])
    assert launches[0].grid == (tiles, 1, 1)
    host.launch(launches, arrays, variant)
    assert judge(out, expect(a, b, bias=bias, **keywords)["out"]).error_over_bound <= 1


def test_cuda_tiles_fill_the_gpu():
    assert matmul.configuration("6_mma", 4096, 4096).tile_m == 128
    assert matmul.configuration("6_mma", 512, 512).tile_m == 64


@pytest.mark.parametrize(
    "shape, strides, k_axis, expected",
    (
        ((64, 48), (48, 1), 1, (True, 48, 8)),
        ((64, 48), (48, 1), 0, (False, 48, 8)),
        ((64, 23), (48, 1), 1, (True, 48, 1)),  # a view: its last vector would be half outside
        ((64, 48), (52, 1), 1, (True, 52, 4)),
        ((48, 64), (1, 48), 0, (True, 48, 8)),  # a transposed view
        ((1, 64), (48, 1), 1, (True, 0, 8)),  # of a single line nobody asks where the next is
    ),
)
def test_cuda_lines(shape, strides, k_axis, expected):
    assert matmul.lines(ArrayInfo(shape, "float16", strides, "cuda:0", 0), k_axis) == expected


@pytest.mark.parametrize(
    "case, variant",
    (
        ("matmul-float32-2x3x2-constant", "4_async"),
        ("matmul-bfloat16-65x33x63-out32-large", "6_mma"),
        ("matmul-float32-65x63x128-ta-tf32-one_sided", "6_mma"),
        ("matmul-float16-64x64x128-tb-one_sided", "11_split"),
    ),
)
def test_the_check_meets_the_rung_that_takes_the_case(case, variant):
    """Where none is named, as in the function itself."""
    if reason := backends.find("cuda").unavailable("cpu"):
        pytest.skip(reason)
    (row,) = Runner(None).run(Task("cuda", CASES[case]))
    assert (row["verdict"], row["variant"]) == ("pass", variant)


def test_cuda_chooses_by_device_and_arrays():
    """Tensor cores where TMA reaches both operands, the last portable rung elsewhere; a rung named is kept to."""
    if reason := host.unavailable():
        pytest.skip(reason)
    portable = [v.name for v in matmul.VARIANTS["matmul"] if v not in matmul.matmul_hopper.VARIANTS]
    launched = []

    class Runtime:
        """The host's, with a note of what is launched."""

        PLATFORM, describe, empty = host.PLATFORM, staticmethod(host.describe), staticmethod(host.empty)
        multiprocessors = staticmethod(host.multiprocessors)
        device = "sm_90"

        def arch(self, array):
            return self.device

        def launch(self, launches, arrays, variant):
            launched.append((variant.name, launches[0].kernel.source))

    runtime = Runtime()
    wide, odd, single = (
        draw((64, k), (k, 32), dtype=d) for k, d in ((64, "float16"), (33, "float16"), (64, "float32"))
    )
    for a, b in (wide, odd, single):
        matmul.matmul(a, b, runtime=runtime)
    assert launched[0] == ("11_split", "matmul/11_split.cu")
    assert {name for name, _ in launched[1:]} <= set(portable)
    matmul.matmul(*single, precision="tf32", transpose_b=False, runtime=runtime)
    assert launched[-1][0] in portable, "B has its rows along N"
    runtime.device = "sm_80"
    matmul.matmul(*wide, runtime=runtime)
    assert launched[-1][0] in portable
    with pytest.raises(Unsupported, match="TMA takes rows a multiple of 16 bytes apart"):
        runtime.device = "sm_90"
        matmul.matmul(*odd, variant="10_cluster", runtime=runtime)
