"""Measures backends on cases, in this process, and says what came out in records."""

import functools
import gc
import itertools
import os
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Sequence

from bench import ceilings, counters, first_call, host_time
from bench.clocks import Candidate, DeviceClock, median_and_quartiles, shuffled, stream
from bench.health import Monitor, summary
from bench.results import FIELDS
from bench.work import Hardware, hardware, work
from crosscheck import backends, compiling
from crosscheck.cases import Case
from crosscheck.command import track
from crosscheck.machine import Gpu
from crosscheck.runner import Runner, Task, brief

BATCH_S = 0.02  # seconds of a candidate's calls in a batch, of device time and of call time; 3 to MOST calls
MOST = {"device": 50, "call": 1000}
SUSTAINED_S = 1.0  # seconds that a candidate runs back to back
TIMES = ("device_us", "device_us_quartiles", "batch_medians_us", "sustained_us", "call_us")  # of a record
COPY = "copy"  # the name of the copy among the candidates


@dataclass
class _Entry:
    """A backend in the run of a case. candidate: None where it gets no time."""

    task: Task
    record: dict
    candidate: Candidate | None = None

    def refuse(self, reason: str, flag: str = "fail") -> None:
        """Give it no time."""
        self.record |= dict.fromkeys(TIMES) | {"reason": reason}
        self.record["flags"].append(flag)


class Bench:
    """One GPU, its ceilings, and the run of cases on it."""

    def __init__(self, gpu: Gpu, batches: int):
        self.gpu, self.batches = gpu, batches
        self.hardware: Hardware = hardware()
        self.device = self.hardware.device(gpu.arch)
        self.clock = DeviceClock(self.hardware.l2_bytes)
        self.monitor = Monitor()
        self.runner = Runner(gpu)

    @functools.cached_property
    def ceilings(self) -> dict[str, float]:
        """Those of this run, measured when they are first asked for."""
        found = ceilings.measure(self.clock)
        self.free()
        return found

    def peaks(self) -> dict[str, float]:
        """The hardware's, in the units of the ceilings."""
        rates = {f"{name}_tflop_s": rate / 1e12 for name, rate in self.device.rates.items()}
        return {"memory_tb_s": self.device.bandwidth / 1e12} | rates

    def free(self) -> None:
        """Give the frameworks' cached memory back."""
        import torch

        self.runner.inputs = None
        gc.collect()
        torch.cuda.empty_cache()
        if "cupy" in self.runner.adapters:
            import cupy

            cupy.get_default_memory_pool().free_all_blocks()

    def run(self, case: Case, tasks: Sequence[Task], baseline: str) -> list[dict]:
        """A record for each task, all of one case. baseline: the backend whose fastest variant ``speedup`` is against."""
        entries = [self._check(task) for task in tasks]
        timed = {f"{i} {e.task.backend}": e for i, e in enumerate(entries) if e.candidate}
        try:
            if timed:
                self._time(case, timed)
                self._check_again(entries)
        except Exception as error:
            for entry in timed.values():
                entry.refuse(f"timing stopped: {brief(error)}")
        self.free()
        records = [entry.record for entry in entries]
        base = min((r["device_us"] for r in records if r["backend"] == baseline and r["device_us"]), default=None)
        for record in records:
            self._rates(case, record, base)
        return records

    def _check(self, task: Task) -> _Entry:
        row, *_ = self.runner.run(task)  # compiles, too
        case = task.case
        record = dict.fromkeys(FIELDS) | {
            name: row[name] for name in FIELDS if name in row
        } | {"distribution": case.distribution, "flags": []}  # fmt: skip
        entry = _Entry(task, record)
        if row["verdict"] not in ("pass", "inaccurate"):
            record["flags"] += ["fail"] if row["verdict"] == "fail" else []
            return entry
        record["reason"] = None
        backend = backends.find(task.backend)
        kind = backend.kind("gpu")
        function = backend.function(case.operator, row["variant"], "gpu")
        arguments, keywords = self.runner.inputs.call(kind)
        entry.candidate = Candidate(kind, lambda: function(*arguments, **keywords), self.runner.adapters[kind].wait)
        try:
            record["peak_memory_bytes"] = host_time.peak_memory(kind, function, arguments, keywords)
        except Exception as error:
            entry.candidate = None
            entry.refuse(f"the call in search of its peak memory: {brief(error)}")
        return entry

    def _check_again(self, entries: Sequence[_Entry]) -> None:
        """The same calls on other values in the same memory: what remembers its inputs is found out."""
        self.runner.inputs.redraw()
        for entry in entries:
            if not entry.candidate:
                continue
            row, *_ = self.runner.run(entry.task)
            entry.record["error_over_bound"] = row["error_over_bound"]
            if row["verdict"] == "inaccurate":
                entry.record["flags"].append("inaccurate")
            elif row["verdict"] != "pass":
                entry.refuse(f"on other values in the same memory: {row['reason']}")

    def _time(self, case: Case, timed: dict[str, _Entry]) -> None:
        candidates = {name: entry.candidate for name, entry in timed.items()}
        candidates[COPY] = self._copy(case)
        samples = self._device_time(candidates, timed)
        del candidates[COPY]
        state = summary(samples)
        for entry in timed.values():
            entry.record |= state
        self._call_time(candidates, timed)
        for name, entry in timed.items():
            record, backend = entry.record, backends.find(entry.task.backend)
            if record["device_us"] is None:
                continue
            if record["call_us"] > 1.5 * record["device_us"]:  # the device waits for the caller
                if isinstance(backend, backends.Implementation):
                    record["call_breakdown_us"] = host_time.breakdown(backend, case.operator, entry.candidate)
            else:
                self._sustained(entry)

    def _copy(self, case: Case) -> Candidate:
        """A copy that reads and writes as many bytes as the case's arrays have."""
        import torch

        source = torch.empty(max(1, work(case).bytes // 2), dtype=torch.uint8, device="cuda").random_()
        target = torch.empty_like(source)
        return Candidate("torch", lambda: target.copy_(source), self.runner.adapters["torch"].wait)

    def _device_time(self, candidates: dict[str, Candidate], timed: dict[str, _Entry]) -> list:
        calls = {}
        for name, candidate in candidates.items():
            self.clock.flush(candidate.kind)
            seconds = stream(candidate, 1)
            calls[name] = min(MOST["device"], max(3, int(BATCH_S / seconds)))
        found, samples = [], [self.monitor.sample()]
        for spans in self.clock.batches(candidates, calls, self.batches):
            found.append(spans)
            samples.append(self.monitor.sample())
        times = {}
        for name in candidates:
            batches = [spans[name] for spans in found]
            every = list(itertools.chain(*batches))
            if None in every:
                timed[name].refuse("calls leave no record on the device: nothing was computed")
            elif not all(span.ordered for span in every):
                timed[name].refuse("runs on a stream that is not ordered behind the caller's", "unsynchronised")
            else:
                times[name] = [[(span.end - span.start) / 1e3 for span in batch] for batch in batches]
        copy_us, _ = median_and_quartiles(list(itertools.chain(*times[COPY])))
        for name, batches in times.items():
            if name == COPY:
                continue
            median, quartiles = median_and_quartiles(list(itertools.chain(*batches)))
            timed[name].record |= {
                "device_us": median,
                "device_us_quartiles": quartiles,
                "batch_medians_us": [median_and_quartiles(batch)[0] for batch in batches],
                "copy_us": copy_us,
            }
        return samples

    def _call_time(self, candidates: dict[str, Candidate], timed: dict[str, _Entry]) -> None:
        candidates = {name: candidate for name, candidate in candidates.items() if timed[name].record["device_us"]}
        calls = {}
        for name, candidate in candidates.items():
            calls[name] = min(MOST["call"], max(3, int(BATCH_S / stream(candidate, 3))))
        times = {name: [] for name in candidates}
        for batch in range(self.batches):
            for name in shuffled(dict.fromkeys(candidates, 1), batch):
                times[name].append(1e6 * stream(candidates[name], calls[name]))
        for name, seconds in times.items():
            record = timed[name].record
            record["call_us"] = statistics.median(seconds)
            if record["call_us"] < record["device_us"] / 2:
                record["flags"].append("unsynchronised")  # the wait ended before the work

    def _sustained(self, entry: _Entry) -> None:
        record, samples = entry.record, []
        calls = max(3, int(SUSTAINED_S / (record["device_us"] / 1e6)))
        record["sustained_us"] = 1e6 * stream(entry.candidate, calls, lambda: samples.append(self.monitor.sample()))
        state = summary(samples)
        record["sustained_sm_clock_mhz"] = state["sm_clock_mhz"]
        record["sustained_power_capped"] = state["power_capped"]
        record["throttled"] |= state["throttled"]

    def _rates(self, case: Case, record: dict, base_us: float | None) -> None:
        """What follows from a record's time."""
        needed = work(case)
        floor, _ = self.device.floor(needed)
        record |= {"bytes": needed.bytes, "flops": needed.flops, "floor_us": 1e6 * floor}
        taken = record["device_us"]
        if taken is None:
            return
        record["tb_s"], record["tflop_s"] = needed.bytes / taken / 1e6, needed.flops / taken / 1e6
        memory = max(self.ceilings["copy_tb_s"], self.ceilings["stream_tb_s"])
        record["roof_fraction"] = max(
            record["tb_s"] / memory, record["tflop_s"] / self.ceilings[f"{needed.rate}_tflop_s"]
        )
        record["speedup"] = base_us and base_us / taken
        if taken < record["floor_us"]:
            record["flags"].append("impossible")
        record["flags"] += [name for name in ("power_capped", "throttled") if record[name]]

    def add_compiled(self, records: Sequence[dict]) -> list[str]:
        """What the compile report says of the implementations: of several kernels the worst of each figure.

        Returns of which there is nothing, and why.
        """
        arch = next((a for a in (f"{self.gpu.arch}a", self.gpu.arch) if a in compiling.ARCHS), None)
        mine = [r for r in records if r["role"] == "implementation" and r["device_us"] is not None]
        if arch is None or not mine:
            return []
        rows = compiling.check([compiling.Ask(r["backend"], r["case"], arch, (r["variant"],)) for r in mine])
        for record in mine:
            same = ("backend", "case", "variant")
            of_record = [row for row in rows if all(row[name] == record[name] for name in same)]
            own = [row for row in of_record if row["registers"] is not None]
            if own:
                record["registers"] = max(row["registers"] for row in own)
                record["spill_bytes"] = max(row["spill_bytes"] for row in own)
                record["shared_bytes"] = max(row["static_shared_bytes"] + row["dynamic_shared_bytes"] for row in own)
                record["occupancy"] = min(row["occupancy"] for row in own)
        absent = [row for row in rows if row["registers"] is None and row["verdict"] != "unsupported"]
        return [f"{row['backend']} {row['case']}: {row['reason']}" for row in absent]

    def add_first_calls(self, records: Sequence[dict]) -> None:
        """Of every variant at the first case where it has a time; on half of the cores."""
        firsts = {}
        for record in records:
            if record["device_us"] is not None:
                firsts.setdefault((record["operator"], record["backend"], record["variant"]), record)
        with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
            jobs = [
                (record, pool.submit(first_call.seconds, record["backend"], record["variant"], record["case"]))
                for record in firsts.values()
            ]
            for record, job in track(jobs, lambda job: f"first calls: {job[0]['backend']}"):
                record["first_call_s"] = job.result()

    def add_utilisation(self, records: Sequence[dict]) -> str | None:
        """ncu's percentages; returns why there are none, or None."""
        timed = [r for r in records if r["device_us"] is not None]
        tasks = [(r["backend"], r["variant"], r["case"]) for r in timed]
        try:
            for record, kernels in zip(timed, counters.read(tasks, counters.UTILISATION)):
                for name in counters.UTILISATION:
                    record[name] = counters.over_kernels(kernels, name)
        except counters.NoCounters as error:
            return str(error)
        return None
