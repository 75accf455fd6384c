"""``python -m bench.device_time``: what the kernels of a case take on the GPU, all frameworks in one run.

Times are CUPTI's records of the device, read through torch.profiler, which sees kernels whichever library launched
them. The calls are interleaved in a shuffled order and synchronised; a fill of three times the L2 cache comes before
each, flushes it and marks where a call's records begin. Outputs are checked before.
"""

import argparse
import os
import random
import statistics
import sys
from pathlib import Path

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"

from tabulate import tabulate

from crosscheck import backends, machine, report
from crosscheck.cases import CASES, OPERATORS
from crosscheck.runner import Runner, Task

CASE = "vector_add-float32-268435456"
BATCHES, CALLS = 5, 20
MARK = "FillFunctor"  # in the name of the kernel that fills the flush buffer


def spans(records: list[tuple[str, int, int]]) -> list[float]:
    """Device microseconds of each call. records: (name, start, end) in ns; a call's lie between two marks."""
    calls: list[tuple[int, int]] = []
    for name, start, end in sorted(records, key=lambda record: record[1]):
        if MARK in name:
            calls.append((sys.maxsize, 0))
        elif calls:
            calls[-1] = min(calls[-1][0], start), max(calls[-1][1], end)
    empty = sum(end == 0 for _, end in calls)
    if empty:
        raise RuntimeError(f"{empty} of {len(calls)} calls left no record on the device")
    return [(end - start) / 1e3 for start, end in calls]


def measure(functions: dict, batches: int = BATCHES, calls: int = CALLS) -> dict[str, list[list[float]]]:
    """Device microseconds of every call, by name and batch."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    flush = torch.empty(3 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.uint8, device="cuda")
    for function in functions.values():
        function()
    times = {name: [] for name in functions}
    for batch in range(batches):
        order = [name for name in functions for _ in range(calls)]
        random.Random(batch).shuffle(order)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as session:
            for name in order:
                flush.fill_(1)
                torch.cuda.synchronize()
                functions[name]()
        events = [e for e in session.profiler.kineto_results.events() if "CUDA" in str(e.device_type())]
        taken = spans([(e.name(), e.start_ns(), e.start_ns() + e.duration_ns()) for e in events])
        if len(taken) != len(order):
            raise RuntimeError(f"{len(order)} calls left the records of {len(taken)}")
        for name in functions:
            times[name].append([t for own, t in zip(order, taken) if own == name])
    return times


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(
        prog="python -m bench.device_time", description=__doc__.split(": ", 1)[1].split("\n")[0]
    )
    p.add_argument("--case", default=CASE, metavar="ID", help=f"a case of the table (default: {CASE})")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the records")
    options = p.parse_args(argv)
    try:
        if options.case not in CASES:
            raise ValueError(
                f"--case is {options.case!r}; accepted: an id that python -m crosscheck --list prints, or {CASE}"
            )
        case = CASES[options.case]
        gpu = machine.find_gpu("auto")
        if gpu is None:
            raise ValueError("CUDA shows no GPU here; accepted: a machine with one")
        environment = machine.environment(gpu)
        if options.json:
            report.check_writable(options.json)
            if options.json.exists() and '"records"' not in options.json.read_text(errors="replace"):
                raise ValueError(
                    f"--json {options.json} is no file of such records; accepted: a new path, or one to replace"
                )
    except ValueError as error:
        print(f"python -m bench.device_time: {error}", file=sys.stderr)
        return 2

    runner = Runner(gpu)
    functions, rows = {}, {}
    for name in backends.BACKENDS:
        (row, *_) = runner.run(Task(name, case))
        if row["verdict"] != "pass":
            print(f"{name}: {row['verdict']}: {row['reason']}", file=sys.stderr)
            continue
        backend = backends.find(name)
        function, kind = backend.function(case.operator, row["variant"], "gpu"), backend.kind("gpu")
        (arrays, keywords), wait = runner.inputs.call(kind), runner.adapters[kind].wait
        functions[name] = lambda f=function, a=arrays, k=keywords, w=wait: w([f(*a, **k)])
        rows[name] = row
    times = measure(functions)

    bytes_moved = OPERATORS[case.operator].bytes(case)
    records = []
    for name, row in rows.items():
        medians = [statistics.median(batch) for batch in times[name]]
        every = sorted(t for batch in times[name] for t in batch)
        median = statistics.median(every)
        first, _, third = statistics.quantiles(every, n=4)
        records.append(
            {key: row[key] for key in ("operator", "backend", "variant", "role", "case", "dtype", "shape", "arguments")}
            | {
                "distribution": case.distribution,
                "device_us": median,
                "device_us_quartiles": [first, third],
                "batch_medians_us": medians,
                "bytes": bytes_moved,
                "tb_s": bytes_moved / median / 1e6,
            }
        )
    base = next((r["device_us"] for r in records if r["backend"] == "torch"), None)
    for record in records:
        record["speedup"] = base and base / record["device_us"]
    records.sort(key=lambda r: r["backend"] != "torch")
    if options.json:
        report.replace(options.json, {"schema": 1, "environment": environment, "records": records})
    lines = [
        [
            r["backend"],
            r["device_us"],
            f"{min(r['batch_medians_us']):.1f} to {max(r['batch_medians_us']):.1f}",
            r["tb_s"],
            r["speedup"],
        ]
        for r in records
    ]
    print(case.id)
    print(
        tabulate(
            lines,
            ["backend", "device us", "batch medians", "TB/s", "against torch"],
            floatfmt=("", ".1f", "", ".3f", ".3f"),
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
