"""``python -m crosscheck``: check every backend on the frozen cases and print one table."""

import argparse
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Callable, Iterator

from crosscheck import backends, compiling, faults, machine, report, self_test
from crosscheck.arrays import KINDS
from crosscheck.cases import CASES, DTYPES, OPERATORS, Case
from crosscheck.command import Parser, add_names, each, track, while_read
from crosscheck.runner import Task
from crosscheck.workers import AT_ONCE, CASES_EACH, Workers, run_cases
from reference.contract import among, words

SMALL = 1 << 28  # bytes of a case up to which several run at once: a run takes some ten times the case's memory
MOST = 1 << 30  # bytes of a case that is run on a CPU, where the reference needs many times that


def parser() -> Parser:
    p = Parser(
        prog="python -m crosscheck",
        description="Check every implementation of every operator, and the frameworks' own, on identical inputs.",
        epilog="python -m crosscheck faults --help: put known faults into the kernels and see that the check catches them. "
        "python -m crosscheck compile --help: what the compilers say of the kernels. "
        "Exit status: 0, 1 where an implementation fails or a required one does not pass, 2 for a wrong command line.",
    )
    add_names(p, "--op", f"operators: {', '.join(OPERATORS)} (default: those that are implemented)")
    add_names(
        p,
        "--backend",
        f"among {', '.join(backends.BACKENDS)} (default: all but the last four, other people's kernels, which run "
        "where they are named and installed; torch_compile on a GPU only)",
    )
    add_names(p, "--variant", "variants of the implementations, or all (default: the best for the device)")
    add_names(p, "--dtype", f"among {', '.join(DTYPES)} (default: all)")
    p.add_argument("--case", nargs="+", metavar="ID", help="cases by id (default: those for this machine)")
    add_device(p)
    p.add_argument("--require", metavar="NAME,...", help="fail unless each of these passes a case of every operator")
    p.add_argument("--module", metavar="NAME", help="check a module of yours too: functions named like the operators")
    add_json(p)
    p.add_argument("--list", action="store_true", help="list who would run and the cases, and run nothing")
    p.add_argument(
        "--self-test",
        action="store_true",
        help="check the check instead: wrong NumPy functions must fail, right ones pass",
    )
    return p


def compile_parser() -> Parser:
    p = Parser(
        prog="python -m crosscheck compile",
        description="Compile every kernel, with or without a GPU, and tabulate what the compilers say of it.",
        epilog="Exit status: 0, 1 where a kernel does not compile or is not what its variant expects, 2 for a wrong command line.",
    )
    add_names(p, "--op", f"operators: {', '.join(OPERATORS)} (default: those that are implemented)")
    add_names(p, "--backend", f"among {', '.join(backends.IMPLEMENTATIONS)} (default: all)")
    add_names(p, "--variant", "variants of the implementations (default: all)")
    add_names(p, "--dtype", f"among {', '.join(DTYPES)} (default: all)")
    add_names(p, "--arch", f"among {', '.join(compiling.ARCHS)} (default: sm_90a)")
    add_json(p)
    return p


def faults_parser() -> Parser:
    p = Parser(
        prog="python -m crosscheck faults",
        description="Put each known fault into a copy of its kernel and see that the check catches it.",
        epilog="Exit status: 0, 1 where a fault is missed or none could be tried, 2 for a wrong command line.",
    )
    add_names(p, "--op", f"operators: {', '.join(OPERATORS)} (default: all)")
    add_names(p, "--backend", f"among {', '.join(backends.IMPLEMENTATIONS)} (default: all)")
    add_device(p)
    add_json(p)
    return p


def add_device(p: Parser) -> None:
    p.add_argument("--device", default="auto", help="auto, gpu or cpu: where to run (default: the GPU if there is one)")


def add_json(p: Parser) -> None:
    p.add_argument(
        "--json", type=Path, metavar="FILE", help="write the rows; those of an earlier run are kept or replaced"
    )


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv[:1] == ["faults"]:
            job = faults_job(faults_parser().parse_args(argv[1:]))
        elif argv[:1] == ["compile"]:
            job = compile_job(compile_parser().parse_args(argv[1:]))
        else:
            job = check_job(parser().parse_args(argv))
    except ValueError as error:
        print(f"python -m crosscheck: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit that stops the workers too
    try:
        return while_read(job)
    except report.Unusable as error:
        print(f"python -m crosscheck: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("python -m crosscheck: interrupted, nothing written", file=sys.stderr)
        return 130


# Checking


def check_job(options: argparse.Namespace) -> Callable[[], int]:
    """What the command line asks for; ValueError where it cannot be carried out."""
    if options.self_test:
        each("--op", options.op, OPERATORS)
        return lambda: self_test.run(options.op or list(OPERATORS))
    gpu = machine.find_gpu(options.device)
    tier = "gpu" if gpu else "cpu"
    cases = choose_cases(options, tier)
    required = options.require.split(",") if options.require is not None else []
    chosen = choose_backends(options, tier, cases, required)
    if options.list:
        return lambda: show(cases, chosen, gpu)
    environment = machine.environment(gpu)
    if options.json:
        report.check_mergeable(options.json, environment)
    return lambda: check(options, gpu, environment, cases, chosen, required)


def choose_cases(options: argparse.Namespace, tier: str) -> list[Case]:
    each("--op", options.op, OPERATORS)
    each("--dtype", options.dtype, DTYPES)
    for name in options.case or ():
        if name not in CASES:
            raise ValueError(f"--case is {name!r}; accepted: an id that --list prints")
        size = OPERATORS[CASES[name].operator].bytes(CASES[name])
        if tier == "cpu" and size > MOST:
            raise ValueError(
                f"--case is {name!r} of {size / 1e9:.1f} GB; accepted on a CPU: cases of {MOST / 1e9:.1f} GB or less"
            )
    if options.case:
        cases = [CASES[name] for name in dict.fromkeys(options.case)]
    else:
        cases = [c for c in CASES.values() if tier in c.sets]
    if not options.case and not options.op:
        own = set(vars(check_module(options.module))) & set(OPERATORS) if options.module is not None else ()
        cases = [c for c in cases if (c.operator in own if own else backends.implemented(c.operator))]
    cases = [c for c in cases if not options.op or c.operator in options.op]
    cases = [c for c in cases if not options.dtype or c.dtype in options.dtype]
    if not cases:
        raise ValueError("--op, --dtype and --case leave no case together")
    return cases


def choose_backends(options: argparse.Namespace, tier: str, cases: list[Case], required: list[str]) -> list[str]:
    each("--backend", options.backend, backends.BACKENDS)
    own = [options.module] if options.module is not None else []
    each("--require", required, [*backends.BACKENDS, *own])
    if options.module is not None:
        module, operators = check_module(options.module), sorted({c.operator for c in cases})
        if not any(hasattr(module, operator) for operator in operators):
            raise ValueError(
                f"--module is {options.module!r}, which has no function of an operator; accepted: {words(operators)}"
            )
    chosen = options.backend or backends.usual(tier)
    return list(dict.fromkeys([*chosen, *required, *own]))


def check_module(name: str):
    """The module, imported from the current directory too; ValueError unless that is possible and it says what it takes."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if name in backends.BACKENDS:
        raise ValueError(f"--module is {name!r}, a backend's name; accepted: a module of another name")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            module = backends.find(name).module()
    except (Exception, SystemExit) as error:
        said = " | ".join(str(error).split("\n"))
        raise ValueError(f"--module is {name!r}, which cannot be imported: {type(error).__name__}: {said}") from None
    among(f"ARRAYS of --module {name}", getattr(module, "ARRAYS", None), KINDS)
    return module


def check(options, gpu, environment: dict, cases: list[Case], chosen: list[str], required: list[str]) -> int:
    operators = list(dict.fromkeys(c.operator for c in cases))
    with Workers(gpu) as workers:
        plan = {
            op: [(name, v) for name in chosen for v in variants(options.variant, name, op, workers)] for op in operators
        }
        if options.variant not in (None, ["all"]):
            mine = [name for name in chosen if has_variants(name, gpu)]
            known = dict.fromkeys(v for op in operators for name in mine for v in workers.variants(name, op))
            for name in options.variant:
                if name not in known:
                    raise report.Unusable(f"--variant is {name!r}; accepted: {words([*known, 'all'])}")
        small = lambda case: OPERATORS[case.operator].bytes(case) <= SMALL
        ordered = sorted(cases, key=small, reverse=True)
        tasks = [[Task(name, case, variant) for name, variant in plan[case.operator]] for case in ordered]
        count = sum(map(small, cases))

        def found() -> Iterator[list[dict]]:
            with contextlib.ExitStack() as stack:
                more = min(AT_ONCE, -(-count // CASES_EACH)) - 1
                yield from run_cases(
                    [workers, *(stack.enter_context(Workers(gpu)) for _ in range(more))], tasks[:count]
                )
            yield from run_cases([workers], tasks[count:])

        rows = {case.id: own for case, own in zip(track(ordered, lambda case: case.id), found(), strict=True)}
    result = list({report.key(row): row for case in cases for row in rows[case.id]}.values())
    report.add_agreement(result)
    if options.json:
        report.write(options.json, environment, result)
    print(report.table(result))
    passed = {(row["backend"], row["operator"]) for row in result if row["verdict"] == "pass"}
    missing = [(name, op) for name in required for op in operators if (name, op) not in passed]
    for name, operator in missing:
        print(f"required: {name} passes no case of {operator}", file=sys.stderr)
    failed = any(row["verdict"] == "fail" and row["role"] == "implementation" for row in result)
    return 1 if missing or failed else 0


def variants(asked: list[str] | None, backend: str, operator: str, workers: Workers) -> list[str | None]:
    """Which variants of a backend to run; [None] is its best, or the reason why there is none.

    A baseline's or a peer's are operators of their own, not steps to the best: they always run, all of them.
    """
    found = backends.find(backend)
    if found.unavailable("gpu" if workers.gpu else "cpu"):
        return [None]
    if found.role != "implementation":
        return list(found.variants(operator)) or [None]
    if asked is None:
        return [None]
    has = workers.variants(backend, operator)
    return (has or [None]) if asked == ["all"] else [name for name in has if name in asked]


def has_variants(backend: str, gpu: machine.Gpu | None) -> bool:
    """Whether ``--variant`` speaks of a backend: of implementations that can run here, not of baselines and peers."""
    found = backends.find(backend)
    return found.role == "implementation" and not found.unavailable("gpu" if gpu else "cpu")


def show(cases: list[Case], chosen: list[str], gpu: machine.Gpu | None) -> int:
    for name in chosen:
        backend = backends.find(name)
        print(f"{name}: {backend.unavailable('gpu' if gpu else 'cpu') or backend.where(gpu)}")
    print(*(case.id for case in cases), sep="\n")
    return 0


# Faults


def faults_job(options: argparse.Namespace) -> Callable[[], int]:
    """What the command line asks for; ValueError where it cannot be carried out."""
    gpu = machine.find_gpu(options.device)
    each("--op", options.op, OPERATORS)
    each("--backend", options.backend, backends.IMPLEMENTATIONS)
    if not faults.FAULTS.is_dir():
        raise ValueError("the faults are in tests/faults of a checkout, and this is none; accepted: to run it from one")
    environment = machine.environment(gpu)
    if options.json:
        report.check_mergeable(options.json, environment, faults.KEY)
    return lambda: check_faults(options, environment)


def check_faults(options: argparse.Namespace, environment: dict) -> int:
    rows = faults.check(
        options.op or list(OPERATORS), options.backend or list(backends.IMPLEMENTATIONS), environment["device"]
    )
    if options.json:
        report.write(options.json, environment, rows, faults.KEY)
    print(faults.table(rows))
    caught, missed = (sum(row["verdict"] == verdict for row in rows) for verdict in ("fail", "pass"))
    print(f"{caught} caught, {missed} missed, {len(rows) - caught - missed} not run")
    return 1 if missed or not caught else 0


# The compile report


def compile_job(options: argparse.Namespace) -> Callable[[], int]:
    """What the command line asks for; ValueError where it cannot be carried out."""
    each("--op", options.op, OPERATORS)
    each("--backend", options.backend, backends.IMPLEMENTATIONS)
    each("--dtype", options.dtype, DTYPES)
    each("--arch", options.arch, compiling.ARCHS)
    environment = machine.environment(None)
    if options.json:
        report.check_mergeable(options.json, environment, compiling.KEY)
    return lambda: check_compile(options, environment)


def check_compile(options: argparse.Namespace, environment: dict) -> int:
    asked = compiling.of_representatives(
        options.op or [op for op in OPERATORS if backends.implemented(op)],
        options.backend or backends.IMPLEMENTATIONS,
        options.dtype or DTYPES,
        options.arch or ("sm_90a",),
        options.variant,
    )
    rows = compiling.check(asked)
    if not rows:
        raise report.Unusable(
            "--op, --backend, --variant and --dtype leave no kernel together; accepted: some that is implemented"
        )
    if options.json:
        report.write(options.json, environment, rows, compiling.KEY)
    print(compiling.table(rows))
    return 1 if any(row["verdict"] == "fail" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
