"""``python -m bench``: measure, and read what was measured."""

import argparse
import importlib.util
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Sequence

from tabulate import tabulate

from bench import counters, results
from bench.compare import compare
from bench.results import read
from bench.work import DEVICES, Device, hardware, work
from crosscheck import backends, machine, report
from crosscheck.cases import CASES, DTYPES, OPERATORS, Case
from crosscheck.command import Parser, add_names, each, track, while_read
from crosscheck.runner import Task
from crosscheck.workers import GPU_ENVIRONMENT
from reference.contract import Unsupported, among, words


def parser() -> Parser:
    p = Parser(
        prog="python -m bench",
        description="How fast every implementation is, how far from what the hardware allows, and whether a difference is real.",
        epilog="Exit status: 0, 1 where an implementation got no time or --fail-on-slower found something slower, "
        "2 for a command line that cannot be carried out.",
    )
    verbs = p.add_subparsers(dest="verb", required=True, metavar="run|ceilings|explain|profile|tune|compare|plot")
    run = verbs.add_parser("run", help="time backends on this GPU", description="Time backends on this GPU.")
    add_choice(run)
    run.add_argument(
        "--cases",
        nargs="+",
        default=["performance"],
        metavar="ID",
        help="cases by id (default: performance, those kept for it)",
    )
    run.add_argument("--baseline", default="torch", metavar="NAME", help="what speed-up is against (default: torch)")
    run.add_argument(
        "--batches", type=int, default=5, metavar="N", help="batches of interleaved calls, 3 or more (default: 5)"
    )
    run.add_argument(
        "--json", type=Path, metavar="FILE", help="write the records; those of an earlier run are kept or replaced"
    )
    run.add_argument("--csv", type=Path, metavar="FILE", help="write this run's records as CSV")
    verbs.add_parser("ceilings", help="measure what this GPU does at best: copies, streams, matrix products")
    explain = verbs.add_parser(
        "explain", help="FLOPs, bytes and the floor of an operator's timed cases, before any measurement"
    )
    explain.add_argument("operator", metavar="OP", help=f"among {', '.join(OPERATORS)}")
    explain.add_argument("--device", help=f"by datasheet: {', '.join(DEVICES)} (default: this GPU, without one H200)")
    explain.add_argument("--case", nargs="+", metavar="ID", help="cases by id (default: the timed ones)")
    profile = verbs.add_parser("profile", help="the hardware's counters of a call, by ncu")
    profile.add_argument("operator", metavar="OP", help=f"among {', '.join(OPERATORS)}")
    add_names(profile, "--backend", f"among {', '.join(backends.BACKENDS)} (default: the implementations)")
    add_names(profile, "--variant", "variants of the implementations, or all (default: the best for the device)")
    profile.add_argument("--case", nargs="+", metavar="ID", help="cases by id (default: the largest timed one)")
    search = verbs.add_parser("tune", help="search for better configurations of a kernel on a case; changes nothing")
    search.add_argument("operator", metavar="OP", help=f"among {', '.join(OPERATORS)}")
    search.add_argument("--backend", required=True, metavar="NAME", help=f"among {', '.join(backends.IMPLEMENTATIONS)}")
    search.add_argument("--variant", metavar="NAME", help="the variant (default: the best for the device)")
    search.add_argument("--case", nargs="+", metavar="ID", help="cases by id (default: the timed ones)")
    both = verbs.add_parser("compare", help="what is faster, slower or the same in a second run")
    both.add_argument("old", type=Path, metavar="OLD")
    both.add_argument("new", type=Path, metavar="NEW")
    both.add_argument("--fail-on-slower", action="store_true", help="exit with 1 if anything is slower")
    plot = verbs.add_parser("plot", help="roofline and throughput of a run, as PNG and SVG")
    plot.add_argument("file", type=Path, metavar="FILE")
    plot.add_argument("--out", type=Path, metavar="DIR", help="where to (default: beside the file)")
    return p


def add_choice(p: Parser) -> None:
    add_names(p, "--op", f"operators: {', '.join(OPERATORS)} (default: those that are implemented)")
    add_names(p, "--backend", f"among {', '.join(backends.BACKENDS)} (default: all that are installed)")
    add_names(p, "--variant", "variants of the implementations, or all (default: the best for the device)")
    add_names(p, "--dtype", f"among {', '.join(DTYPES)} (default: all)")


def use_gpu() -> machine.Gpu:
    """The GPU, for frameworks that are imported from here on; ValueError where there is none to time anything on."""
    gpu = machine.find_gpu("auto")
    if gpu is None:
        raise ValueError("CUDA shows no GPU here, and interpreters are not timed; accepted: a machine with one")
    missing = [name for name in ("torch", "pynvml", "cuda.bindings") if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"{words(missing)} not installed, which the clocks need; accepted: the packages of [cuda13]")
    os.environ |= dict(GPU_ENVIRONMENT)
    return gpu


def choose_cases(options: argparse.Namespace) -> list[Case]:
    each("--op", options.op, OPERATORS)
    each("--dtype", options.dtype, DTYPES)
    chosen: dict[str, Case] = {}
    for name in options.cases:
        if name == "performance":
            known = lambda operator: options.op is not None or backends.implemented(operator)
            chosen |= {n: c for n, c in CASES.items() if name in c.sets and known(c.operator)}
        elif name in CASES:
            chosen[name] = CASES[name]
        else:
            raise ValueError(
                f"--cases has {name!r}; accepted: performance, or an id that python -m crosscheck --list or explain prints"
            )
    kept = [
        c for c in chosen.values() if c.operator in (options.op or OPERATORS) and c.dtype in (options.dtype or DTYPES)
    ]
    if not kept:
        raise ValueError("--op, --dtype and --cases leave no case together")
    return kept


def cases_of_operator(options: argparse.Namespace) -> list[Case]:
    """Of one operator the cases that were named, by default the timed ones."""
    own = {name: c for name, c in CASES.items() if c.operator == options.operator}
    for name in options.case or ():
        if name not in own:
            raise ValueError(f"--case is {name!r}; accepted: the id of a case of {options.operator}")
    return [own[name] for name in options.case or own if options.case or "performance" in own[name].sets]


def choose_tasks(case: Case, names: Sequence[str], asked: Sequence[str] | None) -> list[Task]:
    """What to run on a case: of implementations the best variant or those asked for, of all others every variant."""
    tasks = []
    for name in names:
        backend = backends.find(name)
        own = () if backend.unavailable("gpu") else backend.variants(case.operator)
        if not own or backend.role == "implementation" and asked is None:
            tasks.append(Task(name, case))
        else:
            every = backend.role != "implementation" or asked == ["all"]
            tasks += [Task(name, case, variant) for variant in own if every or variant in asked]
    return tasks


def check_variants(asked: Sequence[str] | None, names: Sequence[str], operators: Sequence[str]) -> None:
    """Raise ValueError for a variant that no implementation has."""
    if asked in (None, ["all"]):
        return
    mine = [backends.find(name) for name in names if backends.find(name).role == "implementation"]
    known = dict.fromkeys(v for b in mine if not b.unavailable("gpu") for op in operators for v in b.variants(op))
    each("--variant", asked, [*known, "all"])


def run(options: argparse.Namespace) -> int:
    cases = choose_cases(options)
    each("--backend", options.backend, backends.BACKENDS)
    among("--baseline", options.baseline, backends.BACKENDS)
    if options.batches < 3:
        raise ValueError(f"--batches is {options.batches}; accepted: 3 or more, to have a spread")
    gpu = use_gpu()
    environment = machine.environment(gpu)
    if options.json:
        results.check_mergeable(options.json, environment)
    if options.csv:
        report.check_writable(options.csv)
    named = options.backend is not None
    names = options.backend or [n for n, b in backends.BACKENDS.items() if not b.unavailable("gpu")]
    names = list(dict.fromkeys([options.baseline, *names]))
    operators = list(dict.fromkeys(c.operator for c in cases))
    check_variants(options.variant, names, operators)
    tasks = {case.id: choose_tasks(case, names, options.variant) for case in cases}
    if not named:  # without noise
        tasks = {i: [t for t in ts if backends.find(t.backend).variants(CASES[i].operator)] for i, ts in tasks.items()}

    from bench.run import Bench

    bench = Bench(gpu, options.batches)
    if others := bench.monitor.others():
        print(f"warning: also at work on this GPU: {words(others)}", file=sys.stderr)
    document = {
        "schema": report.SCHEMA,
        "environment": environment,
        "ceilings": bench.ceilings,
        "peaks": bench.peaks(),
    }
    records: list[dict] = []

    def keep():
        if options.json:
            results.write(options.json, document | {"records": records})

    for case in track(cases, lambda case: case.id):
        records += bench.run(case, tasks[case.id], options.baseline)
        keep()
    bench.add_first_calls(records)
    keep()
    with ThreadPoolExecutor(1) as pool:  # compiling needs no GPU
        compiled = pool.submit(bench.add_compiled, records)
        if reason := bench.add_utilisation(records):
            print(f"no utilisation: {reason}", file=sys.stderr)
        for reason in compiled.result():
            print(f"no compile figures: {reason}", file=sys.stderr)
    keep()
    if options.csv:
        results.write_csv(options.csv, records)
    print(results.table(records, options.baseline))
    return (
        1 if any(r["role"] == "implementation" and {"fail", "unsynchronised"} & set(r["flags"]) for r in records) else 0
    )


def ceilings(options: argparse.Namespace) -> int:
    gpu = use_gpu()
    from bench.run import Bench

    bench = Bench(gpu, 3)
    peaks = bench.peaks()
    lines = [
        [name, value, peaks["memory_tb_s" if name.endswith("_tb_s") else name]]
        for name, value in bench.ceilings.items()
    ]
    print(tabulate(lines, [gpu.name, "measured", "the hardware's peak"], floatfmt=".4g"))
    return 0


def explain(options: argparse.Namespace) -> int:
    among("OP", options.operator, OPERATORS)
    name, device = described(options.device)
    lines = []
    for case in cases_of_operator(options):
        needed = work(case)
        seconds, roof = device.floor(needed)
        lines.append([case.id, needed.flops / 1e9, needed.bytes / 1e6, needed.intensity, roof, 1e6 * seconds])
    heads = ["case", "GFLOP", "MB", "FLOP/byte", "decided by", f"floor on an {name}, us"]
    print(tabulate(lines, heads, floatfmt=("", ".3f", ".2f", ".3g", "", ".2f")))
    return 0


def described(name: str | None) -> tuple[str, Device]:
    """A GPU's name and peaks: by datasheet, or this one's as its driver tells them."""
    gpu = machine.gpu() if name is None else None
    if gpu is not None and importlib.util.find_spec("cuda.bindings"):
        return gpu.name, hardware().device(gpu.arch)
    name = among("--device", name or "H200", DEVICES)
    return name, DEVICES[name]


def profile(options: argparse.Namespace) -> int:
    among("OP", options.operator, OPERATORS)
    each("--backend", options.backend, backends.BACKENDS)
    cases = cases_of_operator(options)
    if not options.case:
        cases = [max(cases, key=lambda case: work(case).bytes)]
    gpu = use_gpu()
    names = options.backend or list(backends.IMPLEMENTATIONS)
    check_variants(options.variant, names, [options.operator])
    asked = []
    for case in cases:
        for task in choose_tasks(case, names, options.variant):
            backend = backends.find(task.backend)
            if reason := backend.unavailable("gpu"):
                raise ValueError(f"--backend is {task.backend!r}: {reason}")
            if not backend.variants(options.operator):
                raise ValueError(f"--backend is {task.backend!r}, which has no {options.operator}")
            variant = task.variant or backend.best(options.operator, case.dtype, gpu)
            asked.append((task.backend, variant, case.id))
    try:
        found = counters.read(asked, counters.PROFILE | (counters.HOPPER if gpu.arch == "sm_90" else {}))
    except counters.NoCounters as error:
        raise ValueError(f"no counters here: {error}") from None
    for (backend, variant, case), kernels in zip(asked, found):
        print(f"{case}: {backend} {variant}")
        print(counters.table(kernels, work(CASES[case])), end="\n\n")
    return 0


def tune(options: argparse.Namespace) -> int:
    among("OP", options.operator, OPERATORS)
    among("--backend", options.backend, backends.IMPLEMENTATIONS)
    cases = cases_of_operator(options)
    gpu = use_gpu()
    from bench.run import Bench
    from bench.tune import CHOICES
    from bench.tune import tune as rounds

    backend, bench = backends.find(options.backend), Bench(gpu, 3)
    for case in cases:
        variant = options.variant or backend.best(options.operator, case.dtype, gpu)
        among("--variant", variant, CHOICES.get((options.backend, options.operator), {}))
        for i, trials in enumerate(rounds(bench, Task(options.backend, case, variant))):
            timed = sorted((t for t in trials if t.us is not None), key=lambda t: t.us)
            refused = len(trials) - len(timed)
            print(f"{case.id}: {options.backend} {variant}, round {i + 1}: from {trials[0].configuration}")
            print(tabulate([[t.us, t.change] for t in timed[:8]], ["device us", "change"], floatfmt=".2f"))
            print(f"{len(timed)} timed, {refused} refused or wrong", end="\n\n", flush=True)
        bench.free()
    return 0


def show_changes(options: argparse.Namespace) -> int:
    old, new = read(options.old), read(options.new)
    gpus = [document["environment"].get("gpu") for document in (old, new)]
    if gpus[0] != gpus[1]:
        raise ValueError(f"OLD is of an {gpus[0]} and NEW of an {gpus[1]}; accepted: two runs on one kind of GPU")
    changes, gone, fresh = compare(results.timed(old["records"]), results.timed(new["records"]))
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
    if not results.timed(document["records"]):
        raise ValueError(f"{options.file} has no record with a time; accepted: one that has")
    directory = options.out or options.file.parent
    if not directory.is_dir():
        raise ValueError(f"--out is {str(directory)!r}; accepted: a directory that exists")
    from bench import plot

    stem = directory / options.file.stem
    for name, figure in (("roofline", plot.roofline(document)), ("throughput", plot.throughput(document))):
        for path in plot.save(figure, stem.with_name(f"{stem.name}_{name}")):
            print(path)
    return 0


VERBS = {
    "run": run, "ceilings": ceilings, "explain": explain, "profile": profile, "tune": tune, "compare": show_changes, "plot": draw,
}  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    try:
        options = parser().parse_args(argv)
        return while_read(lambda: VERBS[options.verb](options))
    except (ValueError, Unsupported) as error:
        print(f"python -m bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("python -m bench: interrupted; what was measured before is in --json's file", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        print(
            "python -m bench: matplotlib is not installed; accepted: the packages of the extra [plot]", file=sys.stderr
        )
        return 2


if __name__ == "__main__":
    sys.exit(main())
