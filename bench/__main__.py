"""``python -m bench``: what a case costs at least, what two runs differ in, what a run looks like."""

import argparse
import json
import sys
from pathlib import Path

from tabulate import tabulate

from bench.compare import compare
from bench.work import DEVICES, work
from crosscheck.cases import CASES, OPERATORS
from crosscheck.command import Parser, while_read
from reference.contract import among


def parser() -> Parser:
    p = Parser(prog="python -m bench", description="Bytes, FLOPs, result files. python -m bench.device_time measures.")
    verbs = p.add_subparsers(dest="verb", required=True, metavar="explain|compare|plot")
    explain = verbs.add_parser(
        "explain", help="FLOPs, bytes and the floor of an operator's timed cases, before any measurement"
    )
    explain.add_argument("operator", metavar="OP", help=f"among {', '.join(OPERATORS)}")
    explain.add_argument("--device", default="H200", help=f"by datasheet: {', '.join(DEVICES)} (default: H200)")
    explain.add_argument("--case", nargs="+", metavar="ID", help="cases by id (default: the timed ones)")
    both = verbs.add_parser("compare", help="what is faster, slower or the same in a second run")
    both.add_argument("old", type=Path, metavar="OLD")
    both.add_argument("new", type=Path, metavar="NEW")
    both.add_argument("--fail-on-slower", action="store_true", help="exit with 1 if anything is slower")
    plot = verbs.add_parser("plot", help="roofline and throughput of a run, as PNG and SVG")
    plot.add_argument("file", type=Path, metavar="FILE")
    plot.add_argument("--out", type=Path, metavar="DIR", help="where to (default: beside the file)")
    return p


def read(path: Path) -> dict:
    """A result file with records; ValueError for anything else."""
    try:
        document = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no result file: {error}") from None
    records = document.get("records") if isinstance(document, dict) and document.get("schema") == 1 else None
    wanted = {"operator", "backend", "variant", "case", "dtype", "device_us", "batch_medians_us"}
    if not records or not all(isinstance(r, dict) and wanted <= set(r) for r in records):
        raise ValueError(f"{path} is no result file of schema 1 with records")
    for record in records:
        among(f"a case of {path.name}", record["case"], CASES)
    return document


def explain(options: argparse.Namespace) -> int:
    among("OP", options.operator, OPERATORS)
    device = DEVICES[among("--device", options.device, DEVICES)]
    own = {name: c for name, c in CASES.items() if c.operator == options.operator}
    names = options.case or [name for name, c in own.items() if "performance" in c.sets]
    lines = []
    for name in names:
        if name not in own:
            raise ValueError(f"--case is {name!r}; accepted: the id of a case of {options.operator}")
        needed = work(own[name])
        seconds, roof = device.floor(needed)
        lines.append([name, needed.flops / 1e9, needed.bytes / 1e6, needed.intensity, roof, 1e6 * seconds])
    heads = ["case", "GFLOP", "MB", "FLOP/byte", "decided by", f"floor on an {options.device}, us"]
    print(tabulate(lines, heads, floatfmt=("", ".3f", ".2f", ".3g", "", ".2f")))
    return 0


def show_changes(options: argparse.Namespace) -> int:
    old, new = read(options.old), read(options.new)
    gpus = [document["environment"].get("gpu") for document in (old, new)]
    if gpus[0] != gpus[1]:
        raise ValueError(f"OLD is of an {gpus[0]} and NEW of an {gpus[1]}; accepted: two runs on one kind of GPU")
    changes, gone, fresh = compare(old["records"], new["records"])
    if not changes:
        raise ValueError("OLD and NEW have no measurement in common; accepted: runs that share cases and backends")
    lines = [
        [
            c.record["backend"],
            c.record["variant"],
            c.record["case"],
            c.old_us,
            c.new_us,
            f"{100 * (c.ratio - 1):+.1f} %",
            f"{100 * c.noise:.1f} %",
            c.verdict,
        ]
        for c in changes
    ]
    print(tabulate(lines, ["backend", "variant", "case", "old us", "new us", "change", "noise", ""], floatfmt=".2f"))
    counts = {
        verdict: sum(c.verdict == verdict for c in changes) for verdict in ("faster", "slower", "same", "unclear")
    }
    print(
        ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
        + f"; {len(gone)} in OLD alone, {len(fresh)} in NEW alone"
    )
    return 1 if options.fail_on_slower and counts["slower"] else 0


def draw(options: argparse.Namespace) -> int:
    document = read(options.file)
    gpu = among(f"the GPU of {options.file.name}", document["environment"].get("gpu"), DEVICES)
    directory = options.out or options.file.parent
    if not directory.is_dir():
        raise ValueError(f"--out is {str(directory)!r}; accepted: a directory that exists")
    from bench import plot

    stem = directory / options.file.stem
    records = document["records"]
    for name, figure in (("roofline", plot.roofline(records, gpu)), ("throughput", plot.throughput(records))):
        for path in plot.save(figure, stem.with_name(f"{stem.name}_{name}")):
            print(path)
    return 0


def main(argv: list[str] | None = None) -> int:
    try:
        options = parser().parse_args(argv)
        verb = {"explain": explain, "compare": show_changes, "plot": draw}[options.verb]
        return while_read(lambda: verb(options))
    except ValueError as error:
        print(f"python -m bench: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        print(
            "python -m bench: matplotlib is not installed; accepted: the packages of the extra [plot]", file=sys.stderr
        )
        return 2


if __name__ == "__main__":
    sys.exit(main())
