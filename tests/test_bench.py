"""Work and floors, the comparison of two runs, the pictures."""

import copy
import json

import pytest

from bench.__main__ import main
from bench.compare import compare
from bench.results import FIELDS
from bench.work import DEVICES, work
from crosscheck.cases import CASES, OPERATORS

H200 = DEVICES["H200"]


@pytest.mark.parametrize(
    "case, bytes_moved, flops, rate",
    [
        ("vector_add-float32-268435456", 3 * 4 * 2**28, 2**28, "float32"),
        ("softmax-bfloat16-8192x8192", 2 * 2 * 8192**2, 5 * 8192**2, "float32"),
        ("matmul-bfloat16-4096x4096x4096", 3 * 2 * 4096**2, 2 * 4096**3, "bfloat16"),
        (
            "attention-bfloat16-4x16x4096x128-causal",
            4 * 2 * 4 * 16 * 4096 * 128,
            4 * 4 * 16 * 128 * 4096 * 4097 // 2,
            "bfloat16",
        ),
    ],
)
def test_work(case, bytes_moved, flops, rate):
    assert work(CASES[case]) == (bytes_moved, flops, rate)


def test_every_timed_case_has_a_floor():
    for case in CASES.values():
        if "performance" in case.sets:
            seconds, roof = H200.floor(work(case))
            assert seconds > 0 and roof in ("memory", "arithmetic")


def test_which_roof():
    assert H200.floor(work(CASES["vector_add-float32-268435456"])) == (3 * 2**30 / 4.8e12, "memory")
    seconds, roof = H200.floor(work(CASES["matmul-bfloat16-4096x4096x4096"]))
    assert roof == "arithmetic" and seconds == pytest.approx(2 * 4096**3 / 989.4e12)


def record(backend="cuda", medians=(100.0, 100.4, 100.2), case="vector_add-float32-268435456", **changes):
    needed, taken = work(CASES[case]), sorted(medians)[len(medians) // 2]
    return dict.fromkeys(FIELDS) | {
        "operator": "vector_add", "backend": backend, "variant": "vector_add", "case": case, "dtype": "float32",
        "device_us": taken, "batch_medians_us": list(medians), "bytes": needed.bytes,
        "tb_s": needed.bytes / taken / 1e6, "tflop_s": needed.flops / taken / 1e6, "flags": [],
    } | changes  # fmt: skip


def scaled(old, factor):
    return record(old["backend"], [factor * t for t in old["batch_medians_us"]])


@pytest.mark.parametrize(
    "factor, verdict", [(1.0, "same"), (1.012, "same"), (1.05, "slower"), (0.95, "faster"), (2.0, "slower")]
)
def test_quiet_runs_are_told_apart(factor, verdict):
    old = record()
    ((change,), gone, fresh) = compare([old], [scaled(old, factor)])
    assert change.verdict == verdict and change.ratio == pytest.approx(factor) and not gone and not fresh


@pytest.mark.parametrize("factor, verdict", [(1.0, "unclear"), (1.05, "unclear"), (1.5, "slower")])
def test_loud_runs_say_less(factor, verdict):
    old = record(medians=(95.0, 100.0, 103.0))
    assert compare([old], [scaled(old, factor)])[0][0].verdict == verdict


def test_what_is_in_one_run_alone():
    changes, gone, fresh = compare([record("cuda"), record("jax")], [record("triton"), record("cuda")])
    assert [c.record["backend"] for c in changes] == ["cuda"]
    assert [r["backend"] for r in gone] == ["jax"] and [r["backend"] for r in fresh] == ["triton"]


@pytest.fixture
def run_file(tmp_path):
    def write(name, records, **environment):
        path = tmp_path / name
        ceilings = {"copy_tb_s": 4.26, "stream_tb_s": 4.37, "float32_tflop_s": 48.9}
        document = {"schema": 1, "environment": {"gpu": "H200"} | environment, "ceilings": ceilings,
                    "peaks": {"memory_tb_s": 4.81, "float32_tflop_s": 66.9}, "records": records}  # fmt: skip
        path.write_text(json.dumps(document))
        return str(path)

    return write


def test_compare_prints_and_fails_on_slower(capsys, run_file):
    old = run_file("old.json", [record("cuda"), record("torch")])
    new = run_file("new.json", [scaled(record("cuda"), 1.05), record("torch")])
    assert main(["compare", old, new]) == 0
    out = capsys.readouterr().out
    assert "+5.0 %" in out and out.endswith("0 faster, 1 slower, 1 same, 0 unclear; 0 in OLD alone, 0 in NEW alone\n")
    assert main(["compare", old, new, "--fail-on-slower"]) == 1
    assert main(["compare", old, old, "--fail-on-slower"]) == 0


def test_explain_prints(capsys):
    assert main(["explain", "matmul"]) == 0
    out = capsys.readouterr().out
    assert "matmul-bfloat16-8192x8192x8192" in out and "arithmetic" in out and "floor on an H200, us" in out
    for operator in OPERATORS:
        assert main(["explain", operator, "--device", "H100"]) == 0


def test_plots_are_drawn(capsys, run_file, tmp_path):
    pytest.importorskip("matplotlib")
    backends = ("torch", "cuda", "triton", "pallas", "jax", "cupy", "torch_compile", "somebody_else")
    records = [
        record(b, [1.1e6 * H200.floor(work(c))[0] + 2 + i], c.id, dtype=c.dtype)
        for i, b in enumerate(backends)
        for c in CASES.values()
        if c.operator == "vector_add" and "performance" in c.sets
    ]
    assert main(["plot", run_file("vector_add.json", records), "--out", str(tmp_path)]) == 0
    from PIL import Image

    for kind in ("roofline", "throughput"):
        with Image.open(tmp_path / f"vector_add_{kind}.png") as picture:
            assert picture.width >= 1200
        text = (tmp_path / f"vector_add_{kind}.svg").read_text()
        assert text.startswith("<?xml") and len(text) > 10_000


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "is no result file: "),
        ('{"schema": 2, "records": []}', "is no result file of schema 1 with records"),
        ('{"schema": 1, "rows": []}', "is no result file of schema 1 with records"),
        ('{"schema": 1, "records": [{"operator": "vector_add"}]}', "is no result file of schema 1 with records"),
    ],
)
def test_other_files(capsys, tmp_path, text, message):
    path = tmp_path / "run.json"
    path.write_text(text)
    for arguments in (["plot", str(path)], ["compare", str(path), str(path)]):
        assert main(arguments) == 2
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1


def test_wrong_command_lines(capsys, run_file, tmp_path):
    h200, h100 = run_file("a.json", [record()]), run_file("b.json", [record()], gpu="H100")
    strange = copy.deepcopy(record())
    strange["case"] = "vector_add-float32-7777"
    for arguments, message in (
        ([], "the following arguments are required: run|ceilings"),
        (["explain", "softmin"], "OP is 'softmin'; accepted: vector_add"),
        (["explain", "softmax", "--device", "B200"], "--device is 'B200'; accepted: H200 or H100"),
        (["explain", "softmax", "--case", "matmul-bfloat16-8192x8192x8192"], "accepted: the id of a case of softmax"),
        (["compare", h200, h100], "OLD is of an H200 and NEW of an H100; accepted: two runs on one kind of GPU"),
        (["compare", h200, run_file("c.json", [record("jax")])], "OLD and NEW have no measurement in common"),
        (["compare", h200, str(tmp_path / "none.json")], "none.json is no result file: "),
        (["plot", h200, "--out", str(tmp_path / "none")], "accepted: a directory that exists"),
        (
            ["plot", run_file("d.json", [record(device_us=None)])],
            "d.json has no record with a time; accepted: one that has",
        ),
        (["plot", run_file("e.json", [strange])], "e.json has a record of 'vector_add-float32-7777'; accepted: "),
    ):
        assert main(arguments) == 2, arguments
        out, err = capsys.readouterr()
        assert out == "" and message in err and err.count("\n") == 1, err
