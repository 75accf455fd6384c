"""The frameworks' own operators and other people's, on a few small cases of every operator."""

import dataclasses
import importlib.machinery
import shutil
import sys
import types

import numpy as np
import pytest

from crosscheck import __main__ as command
from crosscheck import backends, baselines, peers
from crosscheck.cases import CASES, OPERATORS
from crosscheck.runner import Runner, Task
from crosscheck.workers import Workers
from reference.contract import NotRun, Unsupported, scalar


def plain(name: str):
    """A case of attention without its log-sum-exp."""
    case = CASES[name]
    arguments = {key: value for key, value in case.arguments.items() if key != "return_lse"}
    return dataclasses.replace(case, id=name.replace("-lse", ""), arguments=arguments)


SOME = [
    *(
        CASES[name]
        for name in (
            "softmax-float32-3x1025",
            "softmax-float32-3x1000-minus_inf",
            "softmax-float16-3x2049-one_sided",
            "softmax-bfloat16-3x127",
            "rmsnorm-float32-3x1025-rstd",
            "rmsnorm-float32-2x1000-residual-nan",
            "rmsnorm-float16-3x2049-weight32-tiny",
            "rmsnorm-bfloat16-3x257-residual-rstd-outliers",
            "rmsnorm_backward-float32-8x129-tiny",
            "rmsnorm_backward-float16-18x1025-weight32-constant",
            "rmsnorm_backward-bfloat16-12x257-outliers",
            "matmul-float32-65x127x129-bias-gelu",
            "matmul-float32-33x31x65-ta-tb-large",
            "matmul-float32-64x128x65-tb-bias-tf32",
            "matmul-float16-127x129x65-ta-bias-gelu",
            "matmul-float16-16x33x0-bias-gelu",
            "matmul-bfloat16-63x65x129-bias-gelu_tanh-outliers",
        )
    ),
    plain("attention-float16-1x1x257x64-causal-lse"),
    plain("attention-float16-1x3x65x128-causal-bshd-lse-sorted"),
    plain("attention-bfloat16-1x1x257x64-causal-lse"),
    plain("attention-bfloat16-1x1x100x128-full-scale0.5-lse-constant"),
    plain("attention-bfloat16-1x1x129x128-causal-lse-nan_keys"),
]


def near(case, results) -> None:
    """Assert that results are what is expected but for a few roundings to the dtype: inaccurate, not wrong."""
    expected = OPERATORS[case.operator].expect(case, OPERATORS[case.operator].draw(case), None)
    for result, (name, e) in zip(results, expected.items()):
        step = (
            2.0**-24 if e.dtype == "float32" and case.dtype == "float32" else 2.0 ** -{"float16": 11}.get(case.dtype, 8)
        )
        scale = np.max(np.abs(e.value), where=np.isfinite(e.value), initial=0)
        np.testing.assert_allclose(
            result.astype(np.float64), e.value, rtol=16 * step, atol=16 * step * scale, err_msg=name
        )


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize(
    "name, variant, case",
    [
        pytest.param(name, variant, case, id=f"{name}.{variant}-{case.id}")
        for case in SOME
        for name in ("torch", "jax")
        for variant in backends.find(name).variants(case.operator)
        if variant not in ("aten._fused_rms_norm_backward", "sdpa_cudnn")
        if (name, case.operator, case.dtype) != ("jax", "attention", "float16")
    ],
)
def test_right_or_nearly(name, variant, case):
    pytest.importorskip(name)
    runner = Runner(None)
    (row,) = runner.run(Task(name, case, variant))
    assert row["role"] == "baseline" and row["verdict"] in ("pass", "inaccurate"), row["reason"]
    if case.dtype == "float32" or name == "torch" and case.operator in ("softmax", "rmsnorm_backward"):
        assert row["verdict"] == "pass", row["reason"]
    kind = backends.find(name).kind("cpu")
    arrays, arguments = runner.inputs.call(kind)
    results = backends.find(name).function(case.operator, variant, "cpu")(*arrays, **arguments)
    results = results if isinstance(results, tuple) else (results,)
    near(case, [runner.adapters[kind].get(result) for result in results])


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="torch.compile needs a C++ compiler")
def test_compiled():
    pytest.importorskip("torch")
    chosen = [
        CASES["softmax-bfloat16-3x127"],
        CASES["rmsnorm-bfloat16-3x257-residual-rstd-outliers"],
        CASES["rmsnorm_backward-float16-18x1025-weight32-constant"],
        CASES["matmul-float32-65x127x129-bias-gelu"],
        CASES["matmul-float32-33x31x65-ta-tb-large"],
        plain("attention-bfloat16-1x1x257x64-causal-lse"),
    ]
    with Workers(None) as workers:
        for case in chosen:
            (row,) = workers.run(Task("torch_compile", case))
            assert (row["variant"], row["verdict"]) == ("torch.compile", "pass"), (case.id, row["reason"])


def test_log_sum_exp():
    pytest.importorskip("torch")
    case = CASES["attention-bfloat16-1x3x65x64-causal-bshd-lse-sorted"]
    (row,) = Runner(None).run(Task("torch", case, "sdpa_flash"))
    assert row["verdict"] in ("pass", "inaccurate") and set(row["outputs"]) == {"out", "lse"}
    assert row["outputs"]["lse"]["error_over_bound"] < 20  # its exponential is not float32's best


def array(*shape, dtype="float32"):
    return np.zeros(shape, scalar(dtype))


def tensor(*shape, dtype="float32"):
    torch = pytest.importorskip("torch")
    return torch.zeros(shape, dtype=getattr(torch, dtype))


def refusals():
    """(function, a call's arguments, what it says), arrays made when called."""
    torch = lambda operator, variant: baselines.FUNCTIONS["torch", operator][variant]
    x, b16 = lambda: tensor(2, 8), lambda: tensor(2, 8, dtype="bfloat16")
    q = lambda dtype="bfloat16": tensor(1, 1, 4, 64, dtype=dtype)
    yield (
        torch("rmsnorm", "torch.rms_norm"),
        lambda: ((b16(), tensor(8), 1e-6), {"return_rstd": True}),
        ("return_rstd is True and weight has dtype float32; covered: bfloat16, the dtype of x"),
    )
    yield (
        torch("rmsnorm_backward", "aten._fused_rms_norm_backward"),
        lambda: ((x(), x(), tensor(8), tensor(2)), {}),
        ("x is on the CPU; covered: a GPU"),
    )
    yield (
        torch("matmul", "torch.matmul"),
        lambda: ((b16(), b16()), {"transpose_b": True, "out_dtype": "float32"}),
        ("out_dtype is 'float32'; covered: 'bfloat16' on a CPU"),
    )
    yield (
        torch("attention", "sdpa_cudnn"),
        lambda: ((q(), q(), q()), {"causal": True}),
        ("q is on the CPU; covered: a GPU"),
    )
    empty = lambda: tensor(1, 1, 0, 64, dtype="bfloat16")
    yield (
        torch("attention", "sdpa_flash"),
        lambda: ((empty(), empty(), empty()), {"causal": True}),
        ("q has shape (1, 1, 0, 64); covered: no empty axis"),
    )
    lse = {"causal": True, "return_lse": True}
    attend = baselines.FUNCTIONS["torch_compile", "attention"]["torch.compile"]
    yield attend, lambda: ((q(), q(), q()), lse), "return_lse is True; covered: False"
    attend = baselines.FUNCTIONS["jax", "attention"]["jax.nn.dot_product_attention"]
    heads = lambda dtype: array(1, 1, 128, 64, dtype=dtype)
    yield attend, lambda: ((heads("bfloat16"),) * 3, lse), "return_lse is True, and JAX's is bfloat16; covered: False"
    cupy = baselines.FUNCTIONS["cupy", "matmul"]["cupy.matmul"]
    square = array(8, 8)
    yield cupy, lambda: ((square, square), {"bias": square}), "bias is given; covered: the product alone"
    yield cupy, lambda: ((square, square), {"activation": "gelu"}), "activation is 'gelu'; covered: the product alone"
    yield cupy, lambda: ((square, square), {"precision": "tf32"}), "precision is 'tf32'; covered: 'ieee'"
    yield cupy, lambda: ((array(8, 8, dtype="bfloat16"),) * 2, {}), "a has dtype bfloat16; covered: float16 or float32"
    yield (
        cupy,
        lambda: ((array(8, 8, dtype="float16"),) * 2, {"out_dtype": "float32"}),
        ("out_dtype is 'float32'; covered: float16"),
    )
    for operator, call in (
        ("softmax", lambda wide: ((wide,), {})),
        ("rmsnorm", lambda wide: ((wide, wide, 1e-6), {})),
        ("rmsnorm_backward", lambda wide: ((wide,) * 4, {})),
    ):
        (function,) = peers.FUNCTIONS["liger", operator].values()
        yield (
            function,
            lambda call=call: call(array(1, 65537)),
            ("x has shape (1, 65537); covered: cols of 65536 or less"),
        )
    (softmax,) = peers.FUNCTIONS["quack", "softmax"].values()
    yield (
        softmax,
        lambda: ((tensor(2, 33, dtype="float16"),), {}),
        ("x has shape (2, 33) and dtype float16; covered: cols that are multiples of 8"),
    )
    half = lambda m, n: array(m, n, dtype="float16")
    for variant, n in (("128x256", 256), ("128x256_cluster", 512)):
        matmul = peers.FUNCTIONS["jax_mosaic", "matmul"][variant]
        yield (
            matmul,
            lambda: ((half(128, 64), half(64, 128)), {}),
            (f"M, N and K are 128, 128 and 64; covered: multiples of 128, {n} and 64"),
        )
        yield matmul, lambda: ((half(128, 0), half(0, 512)), {}), "M, N and K are 128, 512 and 0; covered: multiples of"
    given = lambda **arguments: lambda: ((half(128, 64), half(64, 512)), arguments)
    yield matmul, lambda: ((square, square), {}), "a has dtype float32; covered: float16 or bfloat16"
    yield matmul, given(transpose_a=True), "transpose_a is True and transpose_b False; covered: False for both"
    yield matmul, given(bias=half(1, 512)), "bias is given; covered: the product alone"
    yield matmul, given(activation="gelu"), "activation is 'gelu'; covered: the product alone"
    yield matmul, given(out_dtype="float32"), "out_dtype is 'float32'; covered: 'float16'"
    (attend,) = peers.FUNCTIONS["jax_mosaic", "attention"].values()
    yield attend, lambda: ((heads("bfloat16"),) * 3, {"causal": True}), "q has dtype bfloat16; covered: float16"
    odd = array(1, 1, 65, 64, dtype="float16")
    yield (
        attend,
        lambda: ((odd,) * 3, {"causal": True}),
        ("q has shape (1, 1, 65, 64) with layout 'bhsd'; covered: a sequence that is a multiple of 128"),
    )


@pytest.mark.parametrize("function, arguments, message", list(refusals()))
def test_refusals(function, arguments, message):
    given, keywords = arguments()
    with pytest.raises(Unsupported) as raised:
        function(*given, **keywords)
    assert message in str(raised.value)


def test_for_hopper_alone():
    ampere = types.SimpleNamespace(compute_capability="8.0")
    q = types.SimpleNamespace(dtype="float16", shape=(1, 1, 128, 64), size=8192, devices=lambda: [ampere])
    with pytest.raises(NotRun, match="compute capability 8.0; these kernels are for 9.0, Hopper"):
        peers.FUNCTIONS["jax_mosaic", "attention"]["attention_mgpu"](q, q, q, causal=True)


def test_precision_is_put_back():
    torch = pytest.importorskip("torch")
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    seen = []
    function = baselines.FUNCTIONS["torch", "matmul"]["torch.matmul"]
    multiply = lambda *_: seen.append(settings.fp32_precision)
    for precision in ("tf32", "ieee"):
        function(tensor(2, 3), tensor(3, 2), precision=precision, multiply=multiply)
    assert seen == ["tf32", "ieee"] and settings.fp32_precision == before
    with pytest.raises(RuntimeError):
        function(tensor(2, 3), tensor(2, 2), precision="tf32")
    assert settings.fp32_precision == before


# Peers

PEERS = [name for name, backend in backends.BACKENDS.items() if backend.role == "peer"]


def test_nobody_runs_a_peer_unasked(capsys):
    for tier in ("cpu", "gpu"):
        assert not set(PEERS) & set(backends.usual(tier))
    assert command.main(["--list", "--device", "cpu", "--op", "softmax"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and not any(name in out for name in PEERS)


@pytest.mark.parametrize("name", PEERS)
def test_absent_peers(name, capsys, monkeypatch):
    monkeypatch.setattr(backends, "installed", lambda package: package in ("torch", "triton", "jax"))
    assert command.main(["--device", "cpu", "--backend", name, "--case", "softmax-float32-3x1025"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and f"not run: {name}: " in out
    assert " not installed" in backends.find(name).unavailable("gpu")


def test_peers_need_a_gpu(monkeypatch):
    monkeypatch.setattr(backends, "installed", lambda package: True)
    for name in PEERS:
        assert backends.find(name).unavailable("cpu") == f"{name} needs a GPU"
        assert backends.find(name).unavailable("gpu") is None


def test_a_module_within_an_absent_package():
    assert not backends.installed("no_such_package.module") and backends.installed("json.decoder")


@pytest.fixture
def liger(monkeypatch):
    """A module in Liger's place, whose softmax is what the test sets, and that runs on a CPU."""
    pytest.importorskip("triton")
    for name in ("liger_kernel", "liger_kernel.ops", "liger_kernel.ops.softmax"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(backends.Peer, "unavailable", backends.Backend.unavailable)
    return lambda apply: setattr(module, "LigerSoftmaxFunction", types.SimpleNamespace(apply=apply))


def test_the_verdict_on_a_peer(liger):
    torch = pytest.importorskip("torch")
    runner, task = Runner(None), Task("liger", CASES["softmax-float32-3x1025"])

    def verdict(apply):
        liger(apply)
        (row,) = runner.run(task)
        assert (row["backend"], row["role"], row["variant"]) == ("liger", "peer", "LigerSoftmaxFunction")
        return row["verdict"]

    assert verdict(lambda x: torch.softmax(x, 1)) == "pass"
    assert verdict(lambda x: torch.softmax(x, 1) * 1.01) == "inaccurate"
    assert verdict(lambda x: x.no_such_method()) == "fail"


@pytest.mark.parametrize("role, status", [("peer", 0), ("baseline", 0), ("implementation", 1)])
def test_a_peer_fails_nothing(role, status, monkeypatch, capsys):
    def run(self, task):
        row = dict.fromkeys(("arguments", "error_over_bound", "max_ulp", "bitwise_equal", "seconds"))
        row |= {"operator": "softmax", "dtype": "float32", "where": "CPU", "shape": {}, "outputs": {}}
        return [
            row
            | {"backend": "torch", "variant": None, "case": task.case.id, "role": role, "verdict": "fail", "reason": ""}
        ]

    monkeypatch.setattr(Workers, "run", run)
    arguments = ["--device", "cpu", "--backend", "torch", "--case", "softmax-float32-3x1025"]
    assert command.main(arguments) == status
    assert "fail" in capsys.readouterr().out


def test_every_variant_of_a_baseline_runs(capsys):
    pytest.importorskip("torch")
    case = "attention-bfloat16-2x1x1x64-causal-lse"
    assert command.main(["--device", "cpu", "--backend", "torch", "--case", case]) == 0
    out = capsys.readouterr().out
    assert "sdpa_cudnn" in out and "sdpa_flash" in out
