"""The hardware's own counters of a call, read by Nsight Compute (``ncu``).

``python -m bench.counters FILE`` is the process that ncu watches: it runs each of the tasks in FILE once, behind a
kernel that marks where it begins. Kernels are run one at a time, and again for every set of counters.
"""

import csv
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Sequence

from tabulate import tabulate

from bench.work import Work

UTILISATION = {
    "sm_utilisation": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory_utilisation": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
}
DURATION = "gpu__time_duration.sum"
PROFILE = UTILISATION | {
    "tensor_utilisation": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "l2_hit_rate": "lts__t_sector_hit_rate.pct",
    "warps_active": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "bytes_read": "dram__bytes_read.sum",
    "bytes_written": "dram__bytes_write.sum",
    **{
        f"stall_{reason}": f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"
        for reason in (
            "long_scoreboard", "short_scoreboard", "barrier", "wait", "math_pipe_throttle", "mio_throttle",
            "lg_throttle", "tex_throttle", "membar", "not_selected", "sleeping", "branch_resolving",
        )
    },
}  # fmt: skip
# The wait for wgmma, where there is one.
HOPPER = {"stall_gmma": "smsp__average_warps_issue_stalled_gmma_per_issue_active.ratio"}
MARK = "bitwise_not"  # in the name of the kernel before a task's


class NoCounters(RuntimeError):
    """ncu is not there, or cannot read the counters; says which."""


def available() -> bool:
    """Whether ncu is installed."""
    return shutil.which("ncu") is not None


def read(tasks: Sequence[tuple[str, str, str]], metrics: dict[str, str]) -> list[list[dict]]:
    """Of each task (backend, variant, case id) its kernels in order: ``name``, ``us``, and the metrics by their names.

    Raises NoCounters.
    """
    if not available():
        raise NoCounters("ncu is not on PATH")
    wanted = ",".join([DURATION, *metrics.values()])
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "tasks.json"
        file.write_text(json.dumps(tasks))
        done = subprocess.run(
            ["ncu", "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw",
             "--print-units", "base", "--metrics", wanted, sys.executable, "-m", "bench.counters", str(file)],
            capture_output=True, text=True,
        )  # fmt: skip
    found = parse(done.stdout, metrics)
    if len(found) != len(tasks):
        words = (re.findall(r"==ERROR==.*", done.stdout + done.stderr) or done.stderr.strip().splitlines() or [""])[-1]
        raise NoCounters(f"ncu told of {len(found)} of {len(tasks)} calls: {words}")
    return found


def parse(text: str, metrics: dict[str, str]) -> list[list[dict]]:
    """The kernels of each task from ncu's CSV: one line a kernel, after a line of names and one of units."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    calls: list[list[dict]] = []
    rows = csv.DictReader(io.StringIO("\n".join(lines)))
    for row in rows:
        if not row["ID"]:  # the units
            continue
        if MARK in row["Kernel Name"]:
            calls.append([])
        elif calls:
            number = lambda name: _number(row.get(name))
            kernel = {"name": row["Kernel Name"], "us": (number(DURATION) or 0) / 1e3}
            calls[-1].append(kernel | {name: number(metric) for name, metric in metrics.items()})
    return calls


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def over_kernels(kernels: Sequence[dict], name: str) -> float | None:
    """A percentage of a call: the mean over its kernels by their time."""
    known = [kernel for kernel in kernels if kernel[name] is not None and kernel["us"]]
    total = sum(kernel["us"] for kernel in known)
    return sum(kernel[name] * kernel["us"] for kernel in known) / total if total else None


def table(kernels: Sequence[dict], needed: Work) -> str:
    """A line a kernel: time, utilisation, bytes moved, what warps wait for most; and the bytes that were predicted."""
    lines = []
    for kernel in kernels:
        stalls = {name[6:]: kernel[name] for name in kernel if name.startswith("stall_") and kernel[name]}
        worst = sorted(stalls, key=stalls.get, reverse=True)[:3]
        moved = (kernel["bytes_read"] or 0) + (kernel["bytes_written"] or 0)
        lines.append(
            {
                "kernel": kernel["name"].partition("(")[0][-40:],
                "us": f"{kernel['us']:.2f}",
                "SM %": _percent(kernel["sm_utilisation"]),
                "DRAM %": _percent(kernel["memory_utilisation"]),
                "tensor %": _percent(kernel["tensor_utilisation"]),
                "warps %": _percent(kernel["warps_active"]),
                "L2 hits %": _percent(kernel["l2_hit_rate"]),
                "MB read": f"{(kernel['bytes_read'] or 0) / 1e6:.2f}",
                "MB written": f"{(kernel['bytes_written'] or 0) / 1e6:.2f}",
                "TB/s": f"{moved / kernel['us'] / 1e6:.3f}" if kernel["us"] else "",
                "stalls, warps an issue": ", ".join(f"{name} {stalls[name]:.1f}" for name in worst),
            }
        )
    text = tabulate(lines, headers="keys", disable_numparse=True, colalign=["left"] + ["right"] * 9 + ["left"])
    moved = sum((kernel["bytes_read"] or 0) + (kernel["bytes_written"] or 0) for kernel in kernels)
    return text + f"\n{moved / 1e6:.2f} MB moved, {needed.bytes / 1e6:.2f} MB predicted: {moved / needed.bytes:.3f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def main(file: str) -> None:
    import torch

    from crosscheck import backends
    from crosscheck.arrays import KINDS
    from crosscheck.cases import CASES, OPERATORS

    mark = torch.ones(1, dtype=torch.int32, device="cuda")
    adapters, drawn, arrays = {}, None, {}
    for name, variant, case_id in json.loads(Path(file).read_text()):
        case, backend = CASES[case_id], backends.find(name)
        operator, kind = OPERATORS[case.operator], backend.kind("gpu")
        if kind not in adapters:
            adapters[kind] = KINDS[kind]("gpu")
        if drawn != case_id:
            drawn, host, arrays = case_id, operator.draw(case), {}
        if kind not in arrays:
            arrays[kind] = {key: adapters[kind].put(values) for key, values in host.items()}
        arguments, keywords = operator.call(case, arrays[kind])
        function = backend.function(case.operator, variant, "gpu")
        adapters[kind].wait([function(*arguments, **keywords)])
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        mark.bitwise_not_()
        torch.cuda.synchronize()
        adapters[kind].wait([function(*arguments, **keywords)])
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    main(sys.argv[1])
