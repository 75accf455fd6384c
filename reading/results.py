"""What the result files say of an operator, as tables that name their file."""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Iterable, Mapping, NamedTuple, Sequence

from reading.operators import COLUMNS
from reading.sources import Bad

FOLDER = "bench/results"
SCHEMA = 1
# What tells the kinds of rows apart.
AGREEMENT = {"case", "backend", "variant", "role", "dtype", "where", "verdict", "error_over_bound"}
COMPILED = {
    "case",
    "backend",
    "variant",
    "arch",
    "reason",
    "registers",
    "spill_bytes",
    "static_shared_bytes",
    "dynamic_shared_bytes",
    "instructions",
    "occupancy",
}
TIMED = {
    "backend",
    "variant",
    "role",
    "case",
    "dtype",
    "device_us",
    "roof_fraction",
    "flops",
    "bytes",
    "tflop_s",
    "flags",
}


@dataclass(frozen=True)
class Table:
    """heads: of the columns, the first of which is text. lines: a cell is a text, or a text and what is said below it."""

    file: str
    title: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str | tuple[str, str], ...], ...]
    remarks: tuple[str, ...] = ()


class Point(NamedTuple):
    """A measured call in the roofline: FLOPs a byte, and FLOP/s."""

    backend: str
    dtype: str
    intensity: float
    tflop_s: float


class Roofline(NamedTuple):
    """What is measured, under memory's peak and measured rates (TB/s) and those of arithmetic (TFLOP/s)."""

    file: str
    gpu: str
    memory: tuple[float, float]
    rates: Mapping[str, tuple[float, float]]
    points: tuple[Point, ...]


@dataclass
class Results:
    """The result files under ``root``; ``files`` that have something of any operator."""

    root: Path
    documents: dict[str, dict] = field(default_factory=dict)

    def __post_init__(self):
        for path in sorted((self.root / FOLDER).rglob("*.json")):
            name = path.relative_to(self.root).as_posix()
            try:
                document = json.loads(path.read_text())
            except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
                raise Bad(f"{name} is no result file: {error}") from None
            if not isinstance(document, dict) or document.get("schema") != SCHEMA:
                raise Bad(f"{name} is no result file of schema {SCHEMA}")
            self.documents[name] = document

    def rows(self, operator: str, part: str, fields: set[str]) -> Iterable[tuple[str, dict, list[dict]]]:
        """A file, its document and its rows of the operator that have these fields, where it has any."""
        for name, document in self.documents.items():
            found = [
                row
                for row in document.get(part, ())
                if isinstance(row, dict) and row.get("operator") == operator and fields <= set(row)
            ]
            if found:
                yield name, document, found

    def agreement(self, operator: str) -> list[Table]:
        tables = []
        for name, document, rows in self.rows(operator, "rows", AGREEMENT):
            dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
            by_who = _grouped(rows, lambda row: (row["backend"], row["variant"] or ""))
            lines, remarks = [], {}
            for (backend, variant), own in sorted(by_who.items(), key=lambda item: _order(item[0][0])):
                cells = [_who(backend, variant, operator)]
                for dtype in dtypes:
                    there = [row for row in own if row["dtype"] == dtype]
                    ran = [row for row in there if row["verdict"] not in ("not run", "unsupported")]
                    passed = sum(row["verdict"] == "pass" for row in ran)
                    worst = max((_number(row["error_over_bound"]) for row in ran), default=None)
                    cells.append((_error(worst), f"{passed} of {len(ran)}") if ran else "–")
                    for row in ran:
                        if row["verdict"] != "pass":
                            remarks.setdefault((backend, row["verdict"]), []).append(row["case"])
                lines.append(tuple(cells))
            said = [
                f"{_title(backend)}: {verdict} in {len(cases)} {'case' if len(cases) == 1 else 'cases'}, {cases[0]} the first"
                for (backend, verdict), cases in remarks.items()
            ]
            where = ", ".join(dict.fromkeys(row["where"] for row in rows))
            tables.append(Table(name, f"On {_article(where)}", ("", *dtypes), tuple(lines), tuple(said)))
        return tables

    def times(self, operator: str) -> list[Table]:
        tables = []
        for name, document, rows in self.rows(operator, "records", TIMED):
            backends = sorted(dict.fromkeys(row["backend"] for row in rows), key=_order)
            lines, remarks = [], {}
            by_case = _grouped(rows, lambda row: row["case"])
            for case, own in by_case.items():
                cells: list[str | tuple[str, str]] = [case.removeprefix(f"{operator}-")]
                for backend in backends:
                    there = [row for row in own if row["backend"] == backend and row["device_us"] is not None]
                    if not there:
                        cells.append("–")
                        continue
                    best = min(there, key=lambda row: row["device_us"])
                    share = "" if best["roof_fraction"] is None else f"{100 * best['roof_fraction']:.0f} %"
                    others = [best["variant"]] if _several(rows, backend) else []
                    cells.append((f"{_microseconds(best['device_us'])} µs", ", ".join(filter(None, [share, *others]))))
                    for flag in best["flags"]:
                        remarks.setdefault((backend, flag), []).append(cells[0])
                lines.append(tuple(cells))
            said = [
                f"{_title(backend)}: {flag.replace('_', ' ')} in {', '.join(cases)}"
                for (backend, flag), cases in remarks.items()
            ]
            gpu = document["environment"].get("gpu") or "an unnamed GPU"
            heads = ("", *map(_title, backends))
            tables.append(Table(name, f"On {_article(gpu)}", heads, tuple(lines), tuple(said)))
        return tables

    def compiled(self, operator: str) -> list[Table]:
        tables = []
        for name, document, rows in self.rows(operator, "rows", COMPILED):
            lines, without = [], []
            by_who = _grouped(rows, lambda row: (row["backend"], row["variant"]))
            for (backend, variant), own in by_who.items():
                there = [row for row in own if row["registers"] is not None]
                if not there:
                    without.append(f"{_title(backend)} {variant}: {own[0]['reason']}")
                    continue
                numbers = lambda key: [row[key] for row in there]
                shared = [row["static_shared_bytes"] + row["dynamic_shared_bytes"] for row in there]
                tensor = sorted(
                    {k for row in there for k, n in row["instructions"].items() if n and k not in ("LDL", "STL")}
                )
                lines.append((
                    _who(backend, variant, operator),
                    ", ".join(dict.fromkeys(row["case"].split("-")[1] for row in there)),
                    _range(numbers("registers")),
                    _range(numbers("spill_bytes")),
                    _range([n / 1024 for n in shared]),
                    _range([100 * n for n in numbers("occupancy")]),
                    ", ".join(tensor) or "–",
                ))  # fmt: skip
            archs = ", ".join(dict.fromkeys(row["arch"] for row in rows))
            heads = ("", "for", "registers", "spilled bytes", "shared KiB", "occupancy %", "instructions")
            tables.append(Table(name, f"For {archs}", heads, tuple(lines), tuple(without)))
        return tables

    def roofline(self, operator: str) -> Roofline | None:
        """Of the first file that has times of the operator."""
        for name, document, rows in self.rows(operator, "records", TIMED):
            peaks, ceilings = document.get("peaks"), document.get("ceilings")
            timed = [row for row in rows if row["tflop_s"]]
            if not (peaks and ceilings and timed):
                continue
            dtypes = {"float32": ("float32",), "float16": ("float16",), "bfloat16": ("bfloat16",)}
            tensor = operator in ("matmul", "attention")
            wanted = [rate for row in timed for rate in (dtypes[row["dtype"]] if tensor else ("float32",))]
            if tensor and any(row["arguments"].get("precision") == "tf32" for row in timed):
                wanted.append("tf32")
            rates = {rate: (peaks[f"{rate}_tflop_s"], ceilings[f"{rate}_tflop_s"]) for rate in dict.fromkeys(wanted)}
            points = tuple(
                Point(row["backend"], row["dtype"], row["flops"] / row["bytes"], row["tflop_s"])
                for row in sorted(timed, key=lambda row: _order(row["backend"]))
            )
            measured = max(ceilings["copy_tb_s"], ceilings["stream_tb_s"])
            gpu = document["environment"].get("gpu") or "GPU"
            return Roofline(name, gpu, (peaks["memory_tb_s"], measured), rates, points)
        return None


def _grouped(rows: Iterable[dict], key: Callable) -> dict:
    found = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return found


def _order(backend: str) -> tuple[int, str]:
    """The columns' backends first, in their order."""
    ours = list(COLUMNS)
    return ours.index(backend) if backend in ours else len(ours), backend


def _title(backend: str) -> str:
    return COLUMNS.get(backend, backend)


def _who(backend: str, variant: str, operator: str) -> str | tuple[str, str]:
    return _title(backend) if variant in ("", operator) else (_title(backend), variant)


def _several(rows: Sequence[dict], backend: str) -> bool:
    return len({row["variant"] for row in rows if row["backend"] == backend}) > 1


def _article(words: str) -> str:
    return ("an " if words[0] in "aeioAEIOH" else "a ") + words


def _number(error: float | str | None) -> float:
    return 0.0 if error is None else float(error)


def _error(worst: float) -> str:
    return "0" if worst == 0 else "∞" if worst == float("inf") else f"{worst:.3f}"


def _microseconds(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.1f}".replace(",", " ")


def _range(values: Sequence[float]) -> str:
    low, high = (f"{v:.3g}" for v in (min(values), max(values)))
    return low if low == high else f"{low} – {high}"
