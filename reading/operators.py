"""An operator's page: its four columns, their rungs, and what stands of each step in each, as reading/notes says.

``reading/notes/<operator>.toml`` names the steps in order, each with a sentence on how the columns differ there; where a
column, or one rung of it, has no such step it says why. Anything else that does not match is an error here.
"""

import difflib
import tomllib
from dataclasses import dataclass, field, replace
from typing import Iterable, Iterator, Mapping, NamedTuple

from reading.sources import Bad, Excerpt, Function, Line, Source, Tree, chapter, excerpts

COLUMNS = {"numpy": "NumPy", "cuda": "CUDA", "triton": "Triton", "pallas": "Pallas"}
NOTES = "reading/notes"


class Piece(NamedTuple):
    """Lines that belong to a step. steps: all that they belong to; the excerpt is shown at the first of them."""

    steps: tuple[str, ...]
    excerpt: Excerpt


class Step(NamedTuple):
    """absent: why a column, or one rung of it (``"pallas.plain"``), does not have it."""

    name: str
    note: str
    absent: Mapping[str, str]

    @property
    def anchor(self) -> str:
        return "step-" + "".join(c if c.isalnum() else "-" for c in self.name)


@dataclass(frozen=True)
class Rung:
    """One implementation. setup: what stands before, between and around the steps; pieces: those of each step."""

    column: str
    name: str
    summary: str
    files: tuple[str, ...]
    header: Mapping[str, str]
    setup: tuple[Excerpt, ...]
    pieces: Mapping[str, tuple[Piece, ...]]

    @property
    def key(self) -> str:
        return f"{self.column}.{self.name}"

    @property
    def code_lines(self) -> int:
        """Lines of code that are shown, no comments and no docstrings."""
        shown = [*self.setup, *(piece.excerpt for pieces in self.pieces.values() for piece in pieces)]
        return len({(e.path, line.number) for e in shown for line in e.lines if line.is_code})


@dataclass(frozen=True)
class Column:
    name: str
    rungs: tuple[Rung, ...]
    shown: str

    @property
    def title(self) -> str:
        return COLUMNS[self.name]

    @property
    def first(self) -> Rung:
        """The rung that is shown unless another one is chosen."""
        return next(rung for rung in self.rungs if rung.name == self.shown)


@dataclass(frozen=True)
class Operator:
    """missing: columns that are not there, and why. markers: the file and line of each one that is shown."""

    name: str
    title: str
    formula: str
    summary: str
    columns: tuple[Column, ...]
    missing: Mapping[str, str]
    steps: tuple[Step, ...]
    markers: frozenset[tuple[str, int]] = field(default=frozenset(), repr=False)

    def why_absent(self, step: Step, rung: Rung) -> str | None:
        return step.absent.get(rung.key) or step.absent.get(rung.column)


def names(tree: Tree) -> list[str]:
    """The operators that have notes."""
    return sorted(path.stem for path in (tree.root / NOTES).glob("*.toml"))


def nearest(what: str, name: str, accepted: Iterable[str]) -> Bad:
    """The error for a name that there is not."""
    accepted = list(accepted)
    alike = lambda other: (
        len(set(name.split()) & set(other.split())) + difflib.SequenceMatcher(None, name, other).ratio()
    )
    near = [other for other in sorted(accepted, key=alike, reverse=True) if alike(other) > 0.5][:3]
    return Bad(
        f"{what} is {name!r}; " + (f"near it: {', '.join(near)}" if near else f"accepted: {', '.join(accepted)}")
    )


def load(tree: Tree, name: str) -> Operator:
    """Raises Bad where notes and sources do not match."""
    path = f"{NOTES}/{name}.toml"
    if not tree.has(path):
        raise nearest("operator", name, names(tree))
    try:
        notes = tomllib.loads((tree.root / path).read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Bad(f"{path}: {error}") from None
    return _Loader(tree, name, path, notes).operator()


class _Loader:
    def __init__(self, tree: Tree, name: str, path: str, notes: dict):
        self.tree, self.name, self.path, self.notes = tree, name, path, notes
        self.module = notes.get("module", name)
        self.markers: set[tuple[str, int]] = set()
        self._check("", notes, {"title": str, "formula": str, "summary": str, "step": list},
                    {"module": str, "absent": dict, **dict.fromkeys(COLUMNS, dict)})  # fmt: skip
        for column in COLUMNS:
            self._check(f"[{column}] ", self.settings(column), {},
                        {"function": str, "contract": str} if column == "numpy" else {"shown": str, "kernels": dict, "also": dict})  # fmt: skip
        for step in notes["step"]:
            self._check("[[step]] ", step, {"name": str, "note": str}, {"absent": dict})
        self.steps = tuple(Step(step["name"], step["note"], step.get("absent", {})) for step in notes["step"])
        self.step_names = [step.name for step in self.steps]
        missing = notes.get("absent", {})
        self._check("[absent] ", missing, {}, dict.fromkeys(COLUMNS, str))
        for table in (missing, *(step.absent for step in self.steps)):
            for key, reason in table.items():
                if not (isinstance(reason, str) and reason.strip()):
                    raise Bad(f"{path}: absent has {key} without a reason; accepted: words")
        if twice := {name for name in self.step_names if self.step_names.count(name) > 1}:
            raise Bad(f"{path}: step {min(twice)!r} is there twice")

    def _check(self, where: str, table: Mapping, needed: Mapping[str, type], others: Mapping[str, type]) -> None:
        known = {**needed, **others}
        for key, value in table.items():
            if key not in known:
                raise Bad(f"{self.path}: {where}has {key!r}; accepted: {', '.join(known)}")
            if not isinstance(value, known[key]):
                raise Bad(f"{self.path}: {where}{key} is {value!r}; accepted: a {known[key].__name__}")
        for key in needed:
            if key not in table:
                raise Bad(f"{self.path}: {where}has no {key}")

    def settings(self, column: str) -> dict:
        return self.notes.get(column, {})

    def operator(self) -> Operator:
        missing = self.notes.get("absent", {})
        columns = []
        for column in COLUMNS:
            there = self._there(column)
            if column not in missing:
                if not there:
                    raise Bad(f"{self.path}: there is no {self._main(column)}; say why under [absent], {column} = ...")
                columns.append(self._column(column))
            elif there:
                raise Bad(f"{self.path} has {column} under [absent], and {self._main(column)} is there: take it away")
        self._check_absent(columns)
        notes = self.notes
        return Operator(self.name, notes["title"], notes["formula"], notes["summary"], tuple(columns), missing,
                        self.steps, frozenset(self.markers))  # fmt: skip

    def _main(self, column: str) -> str:
        folders = {"numpy": "reference", "cuda": "cupy_impl"}
        return f"{folders.get(column, f'{column}_impl')}/{self.module}.py"

    def _there(self, column: str) -> bool:
        return self.tree.has(self._main(column))

    def _column(self, column: str) -> Column:
        if column == "numpy":
            name = self.settings(column).get("function", "expect")
            rung = self._rung(column, name, "", [(self._main(column), [name])])
            contract = chapter(self.tree.source(self._main(column)), self.settings(column).get("contract", "Contract"))
            return Column(column, (replace(rung, header={"contract": contract}),), name)
        variants = self.tree.variants(self._main(column), self.name)
        own = self.settings(column)
        for table in ("kernels", "also"):
            for name in own.get(table, {}):
                if name not in variants:
                    raise nearest(f"{self.path}: {column}.{table}", name, variants)
        shown = own.get("shown", list(variants)[-1])
        if shown not in variants:
            raise nearest(f"{self.path}: {column}.shown", shown, variants)
        rungs = []
        for name, summary in variants.items():
            if column == "cuda":
                folder = f"cuda/{self.module}/{name}.cu"
                files = [folder if self.tree.has(folder) else f"cuda/{name}.cu", *own.get("also", {}).get(name, ())]
                parts = [(file, [f.name for f in self.tree.source(file).functions if f.is_kernel]) for file in files]
            else:
                kernels = own.get("kernels", {}).get(name, [f"_{name}"])
                parts = [(file, [kernel]) for kernel in kernels for file in [self._file(column, kernel, name)]]
            rungs.append(self._rung(column, name, summary, parts))
        return Column(column, tuple(rungs), shown)

    def _file(self, column: str, kernel: str, variant: str) -> str:
        """The module that has the kernel: the one of the operator's name, or another one that its main one imports."""
        around = {source.path: source for source in self.tree.around(self._main(column))}
        for path in dict.fromkeys([f"{column}_impl/{self.name}.py", *around]):
            if path in around and any(f.name == kernel for f in around[path].functions):
                return path
        raise Bad(
            f"{self._main(column)} has no function {kernel} for its variant {variant}: "
            f"name its kernels in {self.path}, [{column}] kernels"
        )

    def _rung(self, column: str, name: str, summary: str, parts: list[tuple[str, list[str]]]) -> Rung:
        files = list(dict.fromkeys(file for file, _ in parts))
        kernels = [f for file, wanted in parts for f in self.tree.source(file).functions if f.name in wanted]
        if not kernels:
            raise Bad(f"{files[0]} has no function {' or '.join(parts[0][1]) or 'that is a kernel'}")
        setup: dict[str, list[Line]] = {}
        pieces: dict[str, list[Piece]] = {}
        for function in self._reached(files, kernels):
            inner = function.path in files
            if not function.sections:
                if inner and not function.path.endswith(".cu"):
                    setup.setdefault(function.path, []).extend(function.lines)
                continue
            if not inner and not set(function.steps) & set(self.step_names):
                continue  # a helper of several operators, marked in another one's words
            # A helper of a single section is shown whole; of others the opening stands before the steps.
            whole = function not in kernels and len(function.sections) == 1
            if not whole:
                setup.setdefault(function.path, []).extend(function.opening)
            for section in function.sections:
                for step in section.steps:
                    if step not in self.step_names:
                        where = f"{function.path}:{section.marker}: step"
                        raise nearest(where, step, self.step_names)
                self.markers.add((function.path, section.marker))
                for excerpt in excerpts(function.path, function.lines if whole else section.lines):
                    ordered = tuple(sorted(section.steps, key=self.step_names.index))
                    for step in ordered:
                        pieces.setdefault(step, []).append(Piece(ordered, excerpt))
        for file in files:
            if file.endswith(".cu"):
                setup.setdefault(file, []).extend(self.tree.source(file).outside())
        found = []
        for file, lines in setup.items():
            found += excerpts(file, sorted(lines, key=lambda line: line.number))
        used = [piece.excerpt.path for step in self.step_names for piece in pieces.get(step, ())]
        header = self.tree.source(files[0]).header
        rung = Rung(column, name, summary, tuple(dict.fromkeys([*files, *setup, *used])), header, tuple(found),
                    {step: tuple(there) for step, there in pieces.items()})  # fmt: skip
        self._check_steps(rung)
        return rung

    def _check_steps(self, rung: Rung) -> None:
        """A step is there, or there is a reason why not."""
        for step in self.steps:
            reason = step.absent.get(rung.key) or step.absent.get(rung.column)
            where = f"{rung.files[0]}: {rung.name}"
            if step.name not in rung.pieces and not reason:
                raise Bad(f"{where} has no section {step.name!r}; mark it, or say why under its absent in {self.path}")
            if step.name in rung.pieces and reason:
                raise Bad(f"{self.path}: step {step.name!r} is absent in {rung.key}, and {rung.files[0]} has it")

    def _reached(self, files: list[str], kernels: list[Function]) -> Iterator[Function]:
        """The kernels and what they use, each before what it uses itself."""
        around: dict[str, Source] = {s.path: s for file in files for s in self.tree.around(file)}
        everything = [f for source in around.values() for f in source.functions]
        seen: set[Function] = set()

        def visit(function: Function) -> Iterator[Function]:
            if function in seen:
                return
            seen.add(function)
            yield function
            for file, name in function.uses:
                for other in everything:
                    loose = file is None and (other.is_method or not other.path.endswith(".py"))
                    if other.name == name and (loose or other.path == file and not other.is_method):
                        if not other.is_kernel:
                            yield from visit(other)

        for kernel in kernels:
            yield from visit(kernel)

    def _check_absent(self, columns: list[Column]) -> None:
        """Reasons are of columns and rungs that there are."""
        accepted = [key for column in columns for key in (column.name, *(rung.key for rung in column.rungs))]
        for step in self.steps:
            for key in step.absent:
                if key not in accepted:
                    raise nearest(f"{self.path}: absent of {step.name!r}", key, accepted)
