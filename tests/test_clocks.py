"""The clocks: which records on the device belong to which call, without a GPU on a recorded trace; and on a GPU."""

import itertools
import json
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import clocks, host_time
from bench.clocks import Candidate, DeviceClock, Record, median_and_quartiles, shuffled, spans, stream

TRACE = json.loads((Path(__file__).parent / "recorded" / "trace.json").read_text())  # of an H200


def recorded() -> list[Record]:
    return [Record(*r) for r in TRACE["records"]]


def test_calls_of_a_recorded_trace():
    found = spans(recorded()[::-1], TRACE["marks"])  # in whatever order the records come
    assert [list(span) for span in found] == TRACE["spans"]
    taken = dict(zip(TRACE["order"], (span.end - span.start for span in found)))
    assert taken["two"] == 858913 - 852705  # from the first kernel's start to the second one's end
    assert taken["copy"] == 1243522 - 1240898  # a copy is a call, too


def test_what_was_there_before_the_first_flush_is_nobodys():
    early = Record("left over", -500, -100)
    assert spans([early, *recorded()], TRACE["marks"]) == spans(recorded(), TRACE["marks"])


def test_a_call_without_a_record():
    kept = [r for r in recorded() if r.name != "_vector_add"]
    found = spans(kept, TRACE["marks"])
    assert [name for name, span in zip(TRACE["order"], found) if span is None] == ["triton"]


def test_a_call_that_did_not_wait_for_its_flush():
    moved = [r._replace(start=1_300_000, end=1_303_000) if r.name == "_vector_add" else r for r in recorded()]
    found = spans(moved, TRACE["marks"])
    assert [name for name, span in zip(TRACE["order"], found) if not span.ordered] == ["triton"]


def test_a_call_that_launches_the_mark_itself():
    extra = Record("wrapped_not", 500_000, 500_100)
    with pytest.raises(RuntimeError, match="the device ran 9 flushes .* the 8 enqueued"):
        spans([*recorded(), extra], TRACE["marks"])


class Enqueued(DeviceClock):
    """A clock whose device runs a record of 1 ns for every launch, and a host whose calls take 250 ns."""

    def __init__(self, monkeypatch):
        self._torch = SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda: None))
        self.launched, self._marks, self._flush_ns = [], {"torch": "flush"}, {"torch": 200}
        ticks = itertools.count()
        monkeypatch.setattr(clocks.time, "perf_counter_ns", lambda: 250 * next(ticks))

    def flush(self, kind):
        return lambda: self.launched.append("flush")

    def _record(self, job):
        self.launched = []
        job()
        return [Record(name, i, i + 1) for i, name in enumerate(self.launched)]


def test_flushes_last_twice_as_long_as_a_call_takes_its_caller(monkeypatch):
    clock = Enqueued(monkeypatch)
    candidates = {
        name: Candidate("torch", lambda n=n: clock.launched.extend(["kernel"] * n), lambda results: None)
        for name, n in {"one": 1, "two": 2, "none": 0}.items()
    }
    assert clock.passes(candidates["one"]) == 3
    found = clock.batch(candidates, ["two", "one", "none", "two"])
    assert [span and span.end - span.start for span in found] == [2, 1, None, 2]
    assert clock.launched.count("flush") == 12
    clock._flush_ns["torch"] = 1
    assert clock.passes(candidates["one"]) == clocks.MOST_PASSES


def test_every_candidate_gets_its_calls_in_another_order():
    orders = [shuffled({"a": 20, "b": 5}, seed) for seed in range(3)]
    assert all(order.count("a") == 20 and order.count("b") == 5 for order in orders)
    assert orders[0] != orders[1] != orders[2] and orders[0] == shuffled({"a": 20, "b": 5}, 0)


def test_median_and_quartiles():
    tick = 0.032
    of = lambda *ticks: median_and_quartiles([tick * t for t in ticks])
    assert of(300, 100, 200, 400, 500) == (pytest.approx(300 * tick), pytest.approx([200 * tick, 400 * tick]))
    assert of(7) == (pytest.approx(7 * tick), pytest.approx([7 * tick] * 2))
    assert of(50, 50, 50, 50)[0] == pytest.approx(50 * tick)


def test_the_median_does_not_jump_by_a_tick():
    of = lambda low: median_and_quartiles([1.6] * low + [1.632] * (100 - low))[0]
    assert 0 < of(49) - of(51) < 0.002
    assert of(40) == pytest.approx(1.616 + 0.032 * 10 / 60)


def test_a_stream_of_calls_is_waited_for_once():
    said = []
    candidate = Candidate("numpy", lambda: said.append("call"), lambda results: said.append("wait"))
    assert stream(candidate, 3, lambda: said.append("before the end")) > 0
    assert said == ["call", "wait", "call", "call", "call", "before the end", "wait"]


def test_breakdown_takes_launch_and_allocation_away(monkeypatch):
    from unittest import mock

    spent = [0.0]  # microseconds, on a clock of the test's own

    def spend(microseconds):
        spent[0] += microseconds

    parts = SimpleNamespace(launch=lambda: spend(30), empty=lambda n: spend(10))

    def call():
        spend(20)
        parts.empty(7)
        parts.launch()

    def microseconds(candidate):
        before = spent[0]
        candidate.call()
        return spent[0] - before

    backend = SimpleNamespace(name="stub", module=lambda operator: None)
    stub = lambda *_: (mock.patch.object(parts, "launch", lambda: None), [(parts, "empty")])
    monkeypatch.setitem(host_time.STUBS, "stub", stub)
    monkeypatch.setattr(host_time, "microseconds", microseconds)
    found = host_time.breakdown(backend, "vector_add", Candidate("numpy", call, lambda results: None))
    assert found == {"checks": 20, "allocation": 10, "launch": 30}


# On a GPU


@pytest.fixture(scope="module")
def clock(pytestconfig):
    if pytestconfig.gpu is None:
        pytest.skip("not run: the device's clock needs a GPU")
    from bench.work import hardware

    return DeviceClock(hardware().l2_bytes)


def test_agrees_with_events_on_long_kernels(clock):
    import torch

    a, b = (torch.randn(4096, 4096, device="cuda") for _ in range(2))  # 2 ms in IEEE float32
    wait = lambda _: torch.cuda.synchronize()
    found = clock.batch({"mm": Candidate("torch", lambda: a @ b, wait)}, ["mm"] * 9)
    by_cupti = statistics.median(span.end - span.start for span in found) / 1e6
    times = []
    for _ in range(9):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        clock.flush("torch")()
        events[0].record()
        a @ b
        events[1].record()
        torch.cuda.synchronize()
        times.append(events[0].elapsed_time(events[1]))
    assert by_cupti == pytest.approx(statistics.median(times), rel=0.03)


def test_a_side_stream_is_seen(clock):
    import torch

    x, side = torch.ones(1 << 26, device="cuda"), torch.cuda.Stream()

    def beside():
        with torch.cuda.stream(side):
            return x + 1

    wait = lambda _: torch.cuda.synchronize()
    found = clock.batch({"beside": Candidate("torch", beside, wait)}, ["beside"] * 9)
    assert not all(span.ordered for span in found)
