"""Result files: reading, writing, and their table and CSV."""

import csv
import json
from pathlib import Path
from typing import Sequence

from tabulate import tabulate

from crosscheck import report
from crosscheck.cases import CASES

# A record's fields, in order; None where there is nothing to say.
FIELDS = (
    "operator", "backend", "variant", "role", "case", "dtype", "shape", "arguments", "distribution",
    "device_us", "device_us_quartiles", "batch_medians_us", "sustained_us", "copy_us",
    "call_us", "call_breakdown_us", "first_call_s",
    "bytes", "flops", "tb_s", "tflop_s", "floor_us", "roof_fraction", "speedup",
    "sm_utilisation", "memory_utilisation", "peak_memory_bytes",
    "registers", "spill_bytes", "shared_bytes", "occupancy",
    "sm_clock_mhz", "power_w", "temperature_c", "power_capped", "throttled",
    "sustained_sm_clock_mhz", "sustained_power_capped",
    "error_over_bound", "flags", "reason",
)  # fmt: skip


def read(path: Path) -> dict:
    """A result file with records; ValueError for anything else."""
    document = report.parse(path, "records", FIELDS)
    whole = document and document["records"] and all(isinstance(document.get(n), dict) for n in ("ceilings", "peaks"))
    if not whole:
        raise ValueError(f"{path} is no result file of schema {report.SCHEMA} with records")
    for record in document["records"]:
        if record["case"] not in CASES:
            raise ValueError(f"{path} has a record of {record['case']!r}; accepted: cases of this version's table")
    return document


def check_mergeable(path: Path, environment: dict) -> None:
    """Raise ValueError unless records of this environment can be written to ``path``, beside those that are there."""
    report.check_writable(path)
    if path.exists():
        report.check_environment(path, "records", read(path)["environment"], environment)


def write(path: Path, document: dict) -> None:
    """Write a result file, keeping those records of the one that is there which were not made anew."""
    kept = {report.key(record): record for record in read(path)["records"]} if path.exists() else {}
    kept |= {report.key(record): record for record in document["records"]}
    report.replace(path, document | {"records": list(kept.values())})


def timed(records: Sequence[dict]) -> list[dict]:
    """Those that have a time."""
    return [record for record in records if record["device_us"] is not None]


def table(records: Sequence[dict], baseline: str) -> str:
    """One line a record, case after case, the baseline first; then every reason for a missing time once."""
    lines = []
    order = {case: i for i, case in enumerate(dict.fromkeys(record["case"] for record in records))}
    by_case = sorted(records, key=lambda r: (order[r["case"]], r["backend"] != baseline))
    shown = None
    for r in by_case:
        first, shown = r["case"] != shown, r["case"]
        low, high = (min(r["batch_medians_us"]), max(r["batch_medians_us"])) if r["device_us"] else (None, None)
        lines.append(
            {
                "case": r["case"] if first else "",
                "backend": r["backend"],
                "variant": r["variant"] or "",
                "device us": _digits(r["device_us"]),
                "batches": r["device_us"] and f"{_digits(low)} - {_digits(high)}",
                "sustained": _digits(r["sustained_us"]),
                "call us": _digits(r["call_us"]),
                "TB/s": r["tb_s"] and f"{r['tb_s']:.3f}",
                "TFLOP/s": r["tflop_s"] and f"{r['tflop_s']:.3g}",
                "of roof": r["roof_fraction"] and f"{r['roof_fraction']:.2f}",
                f"x {baseline}": r["speedup"] and f"{r['speedup']:.3f}",
                "flags": ", ".join(r["flags"]),
            }
        )
    text = tabulate(lines, headers="keys", disable_numparse=True, colalign=["left"] * 3 + ["right"] * 8 + ["left"])
    reasons: dict[tuple, list[str]] = {}
    for r in by_case:
        if r["reason"]:
            reasons.setdefault((r["backend"], r["reason"]), []).append(r["case"])
    for (backend, reason), cases in reasons.items():
        text += f"\n{backend}: {reason} ({cases[0]}{f' and {len(cases) - 1} more' if len(cases) > 1 else ''})"
    return text


def _digits(microseconds: float | None) -> str | None:
    """Four digits that count, or 0.1 us."""
    if microseconds is None:
        return None
    return f"{microseconds:.2f}" if microseconds < 100 else f"{microseconds:.1f}"


def write_csv(path: Path, records: Sequence[dict]) -> None:
    """The records as CSV: lists by semicolons, objects as JSON."""

    def cell(value):
        if isinstance(value, (list, tuple)):
            return ";".join(map(str, value))
        return json.dumps(value) if isinstance(value, dict) else value

    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(FIELDS)
        writer.writerows([cell(record[name]) for name in FIELDS] for record in records)
