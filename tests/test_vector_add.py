"""Vector add: the three implementations against the reference, and what each refuses."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from crosscheck import backends
from crosscheck.arrays import KINDS
from crosscheck.cases import CASES
from reference.contract import ArrayInfo
from reference.vector_add import check

OPERATORS = ("vector_add",)
ROOT = Path(__file__).resolve().parent.parent


def test_agreement(agreement, passes):
    passes(agreement)


# What the contract refuses, in the words of all three


def info(n=4, dtype="float32", stride=1, device="cuda:0", address=0):
    return ArrayInfo((n,), dtype, (stride,), device, address)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ((info(dtype="float64"), info()), TypeError, "x has dtype float64; accepted: float32, float16 or bfloat16"),
        (
            (info(), info(dtype="float16")),
            TypeError,
            "y has dtype float16 and x has float32; accepted: one dtype for all",
        ),
        (
            (info(), info(), info(dtype="bfloat16")),
            TypeError,
            "out has dtype bfloat16 and x has float32; accepted: one dtype for all",
        ),
        (
            (ArrayInfo((2, 2), "float32", (2, 1), "cuda:0"), info()),
            ValueError,
            "x has shape (2, 2); accepted: one axis, (n,)",
        ),
        ((ArrayInfo((), "float32", (), "cuda:0"), info()), ValueError, "x has shape (); accepted: one axis, (n,)"),
        ((info(), info(5)), ValueError, "y has length 5 and x has 4; accepted: equal lengths"),
        ((info(), info(), info(3)), ValueError, "out has length 3 and x has 4; accepted: equal lengths"),
        ((info(), info(stride=2)), ValueError, "y has stride 2; accepted: contiguous arrays, stride 1"),
        ((info(stride=-1), info()), ValueError, "x has stride -1; accepted: contiguous arrays, stride 1"),
        ((info(device="cpu"), info()), ValueError, "x is on cpu; accepted: arrays on a cuda device"),
        ((info(), info(device="cuda:1")), ValueError, "y is on cuda:1 and x on cuda:0; accepted: one device for all"),
        (
            (info(address=64), info(address=1024), info(address=68)),
            ValueError,
            "out overlaps x, -4 bytes apart; accepted: x or y itself, or no overlap",
        ),
    ],
)
def test_refusals(arguments, error, message):
    with pytest.raises(error) as caught:
        check(*arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "arguments",
    [
        (info(1, stride=7), info(1)),  # a stride without a second element is no stride
        (info(0, stride=0), info(0)),
        (info(address=64), info(address=1024), info(address=64)),
        (info(address=64), info(address=1024), info(address=80)),
        (ArrayInfo((4,), "float16"), ArrayInfo((4,), "float16")),
    ],
)
def test_accepted(arguments):
    check(*arguments)


@pytest.fixture(params=backends.IMPLEMENTATIONS)
def implementation(request, pytestconfig):
    """The public function of an implementation, and its arrays."""
    backend, tier = backends.find(request.param), pytestconfig.tier
    if reason := backend.unavailable(tier):
        pytest.skip(reason)
    return backend.function("vector_add", "vector_add", tier), KINDS[backend.kind(tier)](tier)


BAD_CALLS = {
    "dtype": (
        np.ones(3, np.int32),
        np.ones(3, np.int32),
        "TypeError: x has dtype int32; accepted: float32, float16 or bfloat16",
    ),
    "mixed": (
        np.ones(3, "f4"),
        np.ones(3, "f2"),
        "TypeError: y has dtype float16 and x has float32; accepted: one dtype for all",
    ),
    "rank": (np.ones((2, 2), "f4"), np.ones((2, 2), "f4"), "ValueError: x has shape (2, 2); accepted: one axis, (n,)"),
    "length": (np.ones(3, "f4"), np.ones(4, "f4"), "ValueError: y has length 4 and x has 3; accepted: equal lengths"),
}


@pytest.mark.parametrize("call", BAD_CALLS)
def test_implementations_refuse_alike(implementation, call):
    function, arrays = implementation
    x, y, message = BAD_CALLS[call]
    with pytest.raises((TypeError, ValueError)) as caught:
        function(arrays.put(x), arrays.put(y))
    assert f"{type(caught.value).__name__}: {caught.value}" == message


@pytest.mark.parametrize("name", backends.IMPLEMENTATIONS)
def test_unknown_variant(name, pytestconfig):
    backend, tier = backends.find(name), pytestconfig.tier
    if reason := backend.unavailable(tier):
        pytest.skip(reason)
    x = KINDS[backend.kind(tier)](tier).put(np.ones(3, "f4"))
    with pytest.raises(ValueError, match="variant is 'fastest'; accepted: vector_add"):
        backend.function("vector_add", "fastest", tier)(x, x)


def test_foreign_arrays(implementation):
    function, arrays = implementation
    with pytest.raises(TypeError, match="y is a builtins.list; accepted: "):
        function(arrays.put(np.ones(3, "f4")), [1, 2, 3])


def test_strided_views(implementation):
    function, arrays = implementation
    x = arrays.put(np.ones(8, "f4"))
    if type(arrays).__name__ == "JaxArrays":
        pytest.skip("JAX arrays have no strides")
    with pytest.raises(ValueError, match="x has stride 2; accepted: contiguous arrays, stride 1"):
        function(x[::2], x[:4])


def test_cpu_arrays_are_refused_without_being_asked_for(pytestconfig):
    """The public functions do not change tier by themselves."""
    pytest.importorskip("jax")
    import jax

    from pallas_impl.vector_add import vector_add

    x = jax.device_put(np.ones(3, "f4"), jax.devices("cpu")[0])
    with pytest.raises(ValueError, match="x is on cpu; accepted: arrays on a cuda device"):
        vector_add(x, x)


@pytest.mark.parametrize("dtype", ("float32", "float16"))
@pytest.mark.parametrize("offset", (1, 2, 3, 4))
def test_misaligned_views(implementation, dtype, offset):
    """A view that starts off a 16-byte boundary is contiguous all the same."""
    function, arrays = implementation
    if type(arrays).__name__ == "JaxArrays":
        pytest.skip("JAX arrays have no views")
    values = np.arange(2100).astype(dtype)
    x, y, out = (arrays.put(values) for _ in range(3))
    result = function(x[offset:], y[:-offset], out=out[offset:])
    assert np.array_equal(arrays.get(result), values[offset:] + values[:-offset])
    assert np.array_equal(arrays.get(out)[:offset], values[:offset])


def test_in_place(implementation):
    function, arrays = implementation
    if type(arrays).__name__ == "JaxArrays":
        pytest.skip("a jax.Ref is no input")
    values = np.arange(1025, dtype="f4")
    x, y = arrays.put(values), arrays.put(values)
    assert function(x, y, out=x) is x
    assert np.array_equal(arrays.get(x), 2 * values)
    with pytest.raises(ValueError, match="out overlaps x, "):
        function(x[:-1], y[:-1], out=x[1:])


def test_pallas_under_jit(pytestconfig):
    """A JAX function is called inside others."""
    backend = backends.find("pallas")
    if reason := backend.unavailable(pytestconfig.tier):
        pytest.skip(reason)
    import jax

    function = backend.function("vector_add", "vector_add", pytestconfig.tier)
    x = jax.numpy.arange(1025.0)
    assert np.array_equal(jax.jit(lambda a: function(a, a) * 2)(x), 4 * np.arange(1025.0))


@pytest.mark.parametrize("n", (3, 200))
def test_pallas_out_is_a_ref_and_inputs_are_none(n, pytestconfig):
    backend = backends.find("pallas")
    if reason := backend.unavailable(pytestconfig.tier):
        pytest.skip(reason)
    import jax
    from jax.experimental.pallas import mosaic_gpu as plgpu

    function, x = backend.function("vector_add", "vector_add", pytestconfig.tier), jax.numpy.ones(n)
    with pytest.raises(TypeError, match="out is a .*; accepted: jax.Ref"):
        function(x, x, out=jax.numpy.zeros(n))
    with pytest.raises(TypeError, match="x is a .*Ref; accepted: jax.Array"):
        function(jax.new_ref(x), x)
    # Without the race detector, which takes the elements of a batch for threads that share their rows.
    quiet = {"interpret": plgpu.InterpretGPUParams()} if pytestconfig.tier == "cpu" else {}
    call = lambda x, y: backend.module("vector_add").vector_add(x, y, **quiet)
    assert np.array_equal(jax.vmap(call)(jax.numpy.ones((2, n)), jax.numpy.ones((2, n))), np.full((2, n), 2.0))


def test_pallas_refuses_what_it_cannot_be_traced_for():
    pytest.importorskip("jax")
    code = """
import jax
from pallas_impl.vector_add import vector_add
x = jax.numpy.ones(8)
for call in (lambda: jax.jit(vector_add)(x, x), lambda: vector_add(x, x, interpret=True)):
    try:
        call()
    except (TypeError, ValueError) as error:
        print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
    )
    assert done.stdout.splitlines() == [
        "ValueError the call is traced for cpu; accepted: a cuda device, or interpret=",
        "TypeError interpret is True; accepted: None or a plgpu.InterpretGPUParams",
    ], done.stderr


def test_triton_refuses_tensors_that_are_not_what_their_memory_holds(pytestconfig):
    backend = backends.find("triton")
    if reason := backend.unavailable(pytestconfig.tier):
        pytest.skip(reason)
    import torch

    function = backend.function("vector_add", "vector_add", pytestconfig.tier)
    device = "cuda" if pytestconfig.tier == "gpu" else "cpu"
    x = torch.ones(3, device=device)
    with pytest.raises(ValueError, match="x is a lazily negated view"):
        function(torch.tensor([1 + 2j] * 3, device=device).conj().imag, x)
    with pytest.raises(ValueError, match="x has layout torch.sparse_coo; accepted: torch.strided"):
        function(x.to_sparse(), x)
    needy = x.clone().requires_grad_()
    with pytest.raises(NotImplementedError, match="y requires a gradient, which is lost here"):
        function(x, needy)
    with torch.no_grad():
        assert function(x, needy).tolist() == [2, 2, 2]


def test_triton_refuses_what_its_interpreter_computes_wrongly(pytestconfig):
    backend = backends.find("triton")
    if reason := backend.unavailable(pytestconfig.tier):
        pytest.skip(reason)
    if pytestconfig.tier == "gpu":
        pytest.skip("the interpreter is for machines without a GPU")
    import torch

    x = torch.ones(3, dtype=torch.bfloat16)
    with pytest.raises(NotImplementedError, match="x has dtype bfloat16, which Triton's interpreter computes wrongly"):
        backend.function("vector_add", "vector_add", "cpu")(x, x)


def test_pallas_refuses_sharded_arrays():
    pytest.importorskip("jax")
    code = """
import jax
from jax.sharding import NamedSharding, PartitionSpec
from jax.experimental.pallas import mosaic_gpu as plgpu
from pallas_impl.vector_add import vector_add
x = jax.device_put(jax.numpy.ones(8), NamedSharding(jax.make_mesh((2,), ("d",)), PartitionSpec("d")))
try:
    vector_add(x, x, interpret=plgpu.InterpretGPUParams())
except NotImplementedError as error:
    print(error)
"""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.stdout == "x is sharded over 2 devices; built here: arrays on one device\n", done.stderr


@pytest.mark.parametrize("name", ("cuda", "triton"))
def test_current_stream(name, pytestconfig):
    """The kernel waits for what its stream has to do before it, and for no other stream."""
    if pytestconfig.tier != "gpu":
        pytest.skip("streams are a GPU's")
    import cupy
    import torch

    function = backends.find(name).function("vector_add", "vector_add", "gpu")
    n = 1 << 20
    x, y, out = torch.zeros(n, device="cuda"), torch.zeros(n, device="cuda"), torch.zeros(n, device="cuda")
    arrays = [cupy.from_dlpack(t) for t in (x, y, out)] if name == "cuda" else [x, y, out]
    function(*arrays[:2], out=arrays[2])  # compiled before the clock runs
    stream = cupy.cuda.Stream(non_blocking=True)
    torch.cuda.synchronize()
    with stream, torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        torch.cuda._sleep(200_000_000)  # a tenth of a second
        x.fill_(1)
        y.fill_(2)
        function(*arrays[:2], out=arrays[2])
        assert not stream.done, "the call waited for the device"
    stream.synchronize()
    assert bool((out == 3).all())


def test_pallas_parts(monkeypatch, pytestconfig):
    """Past PART elements the kernel is launched in parts; here at a size that an interpreter manages."""
    backend = backends.find("pallas")
    if reason := backend.unavailable(pytestconfig.tier):
        pytest.skip(reason)
    import jax

    from pallas_impl import vector_add as module

    monkeypatch.setattr(module, "PART", 2048)
    function = backend.function("vector_add", "vector_add", pytestconfig.tier)
    for n in (2047, 2049, 2048 + 1024, 2048 + 1025, 4097):
        jax.clear_caches()
        x = jax.random.normal(jax.random.key(n), (n,))
        assert np.array_equal(function(x, x), 2 * np.asarray(x)), n
    jax.clear_caches()


def test_table_has_both_sides_of_every_edge():
    lengths = {c.shape["n"] for c in CASES.values() if c.operator == "vector_add" and "gpu" in c.sets}
    for edge in (4, 8, 128, 256, 512, 1024, 2048):
        assert {edge - 1, edge + 1} <= lengths, edge
