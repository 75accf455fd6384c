"""What becomes of measurements: rates, flags, reasons, tables; and on a GPU, cheats that have to be caught."""

import csv
import json
from types import SimpleNamespace

import pytest

from bench import counters, first_call, results
from bench.__main__ import main
from bench.clocks import Candidate, DeviceClock, Span
from bench.health import Sample, summary
from bench.results import FIELDS
from bench.run import COPY, Bench, _Entry
from bench.work import Hardware
from crosscheck import backends, compiling
from crosscheck.cases import CASES
from crosscheck.runner import Task

H200 = Hardware(132, 1980e6, 3201e6, 6016, 62_914_560)
CASE = CASES["vector_add-float32-67108864"]


def new_record(**changes) -> dict:
    return dict.fromkeys(FIELDS) | {
        "operator": "vector_add", "backend": "cuda", "variant": "vector_add", "role": "implementation",
        "case": CASE.id, "dtype": CASE.dtype, "shape": dict(CASE.shape), "arguments": {}, "flags": [],
    } | changes  # fmt: skip


@pytest.fixture
def bench():
    """One without a GPU, with the ceilings of an H200."""
    made = Bench.__new__(Bench)
    made.hardware, made.device, made.batches = H200, H200.device("sm_90"), 3
    made.ceilings = {"copy_tb_s": 4.26, "stream_tb_s": 4.38, "float32_tflop_s": 49.0}
    made.monitor = SimpleNamespace(sample=lambda: Sample(1980, 200.0, 35, 0))
    return made


def test_the_hardwares_peaks():
    peaks = H200.device("sm_90")
    assert peaks.bandwidth == pytest.approx(4.814e12, rel=1e-3)
    assert peaks.rates["bfloat16"] == pytest.approx(1070.5e12, rel=1e-3)
    assert H200.device("sm_999").rates == {}


def test_rates_of_a_time(bench):
    record = new_record(device_us=186.0)
    bench._rates(CASE, record, 187.0)
    assert record["bytes"] == 3 * 4 << 26 and record["tb_s"] == pytest.approx(4.3296, rel=1e-4)
    assert record["roof_fraction"] == pytest.approx(record["tb_s"] / 4.38)
    assert record["floor_us"] == pytest.approx(167.27, rel=1e-4) and record["speedup"] == 187.0 / 186.0
    assert record["flags"] == []


def test_faster_than_the_memory_is_impossible(bench):
    record = new_record(device_us=160.0)
    bench._rates(CASE, record, None)
    assert record["flags"] == ["impossible"] and record["speedup"] is None


def test_no_time_no_rates(bench):
    record = new_record()
    bench._rates(CASE, record, 187.0)
    assert record["tb_s"] is None and record["floor_us"] > 0 and record["flags"] == []


def run_of(bench, found: dict) -> dict[str, dict]:
    """The records of candidates whose calls are such spans, beside a copy."""
    bench.clock = DeviceClock.__new__(DeviceClock)
    bench.clock.flush = lambda kind: None
    bench.clock.batch = lambda candidates, order: [found[name] for name in order]
    timed = {name: _Entry(Task("cuda", CASE), new_record()) for name in found if name != COPY}
    candidates = {name: Candidate("numpy", lambda: None, lambda _: None) for name in found}
    bench._device_time(candidates, timed)
    del candidates[COPY]
    bench._call_time(candidates, timed)
    return {name: entry.record for name, entry in timed.items()}


def test_device_time_of_batches(bench):
    records = run_of(bench, {COPY: Span(0, 190_000, True), "a": Span(5_000, 191_000, True)})
    about = lambda us: pytest.approx(us, abs=0.032)
    assert records["a"]["device_us"] == about(186) and records["a"]["copy_us"] == about(190)
    assert records["a"]["batch_medians_us"] == about([186] * 3)
    assert records["a"]["device_us_quartiles"] == about([186, 186])


def test_what_leaves_no_record_or_runs_elsewhere_gets_no_time(bench):
    records = run_of(bench, {COPY: Span(0, 1000, True), "idle": None, "beside": Span(0, 500, False)})
    assert records["idle"]["device_us"] is None and records["idle"]["flags"] == ["fail"]
    assert "nothing was computed" in records["idle"]["reason"]
    assert records["beside"]["device_us"] is None and records["beside"]["flags"] == ["unsynchronised"]
    assert records["idle"]["call_us"] is None and records["beside"]["call_us"] is None


def test_a_wait_that_ends_before_the_work_is_flagged(bench):
    entry = _Entry(Task("cuda", CASE), new_record(device_us=186.0))
    bench._call_time({"a": Candidate("numpy", lambda: None, lambda _: None)}, {"a": entry})
    assert entry.record["flags"] == ["unsynchronised"] and entry.record["call_us"] < 93


def test_the_state_of_the_gpu():
    samples = [Sample(1980, 300.0, 40, 0), Sample(1440, 699.9, 60, 0x4), Sample(1980, 500.0, 50, 0)]
    found = summary(samples)
    assert found["power_capped"] and not found["throttled"]
    assert found["sm_clock_mhz"] == 1980 and found["power_w"] == 699.9 and found["temperature_c"] == 60
    assert summary([Sample(900, 300.0, 90, 0x40)])["throttled"]


NCU = """==PROF== Connected to process 583
"ID","Kernel Name","dram__throughput.avg.pct_of_peak_sustained_elapsed","gpu__time_duration.sum","sm__throughput.avg.pct_of_peak_sustained_elapsed"
"","","%","ns","%"
"0","void at::vectorized_elementwise_kernel<4, at::bitwise_not_kernel_cuda(at::TensorIteratorBase &)>","0.01","1,504","0.02"
"1","vector_add","80","30,000","10"
"2","void at::vectorized_elementwise_kernel<4, at::bitwise_not_kernel_cuda(at::TensorIteratorBase &)>","0.01","1,504","0.02"
"3","first","40","10,000","n/a"
"4","second","80","30,000","20"
"""


def test_counters_of_a_recorded_csv():
    one, two = counters.parse(NCU, counters.UTILISATION)
    assert one == [{"name": "vector_add", "us": 30.0, "sm_utilisation": 10.0, "memory_utilisation": 80.0}]
    assert [kernel["name"] for kernel in two] == ["first", "second"]
    assert counters.over_kernels(two, "memory_utilisation") == 70.0  # by their time
    assert counters.over_kernels(two, "sm_utilisation") == 20.0  # what is known
    assert counters.over_kernels([], "sm_utilisation") is None


def test_without_ncu(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(counters.NoCounters, match="ncu is not on PATH"):
        counters.read([("cuda", "vector_add", CASE.id)], counters.UTILISATION)


def test_table_and_csv(tmp_path):
    times = {
        "device_us": 186.0,
        "batch_medians_us": [185.0, 186.0, 187.5],
        "call_us": 187.0,
        "tb_s": 4.33,
        "tflop_s": 0.36,
    }
    records = [
        new_record(**times, roof_fraction=0.99, speedup=1.01),
        new_record(backend="torch", variant="torch.add", role="baseline", **times, roof_fraction=0.99, speedup=1.0),
        new_record(backend="triton", flags=["fail"], reason="out of memory"),
    ]
    text = results.table(records, "torch")
    lines = text.splitlines()
    assert "torch.add" in lines[2] and "cuda" in lines[3] and "185.0 - 187.5" in lines[3], "the baseline first"
    assert lines[4].split() == ["triton", "vector_add", "fail"]
    assert lines[-1] == f"triton: out of memory ({CASE.id})"
    results.write_csv(tmp_path / "run.csv", records)
    rows = list(csv.DictReader((tmp_path / "run.csv").open()))
    assert rows[0]["batch_medians_us"] == "185.0;186.0;187.5" and json.loads(rows[0]["shape"]) == {"n": 1 << 26}
    assert rows[2]["device_us"] == "" and rows[2]["reason"] == "out of memory"


def test_merging_keeps_what_was_not_made_anew(tmp_path):
    path, environment = tmp_path / "run.json", {"gpu": "H200", "date": "2026-11-30"}
    document = {"schema": 1, "environment": environment, "ceilings": {}, "peaks": {}}
    timed = {"device_us": 1.0, "batch_medians_us": [1.0]}
    results.write(path, document | {"records": [new_record(**timed), new_record(backend="torch", **timed)]})
    results.write(path, document | {"records": [new_record(device_us=2.0, batch_medians_us=[2.0])]})
    found = {r["backend"]: r["device_us"] for r in results.read(path)["records"]}
    assert found == {"cuda": 2.0, "torch": 1.0}
    results.check_mergeable(path, environment | {"date": "2027-01-01"})
    with pytest.raises(ValueError, match=r"another environment \(gpu\); accepted: a new path"):
        results.check_mergeable(path, environment | {"gpu": "H100"})


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["run"], "CUDA shows no GPU here, and interpreters are not timed; accepted: a machine with one"),
        (["ceilings"], "CUDA shows no GPU here"),
        (["profile", "vector_add"], "CUDA shows no GPU here"),
        (["run", "--op", "softmin"], "--op is 'softmin'; accepted: vector_add"),
        (["run", "--backend", "tvm"], "--backend is 'tvm'; accepted: cuda"),
        (["run", "--baseline", "tvm"], "--baseline is 'tvm'; accepted: cuda"),
        (["run", "--cases", "vector_add"], "--cases has 'vector_add'; accepted: performance, or an id"),
        (["run", "--op", "softmax", "--cases", CASE.id], "--op, --dtype and --cases leave no case together"),
        (["run", "--batches", "2"], "--batches is 2; accepted: 3 or more, to have a spread"),
        (
            ["profile", "vector_add", "--case", "softmax"],
            "--case is 'softmax'; accepted: the id of a case of vector_add",
        ),
    ],
)
def test_wrong_command_lines(capsys, monkeypatch, arguments, message):
    monkeypatch.setattr("crosscheck.machine.gpu", lambda: None)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.count("\n") == 1


class FakeBench:
    """Gives every task the same time, and stops where it is told to."""

    ceilings = {"copy_tb_s": 4.26, "stream_tb_s": 4.38, "float32_tflop_s": 49.0}
    stop_at = None

    def __init__(self, gpu, batches):
        self.monitor = SimpleNamespace(others=lambda: ["python (17)"])

    def peaks(self):
        return {"memory_tb_s": 4.8}

    def run(self, case, tasks, baseline):
        if case.id == self.stop_at:
            raise KeyboardInterrupt
        times = {"device_us": 2.0, "batch_medians_us": [2.0], "call_us": 9.0, "tb_s": 4.0, "tflop_s": 0.4}
        return [
            new_record(backend=t.backend, role=backends.find(t.backend).role, case=case.id, dtype=case.dtype, **times)
            for t in tasks
        ]

    def add_compiled(self, records):
        return ["triton vector_add-float32-65536: ptxas was not found"]

    def add_first_calls(self, records):
        pass

    def add_utilisation(self, records):
        return "ncu is not on PATH"


@pytest.fixture
def fake(monkeypatch):
    from bench import __main__ as command
    from crosscheck.machine import Gpu

    monkeypatch.setattr(command, "use_gpu", lambda: Gpu("H200", "sm_90", "13.0"))
    monkeypatch.setattr("bench.run.Bench", FakeBench)
    monkeypatch.setattr(FakeBench, "stop_at", None)
    return FakeBench


CHOICE = ["run", "--op", "vector_add", "--dtype", "float32", "--backend", "cuda", "torch", "--variant", "vector_add"]


def test_a_run_from_the_command_line(fake, tmp_path, capsys):
    path, table = tmp_path / "run.json", tmp_path / "run.csv"
    assert main([*CHOICE, "--json", str(path), "--csv", str(table)]) == 0
    out, err = capsys.readouterr()
    assert "warning: also at work on this GPU: python (17)" in err and "no utilisation: ncu is not on PATH" in err
    assert "no compile figures: triton vector_add-float32-65536: ptxas was not found" in err
    assert out.splitlines()[2].split()[:2] == ["vector_add-float32-65536", "torch"], "the baseline first"
    found = results.read(path)
    assert found["ceilings"] == FakeBench.ceilings and len(found["records"]) == 14
    assert len(table.read_text().splitlines()) == 15


def test_an_interrupted_run_keeps_what_it_has(fake, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(fake, "stop_at", "vector_add-float32-1048576")
    assert main([*CHOICE, "--json", str(tmp_path / "run.json")]) == 130
    assert "interrupted; what was measured before is in --json's file" in capsys.readouterr().err
    cases = {r["case"] for r in results.read(tmp_path / "run.json")["records"]}
    assert cases == {"vector_add-float32-65536", "vector_add-float32-262144"}


def test_an_unknown_variant(fake, capsys):
    assert main([*CHOICE[:-1], "fastest"]) == 2
    assert "--variant is 'fastest'; accepted: vector_add or all" in capsys.readouterr().err


def test_out_of_memory_at_one_size(bench, monkeypatch):
    """That row says so and the others get their time."""
    rows = {"cuda": "pass", "torch": "fail"}

    def run(task):
        reason = "OutOfMemoryError: CUDA out of memory" if rows[task.backend] == "fail" else None
        return [new_record(backend=task.backend, variant="v") | {"verdict": rows[task.backend], "reason": reason}]

    bench.runner = SimpleNamespace(
        run=run, adapters={"cupy": SimpleNamespace(wait=None)},
        inputs=SimpleNamespace(call=lambda kind: ([], {}), redraw=lambda: None),
    )  # fmt: skip
    monkeypatch.setattr(bench, "free", lambda: None)
    monkeypatch.setattr("bench.host_time.peak_memory", lambda *_: 0)
    monkeypatch.setattr(backends.Cuda, "function", lambda *_: lambda: None)
    monkeypatch.setattr(bench, "_time", lambda case, timed: [e.record.update(device_us=190.0) for e in timed.values()])
    mine, theirs = bench.run(CASE, [Task("cuda", CASE), Task("torch", CASE)], "torch")
    assert mine["device_us"] == 190.0 and mine["flags"] == [] and mine["speedup"] is None
    assert theirs["device_us"] is None and theirs["reason"].startswith("OutOfMemoryError")


def test_timing_that_stops_costs_the_case_alone(bench, monkeypatch):
    def run(task):
        return [new_record(backend=task.backend) | {"verdict": "pass"}]

    bench.runner = SimpleNamespace(
        run=run, adapters={"cupy": SimpleNamespace(wait=None)}, inputs=SimpleNamespace(call=lambda kind: ([], {}))
    )
    monkeypatch.setattr(bench, "free", lambda: None)
    monkeypatch.setattr("bench.host_time.peak_memory", lambda *_: 0)
    monkeypatch.setattr(backends.Cuda, "function", lambda *_: lambda: None)
    monkeypatch.setattr(bench, "_time", lambda *_: 1 / 0)
    (record,) = bench.run(CASE, [Task("cuda", CASE)], "torch")
    assert record["device_us"] is None and record["flags"] == ["fail"]
    assert record["reason"].startswith("timing stopped: ZeroDivisionError")


def test_first_calls_are_of_two_processes_with_one_cache(monkeypatch):
    seen = []

    def run(command, env, **_):
        seen.append((command[-3:], env["TRITON_CACHE_DIR"]))
        return SimpleNamespace(returncode=0 if len(seen) < 4 else 1, stdout=f"said at import\n{len(seen)}.5\n")

    monkeypatch.setattr("subprocess.run", run)
    assert first_call.seconds("triton", "vector_add", CASE.id) == {"cold": 1.5, "cached": 2.5}
    assert seen[0] == seen[1] and seen[0][0] == ["triton", "vector_add", CASE.id]
    assert first_call.seconds("triton", "vector_add", CASE.id) == {"cold": 3.5, "cached": None}
    assert seen[2][1] != seen[0][1], "a cache of its own"


# On a GPU


@pytest.fixture(scope="module")
def here(pytestconfig):
    if pytestconfig.gpu is None:
        pytest.skip("not run: measuring needs a GPU")
    return Bench(pytestconfig.gpu, 3)


def measured(here, monkeypatch, function, case) -> dict:
    """The record of a function of torch tensors as an implementation of vector add."""
    mine = backends.Function("mine", "implementation", (), call=function, arrays="torch")
    monkeypatch.setitem(backends.BACKENDS, "mine", mine)
    (record,) = here.run(CASES[case], [Task("mine", CASES[case])], "mine")
    return record


def test_a_copy_slowed_by_five_percent_is_slower(here, monkeypatch):
    import torch

    from bench.compare import compare

    longer = {}

    def slowed(x, y):
        if x.shape not in longer:
            longer[x.shape] = [torch.empty(x.numel() // 20, device="cuda") for _ in range(3)]
        a, b, c = longer[x.shape]
        torch.add(a, b, out=c)
        return x + y

    fast = [measured(here, monkeypatch, lambda x, y: x + y, CASE.id) for _ in range(2)]
    slow = measured(here, monkeypatch, slowed, CASE.id)
    assert compare(fast[:1], fast[1:])[0][0].verdict == "same"
    assert compare(fast[:1], [slow])[0][0].verdict == "slower"


def test_an_unsynchronised_candidate_is_caught(here, monkeypatch):
    import torch

    side = torch.cuda.Stream()

    def beside(x, y):
        with torch.cuda.stream(side):
            return x + y

    record = measured(here, monkeypatch, beside, CASE.id)
    assert record["device_us"] is None and record["flags"] == ["unsynchronised"]


def test_a_candidate_that_remembers_is_caught(here, monkeypatch):
    memory = {}

    def remembering(x, y):
        key = x.data_ptr(), y.data_ptr()
        if key not in memory:
            memory[key] = x + y
        return memory[key].clone()

    record = measured(here, monkeypatch, remembering, CASE.id)
    assert record["device_us"] is None and record["flags"] == ["fail"]
    assert record["reason"].startswith("on other values in the same memory: out[")


def test_data_in_the_l2_cache_is_impossible(here, monkeypatch):
    """A flush of a few bytes leaves 12 MB where they are."""
    monkeypatch.setattr(here, "clock", DeviceClock(64))
    record = measured(here, monkeypatch, lambda x, y: x + y, "vector_add-float32-1048576")
    assert "impossible" in record["flags"]


def test_compile_figures_are_of_the_record_s_own_case(bench):
    pytest.importorskip("cuda.bindings.nvrtc")
    sizes = ("softmax-bfloat16-32768x1024", "softmax-bfloat16-4096x32768")
    own = {"operator": "softmax", "variant": "5_persistent", "dtype": "bfloat16", "device_us": 40.0}
    cuda, torch = (
        {**own, "backend": b, "role": role} for b, role in (("cuda", "implementation"), ("torch", "baseline"))
    )
    records = [new_record(**which, case=case) for which in (cuda, torch) for case in sizes]
    bench.gpu = SimpleNamespace(arch="sm_90")
    assert bench.add_compiled(records) == []
    narrow, wide, *baselines = records
    assert 0 <= narrow["shared_bytes"] < wide["shared_bytes"], "each width has its own configuration"
    assert all(record["registers"] is None for record in baselines)


def test_a_kernel_without_figures_is_named(bench, monkeypatch):
    row = compiling.new_row("vector_add", "cuda", "vector_add", CASE.id, "sm_90a")
    monkeypatch.setattr(compiling, "check", lambda asked: [row | {"verdict": "fail", "reason": "ptxas was not found"}])
    bench.gpu = SimpleNamespace(arch="sm_90")
    assert bench.add_compiled([new_record(device_us=40.0)]) == [f"cuda {CASE.id}: ptxas was not found"]
