"""``python -m crosscheck``: what it prints and writes, and what it refuses in one line."""

import json
import subprocess
import sys
import time
import types

import pytest

from crosscheck import backends, report
from crosscheck.__main__ import main, variants

CASE = "vector_add-float32-1025"
KEYS = {
    "operator", "backend", "variant", "role", "case", "dtype", "shape", "arguments", "inputs_sha256", "where", "verdict",
    "error_over_bound", "max_ulp", "bitwise_equal", "outputs", "reason", "seconds",
}  # fmt: skip


def run(capsys, *arguments):
    status = main([*arguments])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--op", "vectoradd"], "--op is 'vectoradd'; accepted: vector_add"),
        (["--backend", "cuda", "opencl"], "--backend is 'opencl'; accepted: cuda, triton, "),
        (["--dtype", "float64"], "--dtype is 'float64'; accepted: float32, float16 or bfloat16"),
        (["--case", "vector_add-1"], "--case is 'vector_add-1'; accepted: an id that --list prints"),
        (
            ["--device", "cpu", "--case", "vector_add-float16-2147483653"],
            "--case is 'vector_add-float16-2147483653' of 12.9 GB; accepted on a CPU: cases of 1.1 GB or less",
        ),
        (["--case", CASE, "--dtype", "float16"], "--op, --dtype and --case leave no case together"),
        (["--device", "tpu"], "device is 'tpu'; accepted: auto, gpu or cpu"),
        (["--require", "cuda,opencl"], "--require is 'opencl'; accepted: cuda, "),
        (
            ["--module", "no.such.module"],
            "--module is 'no.such.module', which cannot be imported: ModuleNotFoundError: ",
        ),
        (["--module", "json"], "ARRAYS of --module json is None; accepted: numpy, torch, cupy or jax"),
        (["--module", "cuda"], "--module is 'cuda', a backend's name; accepted: a module of another name"),
        (
            ["--json", "no/such/directory/rows.json"],
            "cannot be written: No such file or directory; accepted: a path in a writable",
        ),
        (["--json", "."], ". is no regular file; accepted: a file's path"),
        (["--json", "/dev/null"], "/dev/null is no regular file; accepted: a file's path"),
        (["--require", ","], "--require is ''; accepted: cuda, "),
        (["--module", ""], "--module is '', which cannot be imported: ValueError: Empty module name"),
        (
            ["--module", "tests.doubles.exits"],
            "--module is 'tests.doubles.exits', which cannot be imported: SystemExit: 0",
        ),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["--op"], "argument --op: expected at least one argument"),
        (["faults", "--op", "vectoradd"], "--op is 'vectoradd'; accepted: "),
        (["faults", "--backend", "torch"], "--backend is 'torch'; accepted: cuda, triton or pallas"),
    ],
)
def test_wrong_command_lines(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1 and message in err


def test_no_gpu(capsys, monkeypatch):
    monkeypatch.setattr("crosscheck.machine.gpu", lambda: None)
    assert run(capsys, "--device", "gpu")[::2] == (
        2,
        "python -m crosscheck: device is 'gpu' and CUDA shows none here; accepted: auto or cpu\n",
    )


def test_a_module_without_the_function(capsys, tmp_path, monkeypatch):
    (tmp_path / "strangers.py").write_text("ARRAYS = 'numpy'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    status, _, err = run(capsys, "--module", "strangers")
    assert status == 2 and "--module is 'strangers', which has no function of an operator; accepted: " in err


@pytest.mark.parametrize(
    "backend, variants, accepted",
    [
        ("cuda", ["warp"], "vector_add or all"),
        ("cuda", ["vector_add", "warp"], "vector_add or all"),
        ("torch", ["warp"], "all"),
        ("cupy", ["warp"], "all"),
    ],
)
def test_an_unknown_variant(capsys, backend, variants, accepted):
    status, out, err = run(capsys, "--device", "cpu", "--backend", backend, "--case", CASE, "--variant", *variants)
    assert (status, out) == (2, "")
    assert err == f"python -m crosscheck: --variant is 'warp'; accepted: {accepted}\n"


def test_all_variants_of_what_is_not_there(monkeypatch):
    """An implementation that cannot run has its reason in the table, also where its variants are asked for."""
    monkeypatch.setattr(backends.Triton, "unavailable", lambda self, tier: "triton not installed")
    assert variants(["all"], "triton", "vector_add", types.SimpleNamespace(gpu=None)) == [None]


def test_a_link_is_followed(capsys, tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "rows.json")
    assert (
        run(capsys, "--device", "cpu", "--backend", "cuda", "--case", CASE, "--json", str(tmp_path / "link.json"))[0]
        == 0
    )
    assert (tmp_path / "link.json").is_symlink() and json.loads((tmp_path / "rows.json").read_text())["rows"]


def test_a_termination_stops_the_workers():
    command = [
        sys.executable,
        "-m",
        "crosscheck",
        "--device",
        "cpu",
        "--backend",
        "torch",
        "--case",
        CASE,
        "--module",
        "tests.doubles.hang",
    ]
    process = subprocess.Popen(command)
    children = lambda: subprocess.run(
        ["ps", "--ppid", str(process.pid), "-o", "pid="], capture_output=True, text=True
    ).stdout.split()
    for _ in range(100):
        time.sleep(0.1)
        if len(workers := children()) >= 3:  # torch's, the stranger's, and multiprocessing's own
            break
    process.terminate()
    assert process.wait(timeout=30) == 143
    for _ in range(100):
        states = subprocess.run(
            ["ps", "-o", "stat=", "-p", ",".join(workers)], capture_output=True, text=True
        ).stdout.split()
        if all(state.startswith("Z") for state in states):
            return
        time.sleep(0.1)
    pytest.fail(f"still there: {states}")


@pytest.mark.parametrize("command", ("crosscheck --list --device cpu", "bench explain attention"))
def test_half_a_reader_is_no_error(command):
    # The reader is gone before anything is printed.
    line = f"{sys.executable} -m {command} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert done.returncode in (0, 141) and done.stderr == ""


def test_rows_and_table(capsys, tmp_path):
    path = tmp_path / "rows.json"
    status, out, _ = run(
        capsys,
        "--device",
        "cpu",
        "--backend",
        "cuda",
        "torch",
        "--case",
        CASE,
        "--module",
        "tests.doubles.right",
        "--json",
        str(path),
    )
    assert status == 0
    document = json.loads(path.read_text())
    assert document["schema"] == 1 and document["environment"]["device"] == "cpu"
    by_name = {row["backend"]: row for row in document["rows"]}
    assert set(by_name) == {"cuda", "torch", "tests.doubles.right"}
    for row in by_name.values():
        assert set(row) == KEYS
        assert row["verdict"] == "pass", row["reason"]
        assert (row["shape"], row["dtype"], row["error_over_bound"], row["max_ulp"]) == ({"n": 1025}, "float32", 0, 0)
        assert row["outputs"] == {"out": {"error_over_bound": 0, "max_ulp": 0, "bitwise_equal": True}}
        assert row["backend"] in out
    assert len({row["inputs_sha256"] for row in by_name.values()}) == 1
    assert (by_name["cuda"]["where"], by_name["cuda"]["variant"], by_name["torch"]["role"]) == (
        "host build",
        "vector_add",
        "baseline",
    )

    # A second run replaces its own rows and keeps the others.
    other = "vector_add-float32-1023"
    assert run(capsys, "--device", "cpu", "--backend", "cuda", "--case", CASE, other, "--json", str(path))[0] == 0
    rows = json.loads(path.read_text())["rows"]
    assert sorted((row["backend"], row["case"]) for row in rows) == [
        ("cuda", other), ("cuda", CASE), ("tests.doubles.right", CASE), ("torch", CASE),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "is no result file"),
        ("[]", "is no result file of schema 1"),
        (
            '{"schema": 1, "environment": {}, "rows": [{"operator": "a", "backend": "b", "fault": "c"}]}',
            "with such rows",
        ),
        ('{"schema": 1, "environment": {}, "rows": 5}', "with such rows"),
        ('{"schema": 1, "rows": []}', "with such rows"),
        ('{"schema": 2, "rows": []}', "is no result file of schema 1"),
        ('{"schema": 1, "rows": [], "environment": {"device": "gpu"}}', "holds rows of another environment (device, "),
    ],
)
def test_other_files_are_left_alone(capsys, tmp_path, text, message):
    path = tmp_path / "rows.json"
    path.write_text(text)
    status, _, err = run(capsys, "--device", "cpu", "--json", str(path))
    assert status == 2 and message in err and err.count("\n") == 1
    assert path.read_text() == text and list(tmp_path.iterdir()) == [path]


def test_failure_and_requirement(capsys):
    arguments = ["--device", "cpu", "--backend", "torch", "--case", CASE, "--module", "tests.doubles.crash"]
    status, out, _ = run(capsys, *arguments)
    assert status == 1
    assert (
        f"fail: tests.doubles.crash: the process died (SIGABRT): Fatal Python error: Aborted; torch right here ({CASE})"
        in out
    )
    status, _, err = run(capsys, "--device", "cpu", "--backend", "torch", "--case", CASE, "--require", "cupy")
    assert status == 1 and "required: cupy passes no case of vector_add" in err


def test_list(capsys):
    status, out, _ = run(capsys, "--list", "--device", "cpu", "--backend", "cuda", "cupy", "--dtype", "float16")
    lines = out.splitlines()
    assert status == 0 and lines[0] in ("cuda: host build", "cuda: no C++ compiler: neither g++ nor clang++ is on PATH")
    assert lines[1] == "cupy: CuPy needs a GPU" and all("-float16-" in line for line in lines[2:])


def test_it_is_a_command():
    done = subprocess.run([sys.executable, "-m", "crosscheck", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "--require" in done.stdout and "faults" in done.stdout


def rows(**verdicts):
    error = {"pass": 0.5, "fail": "inf", "inaccurate": 2.0, "not run": None}
    return [
        {
            "operator": "vector_add", "backend": name, "variant": None, "role": "implementation", "case": CASE, "dtype": "float32",
            "where": "CPU", "verdict": verdict, "error_over_bound": error[verdict], "max_ulp": 3, "bitwise_equal": False,
            "reason": None if verdict == "pass" else "why", "seconds": None if verdict == "not run" else 0.25,
        }
        for name, verdict in verdicts.items()
    ]  # fmt: skip


def test_a_failed_row_says_who_is_right():
    some = rows(cuda="fail", triton="pass", torch="inaccurate", cupy="not run")
    report.add_agreement(some)
    assert [row["reason"] for row in some] == ["why; triton right here", None, "why; triton right here", "why"]
    alone = rows(cuda="fail")
    report.add_agreement(alone)
    assert alone[0]["reason"] == "why"
    both = rows(cuda="fail", triton="fail")
    report.add_agreement(both)
    assert both[0]["reason"] == "why; nobody else is right here"


def test_reasons_that_differ_in_numbers_alone_are_told_once():
    some = rows(cuda="fail") + rows(cuda="fail")
    some[0]["reason"], some[1]["reason"] = "out[3] is nan, the reference -1.5e-07", "out[1024] is 2, the reference 3"
    (line,) = (line for line in report.table(some).splitlines() if line.startswith("fail"))
    assert line == f"fail: cuda: out[3] is nan, the reference -1.5e-07 (2 cases, {CASE} the first)"


def test_the_table_counts():
    text = report.table(rows(cuda="fail", triton="pass", cupy="not run"))
    head, _, cuda, triton, cupy, *reasons = text.splitlines()
    assert head.split() == [
        "operator",
        "dtype",
        "backend",
        "where",
        "pass",
        "fail",
        "not",
        "run",
        "error/bound",
        "max",
        "ulp",
        "bitwise",
        "seconds",
    ]
    assert cuda.split() == ["vector_add", "float32", "cuda", "CPU", "1", "inf", "3", "0/1", "0.25"]
    assert triton.split() == ["vector_add", "float32", "triton", "CPU", "1", "0.5", "3", "0/1", "0.25"]
    assert cupy.split() == ["vector_add", "float32", "cupy", "CPU", "1"]
    assert reasons == [f"fail: cuda: why ({CASE})", f"not run: cupy: why ({CASE})"]
