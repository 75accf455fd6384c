"""Checks the check: wrong implementations must fail in the frozen table, right ones must pass with room to spare.

``python -m crosscheck --self-test`` runs it.
"""

import functools
import multiprocessing
import os
from typing import Callable, Mapping, NamedTuple, Sequence

import numpy as np
from tabulate import tabulate

from crosscheck.case import Case, Operator
from crosscheck.cases import CASES, OPERATORS
from crosscheck.compare import judge
from crosscheck.right import RIGHT
from crosscheck.wrong import UNSEEN, WRONG

MARGIN = 0.6  # right implementations stay below this share of the bound
DRAWN = 300  # random cases for each right implementation and dtype
LIMIT = 10**8  # multiply-adds, or as much time; larger cases of the table are left to machines with a GPU


class Wrong(NamedTuple):
    """A fault, by what case of the table it was caught (None: by none), and why it may go uncaught."""

    operator: str
    dtype: str
    name: str
    case: str | None
    reason: str | None

    @property
    def ok(self) -> bool:
        return (self.case is None) == (self.reason is not None)

    @property
    def miss(self) -> str:
        return "passes" if self.case is None else f"is said to be not observable, {self.case} shows it"


class Right(NamedTuple):
    """A right implementation, on how many cases it ran and the worst error over its bound."""

    operator: str
    dtype: str
    name: str
    cases: int
    worst: float
    case: str

    @property
    def ok(self) -> bool:
        return self.worst < MARGIN


def error_over_bound(implementation: Callable, case: Case, inputs, expected) -> float:
    """The worst of all outputs; infinite where number, shape or dtype of the outputs are wrong."""
    with np.errstate(all="ignore"):
        outputs = implementation(**{**case.arguments, **inputs})
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    if len(outputs) != len(expected):
        return float("inf")
    try:
        errors = [judge(out, e).error_over_bound for out, e in zip(outputs, expected.values())]
    except ValueError:
        return float("inf")
    return float(np.nan_to_num(errors, nan=np.inf, posinf=np.inf).max())  # a NaN would get lost among numbers


def frozen(operator: str, dtype: str) -> list[Case]:
    """The table's correctness cases of at most LIMIT, a CPU's share first, then by size."""

    def work(case: Case) -> int:
        size = int(np.prod(list(case.shape.values()), dtype=np.int64))
        return size * (1 if operator == "matmul" else case.shape.get("sequence", 128))

    cases = [c for c in CASES.values() if c.operator == operator and c.dtype == dtype and c.sets & {"cpu", "gpu"}]
    return sorted((c for c in cases if work(c) <= LIMIT), key=lambda c: ("cpu" not in c.sets, work(c)))


def find_wrong(
    operator: Operator, dtype: str, wrong: Mapping[str, Callable], unseen: Mapping[tuple[str, str], str]
) -> list[Wrong]:
    """Hold every wrong implementation to the table, case by case, until all are caught."""
    caught: dict[str, str] = {}
    for case in frozen(operator.name, dtype):
        left = [name for name in wrong if name not in caught]
        if not left:
            break
        inputs = operator.draw(case)
        expected = operator.expect(case, inputs, None)
        if not any(e.value.size for e in expected.values()):
            continue  # nothing to be wrong about
        caught |= {name: case.id for name in left if error_over_bound(wrong[name], case, inputs, expected) > 1}
    return [Wrong(operator.name, dtype, name, caught.get(name), unseen.get((name, dtype))) for name in wrong]


def measure_right(operator: Operator, dtype: str, right: Mapping[str, Callable], drawn: int) -> list[Right]:
    """Hold every right implementation to the CPU's share of the table and to random cases."""
    rng = np.random.default_rng(0)
    cases = [c for c in frozen(operator.name, dtype) if "cpu" in c.sets]
    cases += [operator.random(rng, dtype) for _ in range(drawn)]
    worst = dict.fromkeys(right, (-1.0, ""))
    for case in cases:
        inputs = operator.draw(case)
        expected = operator.expect(case, inputs, None)
        for name, implementation in right.items():
            worst[name] = max(worst[name], (error_over_bound(implementation, case, inputs, expected), case.id))
    return [Right(operator.name, dtype, name, len(cases), *worst[name]) for name in right]


def _share(task: tuple[str, str], drawn: int) -> tuple[list[Wrong], list[Right]]:
    name, dtype = task
    operator = OPERATORS[name]
    wrong = find_wrong(operator, dtype, WRONG[name], UNSEEN.get(name, {}))
    return wrong, measure_right(operator, dtype, RIGHT[name], drawn)


def report(wrong: Sequence[Wrong], right: Sequence[Right]) -> str:
    """Both tables, what was missed, and a summary as the last line."""
    groups = list(dict.fromkeys((r.operator, r.dtype) for r in right))
    scores, margins = [], []
    for group in groups:
        faults = [w for w in wrong if (w.operator, w.dtype) == group]
        due = [w for w in faults if w.reason is None]
        caught = sum(w.case is not None for w in due)
        share = f"{100 * caught / max(1, len(due)):.0f} %"
        scores.append((*group, len(faults), f"{caught} of {len(due)}", share, len(faults) - len(due)))
        good = [r for r in right if (r.operator, r.dtype) == group]
        worst = max(good, key=lambda r: r.worst)
        margins.append((*group, len(good), worst.cases, f"{worst.worst:.3f}", worst.name, worst.case))
    unseen = sorted((w.operator, w.dtype, w.name, w.reason) for w in wrong if w.reason)
    lines = [
        tabulate(scores, ["operator", "dtype", "wrong", "caught", "score", "not observable"], disable_numparse=True),
        tabulate(unseen, ["operator", "dtype", "not observable", "why"]),
        tabulate(margins, ["operator", "dtype", "right", "cases each", "worst", "of", "in"], disable_numparse=True),
    ]
    misses = [f"{w.operator} {w.dtype}: {w.name} {w.miss}" for w in wrong if not w.ok]
    misses += [
        f"{r.operator} {r.dtype}: {r.name} reaches {r.worst:.3f} of the bound in {r.case}" for r in right if not r.ok
    ]
    caught, due = sum(w.case is not None for w in wrong), sum(w.reason is None for w in wrong)
    summary = (
        f"self-test {'failed' if misses else 'passed'}: {caught} of {due} wrong implementations caught, "
        f"worst right one at {max(r.worst for r in right):.3f} of its bound (limit {MARGIN}), {len(misses)} misses"
    )
    return "\n\n".join([*lines, *(["\n".join(misses)] if misses else []), summary])


def run(chosen: Sequence[str]) -> int:
    """Print both tables for the operators of these names; 0, or 1 for any miss."""
    # The longest first.
    tasks = [(name, dtype) for name in reversed(OPERATORS) if name in chosen for dtype in OPERATORS[name].dtypes]
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers': one each is faster than all at once for these sizes
    with multiprocessing.get_context("spawn").Pool(min(len(tasks), os.cpu_count() or 1)) as pool:
        shares = pool.map(functools.partial(_share, drawn=DRAWN), tasks, chunksize=1)
    wrong, right = ([row for share in reversed(shares) for row in share[part]] for part in (0, 1))
    print(report(wrong, right))
    return 0 if all(row.ok for row in (*wrong, *right)) else 1
