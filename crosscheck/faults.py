"""A check is worth what it catches: known faults, put into copies of the real kernels one at a time.

The faults of an operator stand in ``tests/faults/<op>.py``. Each is a text of a source that is replaced in a
temporary copy of the tree; the check then runs there, in a process of its own, and has to fail.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from crosscheck import backends
from crosscheck.arrays import GUARD
from crosscheck.workers import AT_ONCE

ROOT = Path(__file__).resolve().parent.parent
FAULTS = ROOT / "tests" / "faults"
PACKAGES = ("reference", "cuda", "cupy_impl", "triton_impl", "pallas_impl", "crosscheck")


KEY = ("operator", "backend", "fault")  # what makes a row the same row in another run

# What a failed row's reason says, and by what the fault was caught.
CATCHERS = {
    "were not written": "unwritten elements",
    f"of {GUARD} elements": "guard bands",
    "wrote to its input": "inputs compared",
    "no answer within": "timeout",
    "Race:": "race detector",
    "KernelFault:": "host build",
    "Out-of-bounds": "interpreter",
    "the process died": "crash",
    "the reference": "bound",
}


@dataclass(frozen=True)
class Fault:
    """One fault of one backend's kernel.

    name: in the words of a bug report. file: from the root. text: found there exactly once. by: what catches it,
    among the values of CATCHERS; anything else that fails, a typing error for one, is no catch. cases: ids that are
    run. tiers: where it can show, ``"cpu"`` and ``"gpu"``. variant: that runs them, by default the best.
    """

    backend: str
    name: str
    file: str
    text: str
    replacement: str
    by: tuple[str, ...]
    cases: tuple[str, ...]
    tiers: tuple[str, ...] = ("cpu", "gpu")
    variant: str | None = None

    @property
    def owner(self) -> tuple[str, str | None]:
        """What runs its cases: a backend and its variant."""
        return self.backend, self.variant


class StaleFault(ValueError):
    """A fault whose text is not in the source exactly once."""


def load(operator: str) -> tuple[Fault, ...]:
    """The faults of an operator, none where it has no file of them."""
    path = FAULTS / f"{operator}.py"
    if not path.exists():
        return ()
    return part(operator, "FAULTS")


def part(stem: str, name: str) -> tuple[Fault, ...]:
    """The faults of a name in a file of ``tests/faults/``."""
    spec = importlib.util.spec_from_file_location(f"faults_{stem}", FAULTS / f"{stem}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def apply(fault: Fault, root: Path) -> None:
    """Put a fault into a copy of the tree; raises StaleFault."""
    path = root / fault.file
    source = path.read_text()
    if source.count(fault.text) != 1:
        raise StaleFault(f"{fault.file} has {source.count(fault.text)} times {fault.text!r}; a fault needs it once")
    path.write_text(source.replace(fault.text, fault.replacement))


def caught_by(rows: list[dict]) -> dict | None:
    """The first failed row, and ``by`` what it was caught; None where all passed."""
    row = next((row for row in rows if row["verdict"] == "fail"), None)
    if row is None:
        return None
    by = next((by for mark, by in CATCHERS.items() if mark in row["reason"]), "error")
    return {"caught_by": by, "case": row["case"], "reason": row["reason"]}


def run(fault: Fault | None, owner: tuple, cases: tuple[str, ...], tier: str, kernels: str) -> list[dict]:
    """The rows of a ``Fault.owner`` on some cases, with a fault in its kernel or, for None, without.

    kernels: a directory for what is compiled, apart from the user's own cache.
    """
    with tempfile.TemporaryDirectory(prefix="crosscheck-fault-") as scratch:
        root = Path(scratch) / "tree"
        for package in PACKAGES:
            shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
        if fault:
            apply(fault, root)
        result = Path(scratch) / "rows.json"
        backend, variant = owner
        command = [
            sys.executable,
            "-m",
            "crosscheck",
            "--backend",
            backend,
            *(("--variant", variant) if variant else ()),
            "--case",
            *cases,
            "--device",
            tier,
            "--json",
            str(result),
        ]
        caches = {"ROSETTA_CACHE_DIR": kernels, "TRITON_CACHE_DIR": kernels}
        environment = (
            {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"} | caches | {"PYTHONPATH": str(root)}
        )
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
        if not result.exists():
            raise RuntimeError(f"the check itself failed: {done.stderr.strip()[-500:]}")
        return json.loads(result.read_text())["rows"]


def judge(operator: str, fault: Fault, tier: str, controls: dict[tuple, str | None], kernels: str) -> dict:
    """A fault's row. controls: for each owner why it says nothing here without a fault, or None."""
    row = {"operator": operator, "backend": fault.backend, "fault": fault.name, "file": fault.file}
    row |= {"verdict": "not run", "caught_by": None, "case": None, "reason": None}
    if tier not in fault.tiers:
        return row | {"reason": f"shows only on a {'GPU' if tier == 'cpu' else 'CPU'}"}
    if reason := controls[fault.owner]:
        return row | {"reason": reason}
    caught = caught_by(run(fault, fault.owner, fault.cases, tier, kernels))
    if caught is None:
        return row | {"verdict": "pass", "caught_by": "nothing"}
    return row | {"verdict": "fail" if caught["caught_by"] in fault.by else "pass"} | caught


def control(owner: tuple, faults: list[Fault], tier: str, kernels: str) -> str | None:
    """Why an owner's faults say nothing here: it cannot run, or fails the cases as it stands."""
    cases = tuple(dict.fromkeys(case for f in faults if tier in f.tiers for case in f.cases))
    if reason := backends.find(owner[0]).unavailable(tier):
        return reason
    wrong = [row for row in run(None, owner, cases, tier, kernels) if row["verdict"] != "pass"] if cases else []
    return f"without a fault {wrong[0]['case']} is {wrong[0]['verdict']}: {wrong[0]['reason']}" if wrong else None


def check(operators: list[str], chosen: list[str], tier: str) -> list[dict]:
    """A row for each fault, in the order of their files."""
    at_once = os.cpu_count() if tier == "cpu" else AT_ONCE
    with tempfile.TemporaryDirectory(prefix="crosscheck-kernels-") as kernels, ThreadPoolExecutor(at_once) as pool:
        rows = []
        for operator in operators:
            faults = [f for f in load(operator) if f.backend in chosen]
            owners = list(dict.fromkeys(f.owner for f in faults))
            reasons = pool.map(lambda o: control(o, [f for f in faults if f.owner == o], tier, kernels), owners)
            controls = dict(zip(owners, reasons))
            rows += pool.map(lambda f: judge(operator, f, tier, controls, kernels), faults)
        return rows


def table(rows: list[dict]) -> str:
    """One line a fault."""
    columns = ("operator", "backend", "fault", "verdict", "caught_by", "case", "reason")
    lines = [[textwrap.shorten(row[c] or "", 72) for c in columns] for row in rows]
    return tabulate(lines, headers=[c.replace("_", " ") for c in columns])
