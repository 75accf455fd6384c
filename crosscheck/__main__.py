"""``python -m crosscheck``: check every backend on the frozen cases and print one table."""

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Iterable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from crosscheck import backends, faults, machine, report
from crosscheck.cases import CASES, OPERATORS, Case
from crosscheck.runner import Task
from crosscheck.workers import Workers
from reference.contract import words

DTYPES = ("float32", "float16", "bfloat16")


class UsageError(Exception):
    """A command line that cannot be carried out: one line saying why."""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UsageError(message)


def parser() -> argparse.ArgumentParser:
    p = Parser(
        prog="python -m crosscheck",
        description="Check every implementation of every operator, and the frameworks' own, on identical inputs.",
        epilog="python -m crosscheck faults: put known faults into the kernels and see that the check catches them.",
    )
    names = {"nargs": "+", "metavar": "NAME"}
    p.add_argument("--op", **names, help=f"operators: {', '.join(OPERATORS)} (default: all)")
    p.add_argument("--backend", **names, help=f"among {', '.join(backends.BACKENDS)} (default: all; torch_compile on a GPU only)")
    p.add_argument("--variant", **names, help="variants of the implementations, or all (default: the best for the device)")
    p.add_argument("--dtype", **names, help=f"among {', '.join(DTYPES)} (default: all)")
    p.add_argument("--case", nargs="+", metavar="ID", help="cases by id (default: those for this machine)")
    p.add_argument("--device", default="auto", help="auto, gpu or cpu: where to run (default: the GPU if there is one)")
    p.add_argument("--require", default="", metavar="NAME,...", help="fail unless each of these passes a case of every operator")
    p.add_argument("--module", metavar="NAME", help="check a module of yours too: functions named like the operators")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the rows; those of an earlier run are kept or replaced")
    p.add_argument("--list", action="store_true", help="list the cases that would run, and who is there to run them")
    return p


def faults_parser() -> argparse.ArgumentParser:
    p = Parser(
        prog="python -m crosscheck faults",
        description="Put each known fault into a copy of its kernel and see that the check catches it.",
    )
    p.add_argument("--op", nargs="+", metavar="NAME", help=f"operators: {', '.join(OPERATORS)} (default: all)")
    p.add_argument("--backend", nargs="+", metavar="NAME", help=f"among {', '.join(backends.IMPLEMENTATIONS)} (default: all)")
    p.add_argument("--device", default="auto", help="auto, gpu or cpu: where to run (default: the GPU if there is one)")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    return p


def among(option: str, names: Iterable[str], accepted: Iterable[str]) -> None:
    for name in names:
        if name not in accepted:
            raise UsageError(f"{option} {name!r} is unknown; accepted: {words(accepted)}")


def find_tier(device: str) -> tuple[str, machine.Gpu | None]:
    """``("gpu", its description)`` or ``("cpu", None)``."""
    among("--device", [device], ("auto", "gpu", "cpu"))
    found = None if device == "cpu" else machine.gpu()
    if device == "gpu" and found is None:
        raise UsageError("--device gpu: CUDA shows no GPU here; accepted: auto or cpu")
    return ("gpu", found) if found else ("cpu", None)


def choose_cases(options: argparse.Namespace, tier: str) -> list[Case]:
    among("--op", options.op or (), OPERATORS)
    among("--dtype", options.dtype or (), DTYPES)
    for name in options.case or ():
        if name not in CASES:
            raise UsageError(f"--case {name!r} is unknown; accepted: an id that --list prints")
    cases = [CASES[name] for name in options.case] if options.case else [c for c in CASES.values() if tier in c.sets]
    cases = [c for c in cases if not options.op or c.operator in options.op]
    cases = [c for c in cases if not options.dtype or c.dtype in options.dtype]
    if not cases:
        raise UsageError("no case is of those operators, dtypes and ids together")
    return cases


def choose_backends(options: argparse.Namespace, tier: str, cases: list[Case]) -> list[str]:
    among("--backend", options.backend or (), backends.BACKENDS)
    required = [name for name in options.require.split(",") if name]
    among("--require", required, [*backends.BACKENDS, *([options.module] if options.module else [])])
    chosen = options.backend or [n for n in backends.BACKENDS if n != "torch_compile" or tier == "gpu"]
    if options.module:
        check_module(options.module, tier, {c.operator for c in cases})
        chosen = [*chosen, options.module]
    return list(dict.fromkeys([*chosen, *required]))


def check_module(name: str, tier: str, operators: set[str]) -> None:
    """Raise UsageError unless a module can be imported and says what it has to."""
    sys.path.insert(0, "")
    if name in backends.BACKENDS:
        raise UsageError(f"--module {name!r} is a backend's name; accepted: a module of another name")
    try:
        module = backends.find(name).module()
    except Exception as error:
        raise UsageError(f"--module {name!r} cannot be imported: {type(error).__name__}: {error}") from None
    kinds = ("torch", "cupy", "jax", "numpy")
    if getattr(module, "ARRAYS", None) not in kinds:
        raise UsageError(f"--module {name!r} has ARRAYS = {getattr(module, 'ARRAYS', None)!r}; accepted: {words(kinds)}")
    if not any(hasattr(module, operator) for operator in operators):
        raise UsageError(f"--module {name!r} has no function {words(sorted(operators))}")


def variants(options: argparse.Namespace, backend: str, operator: str, workers: Workers) -> list[str | None]:
    """Which variants of a backend to run; [None] is its best."""
    if options.variant is None or backends.find(backend).role == "baseline":
        return [None]
    has = workers.variants(backend, operator)
    return has if options.variant == ["all"] else [v for v in has if v in options.variant]


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv[:1] == ["faults"]:
            return check_faults(faults_parser().parse_args(argv[1:]))
        return check(parser().parse_args(argv))
    except (UsageError, report.ReportError) as error:
        print(f"python -m crosscheck: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("python -m crosscheck: interrupted, nothing written", file=sys.stderr)
        return 130


def check(options: argparse.Namespace) -> int:
    tier, found = find_tier(options.device)
    cases = choose_cases(options, tier)
    chosen = choose_backends(options, tier, cases)
    if options.list:
        return show(cases, chosen, tier, found)
    environment = machine.environment(found)
    if options.json:
        report.check_writable(options.json, environment)
    rows: dict[tuple, dict] = {}
    with Workers(tier, found.name if found else "CPU") as workers:
        operators = dict.fromkeys(c.operator for c in cases)
        plan = {op: [(b, v) for b in chosen for v in variants(options, b, op, workers)] for op in operators}
        if options.variant not in (None, ["all"]):
            known = {v for pairs in plan.values() for _, v in pairs}
            among("--variant", options.variant, known)
        tasks = [Task(backend, case, variant) for case in cases for backend, variant in plan[case.operator]]
        for task in track(tasks):
            for row in workers.run(task):
                rows[report.key(row)] = row
    result = list(rows.values())
    report.add_agreement(result)
    if options.json:
        report.write(options.json, environment, result)
    print(report.table(result))
    missing = unmet([n for n in options.require.split(",") if n], operators, result)
    for line in missing:
        print(line, file=sys.stderr)
    failed = any(row["verdict"] == "fail" for row in result)
    return 1 if failed or missing else 0


def check_faults(options: argparse.Namespace) -> int:
    tier, found = find_tier(options.device)
    among("--op", options.op or (), OPERATORS)
    among("--backend", options.backend or (), backends.IMPLEMENTATIONS)
    environment = machine.environment(found)
    if options.json:
        report.check_writable(options.json, environment)
    rows = faults.check(options.op or list(OPERATORS), options.backend or list(backends.IMPLEMENTATIONS), tier)
    if options.json:
        report.write(options.json, environment, rows, ("operator", "backend", "fault"))
    print(faults.table(rows))
    missed = sum(row["verdict"] == "pass" for row in rows)
    caught = sum(row["verdict"] == "fail" for row in rows)
    print(f"{caught} caught, {missed} missed, {len(rows) - caught - missed} not run")
    return 1 if missed or not caught else 0


def unmet(required: list[str], operators: Iterable[str], rows: list[dict]) -> list[str]:
    """A line for each required backend that passes no case of an operator."""
    passed = {(row["backend"], row["operator"]) for row in rows if row["verdict"] == "pass"}
    return [
        f"required: {name} passes no case of {operator}"
        for name in required
        for operator in operators
        if (name, operator) not in passed
    ]


def track(tasks: list[Task]):
    """The tasks, with their progress on stderr."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(tasks))
        for task in tasks:
            progress.update(bar, description=f"{task.backend} {task.case.id}")
            yield task
            progress.advance(bar)


def show(cases: list[Case], chosen: list[str], tier: str, found: machine.Gpu | None) -> int:
    for name in chosen:
        backend = backends.find(name)
        reason = backend.unavailable(tier)
        where = backend.where(tier, found.name if found else "CPU")
        print(f"{name}: {reason or where}")
    for case in cases:
        print(case.id)
    return 0


if __name__ == "__main__":
    sys.exit(main())
