"""Source files cut at their marker comments.

A marker, ``// --- load the row`` or ``# --- load the row``, opens a section of the function it stands in, up to the next
marker there or the function's end. ``// --- bias, --- store`` opens one for two steps. What stands before a function's
first marker is its opening.
"""

import ast
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Iterable, Iterator, NamedTuple

from pygments.lexers.c_cpp import CppLexer
from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Name, Punctuation, String

MARKER = re.compile(r"\s*(?://|#) --- (\S.*?)\s*")
MEANT = re.compile(r"\s*(?://|#)\s*-{2,}(?!-)\s*\S.*")  # near enough to be meant as one
PARTS = ("contract", "mapping", "traffic", "limits")  # of a header


class Bad(ValueError):
    """A source or its notes that cannot be shown; says where."""


class Line(NamedTuple):
    """A line of a file: its number, and its tokens as (pygments type, text)."""

    number: int
    tokens: tuple[tuple[object, str], ...]

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.tokens)

    @property
    def is_code(self) -> bool:
        """Whether something other than comments and closing brackets stands there."""
        silent = lambda kind: kind in String.Doc or kind in Comment and kind not in Comment.Preproc
        return bool("".join(text for kind, text in self.tokens if not silent(kind)).strip().strip("{}();"))


class Excerpt(NamedTuple):
    """Lines of one file that are shown together."""

    path: str
    lines: tuple[Line, ...]

    @property
    def first(self) -> int:
        return self.lines[0].number

    @property
    def last(self) -> int:
        return self.lines[-1].number

    @property
    def place(self) -> str:
        """``cuda/softmax/1_naive.cu:19-25``."""
        return f"{self.path}:{self.first}" + (f"-{self.last}" if self.last > self.first else "")


class Section(NamedTuple):
    """What a marker opens. marker: its line."""

    steps: tuple[str, ...]
    marker: int
    lines: tuple[Line, ...]


@dataclass(frozen=True, eq=False)
class Function:
    """A function, or a method by its bare name; is_kernel: a CUDA ``__global__`` function.

    uses: what it names, in order: (file, function), or (None, name) for a method, in C++ for any function.
    """

    path: str
    name: str
    is_kernel: bool
    is_method: bool
    lines: tuple[Line, ...]
    uses: tuple[tuple[str | None, str], ...]

    @cached_property
    def opening(self) -> tuple[Line, ...]:
        """Up to the first marker; all of it where there is none."""
        return self.lines[: self._markers[0]] if self._markers else self.lines

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        found = []
        for i, stop in zip(self._markers, [*self._markers[1:], len(self.lines)]):
            steps = tuple(MARKER.fullmatch(self.lines[i].text)[1].split(", --- "))
            body = self.lines[i + 1 : stop]
            if not any(line.is_code for line in body):
                end = "the next marker" if stop < len(self.lines) else f"the end of {self.name}"
                raise Bad(f"{self.path}:{self.lines[i].number}: section {steps[0]!r} has no code before {end}")
            found.append(Section(steps, self.lines[i].number, body))
        return tuple(found)

    @cached_property
    def _markers(self) -> list[int]:
        return [i for i, line in enumerate(self.lines) if MARKER.fullmatch(line.text)]

    @property
    def steps(self) -> tuple[str, ...]:
        """Of all sections."""
        return tuple(dict.fromkeys(step for section in self.sections for step in section.steps))


@dataclass(frozen=True)
class Source:
    """A file of the tree. header: its four parts, those there are; rest: its lines after that and outside functions."""

    path: str
    lines: tuple[Line, ...]
    header: dict[str, str]
    functions: tuple[Function, ...]
    near: tuple[str, ...]  # files of the tree that it includes or imports
    tree: ast.Module | None = field(default=None, repr=False)

    def outside(self) -> list[Line]:
        """A CUDA file's lines below its header that belong to no function with markers."""
        inside = {line.number for f in self.functions if f.sections for line in f.lines}
        header = next((i for i, line in enumerate(self.lines) if not line.text.startswith("//")), 0)
        return [line for line in self.lines if line.number > header and line.number not in inside]


def excerpts(path: str, lines: Iterable[Line]) -> Iterator[Excerpt]:
    """Runs of lines that follow each other, without blank ones at their ends."""
    run: list[Line] = []
    for line in [*lines, None]:
        if run and (line is None or line.number != run[-1].number + 1):
            while run and not run[-1].text.strip():
                run.pop()
            while run and not run[0].text.strip():
                run.pop(0)
            if run:
                yield Excerpt(path, tuple(run))
            run = []
        if line is not None:
            run.append(line)


class Tree:
    """The files under ``root``, each read once."""

    def __init__(self, root: Path):
        self.root = root
        self._sources: dict[str, Source] = {}

    def has(self, path: str) -> bool:
        return (self.root / path).is_file()

    def source(self, path: str) -> Source:
        """Raises Bad where it cannot be read, or is no such code."""
        if path not in self._sources:
            self._sources[path] = self._read(path)
        return self._sources[path]

    @staticmethod
    def lines(path: str, text: str) -> tuple[Line, ...]:
        """The lines of a text, by the language of its path."""
        return tuple(_lines((PythonLexer if path.endswith(".py") else CppLexer)(stripnl=False).get_tokens(text)))

    def _read(self, path: str) -> Source:
        try:
            text = (self.root / path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise Bad(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        lines = self.lines(path, text)
        is_python = path.endswith(".py")
        for line in lines:
            if MEANT.fullmatch(line.text) and not MARKER.fullmatch(line.text):
                sign = "#" if is_python else "//"
                raise Bad(f"{path}:{line.number}: {line.text.strip()!r} is no marker; accepted: {sign} --- words")
        if is_python:
            try:
                tree = ast.parse(text)
            except SyntaxError as error:
                raise Bad(f"{path}:{error.lineno}: {error.msg}") from None
            functions = tuple(_python_functions(path, tree, lines, self._imported(path, tree)))
            header = _header((ast.get_docstring(tree) or "").splitlines())
            return Source(
                path, lines, header, functions, tuple(file for file, _ in self._imported(path, tree).values()), tree
            )
        header = _header(line.text[2:].removeprefix(" ") for line in lines if line.text.startswith("//"))
        return Source(path, lines, header, tuple(_cpp_functions(path, lines)), tuple(self._included(path, text)))

    def _imported(self, path: str, tree: ast.Module) -> dict[str, tuple[str, str | None]]:
        """What it imports from its own package, by the name it goes by there: the file, and the name in it if it is no
        module."""
        package, found = path.split("/")[0], {}
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == package:
                for alias in node.names:
                    here = alias.asname or alias.name
                    for module, name in ((f"{node.module}.{alias.name}", None), (node.module, alias.name)):
                        file = module.replace(".", "/") + ".py"
                        if here not in found and self.has(file):
                            found[here] = file, name
        return found

    def _included(self, path: str, text: str) -> Iterator[str]:
        for name in re.findall(r'^#include "([^"]+)"', text, re.M):
            if self.has(f"cuda/include/{name}"):
                yield f"cuda/include/{name}"

    def around(self, path: str) -> list[Source]:
        """The file, and those that it includes or imports, and so on."""
        found = {path: self.source(path)}
        for source in (waiting := [found[path]]):
            for near in source.near:
                if near not in found:
                    found[near] = self.source(near)
                    waiting.append(found[near])
        return list(found.values())

    def variants(self, path: str, operator: str) -> dict[str, str]:
        """Name and summary of an operator's variants, as the module at ``path`` lists them, without importing it."""
        found = self._items(path, ast.Subscript(ast.Name("VARIANTS"), ast.Constant(operator)))
        pairs = {}
        for call in found:
            if not (isinstance(call, ast.Call) and all(isinstance(arg, ast.Constant) for arg in call.args[:2])):
                raise Bad(f"{path}: VARIANTS of {operator} cannot be read: {ast.unparse(call)}")
            pairs[call.args[0].value] = call.args[1].value
        return pairs

    def _items(self, path: str, node: ast.expr) -> list[ast.expr]:
        """The elements of a tuple that is written out, or put together from named ones."""
        tree = self.source(path).tree
        match node:
            case ast.Subscript(ast.Name(name), ast.Constant(key)):
                table = _assigned(tree, name)
                if isinstance(table, ast.Dict):
                    for there, value in zip(table.keys, table.values):
                        if isinstance(there, ast.Constant) and there.value == key:
                            return self._items(path, value)
                raise Bad(f"{path} has no {name} of {key}")
            case ast.Tuple(elements):
                return [item for element in elements for item in self._items(path, element)]
            case ast.Starred(value):
                return self._items(path, value)
            case ast.Name(name) if (value := _assigned(tree, name)) is not None:
                return self._items(path, value)
            case ast.Attribute(ast.Name(module), name) if module in (near := self._imported(path, tree)):
                return self._items(near[module][0], ast.Name(name))
        return [node]


def _assigned(tree: ast.Module, name: str) -> ast.expr | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return node.value
    return None


def _lines(tokens) -> Iterator[Line]:
    line: list[tuple[object, str]] = []
    number = 1
    for kind, text in tokens:
        while "\n" in text:
            head, _, text = text.partition("\n")
            if head:
                line.append((kind, head))
            yield Line(number, tuple(line))
            line, number = [], number + 1
        if text:
            line.append((kind, text))
    if line:
        yield Line(number, tuple(line))


def chapter(source: Source, heading: str) -> str:
    """Of a Python file's docstring what is set in under a line of these words."""
    lines = iter((ast.get_docstring(source.tree) or "").splitlines())
    if heading not in lines:
        raise Bad(f"{source.path} has no {heading!r} in its docstring")
    found = []
    for line in lines:
        if line and not line.startswith("    "):
            break
        found.append(line.strip() or "\n")
    return " ".join(found).strip()


def _header(lines: Iterable[str]) -> dict[str, str]:
    """The four parts: a line that begins with one's name, and those below that are set in as far as its words are."""
    found: dict[str, list[str]] = {}
    here = None
    for line in lines:
        word = line.split(" ")[0]
        if word in PARTS and line.startswith(f"{word}  "):
            here = found.setdefault(word, [])
            here.append(line[len(word) :].strip())
        elif here is not None and line.startswith("    "):
            here.append(line.strip())
        else:
            here = None
    return {name: " ".join(found[name]) for name in PARTS if name in found}


def _python_functions(path, tree: ast.Module, lines, imported) -> Iterator[Function]:
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for owner in (tree, *classes):
        for node in owner.body:
            if isinstance(node, ast.FunctionDef):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                uses = tuple(dict.fromkeys(_uses(path, node, own, imported)))
                yield Function(path, node.name, False, owner is not tree, lines[first - 1 : node.end_lineno], uses)


def _uses(path: str, function: ast.FunctionDef, own: set[str], imported: dict) -> Iterator[tuple[str | None, str]]:
    nodes = sorted(
        (node for node in ast.walk(function) if isinstance(node, (ast.Name, ast.Attribute))),
        key=lambda node: (node.end_lineno, node.end_col_offset),
    )
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    bound |= {node.name for node in ast.walk(function) if isinstance(node, ast.FunctionDef) and node is not function}
    for node in nodes:
        match node:
            case ast.Name(name) if name in own - bound:
                yield path, name
            case ast.Name(name) if name in imported and imported[name][1]:
                yield imported[name]
            case ast.Attribute(ast.Name(module), name) if module in imported and not imported[module][1]:
                yield imported[module][0], name
            case ast.Attribute(_, name):
                yield None, name


def _cpp_functions(path: str, lines: tuple[Line, ...]) -> Iterator[Function]:
    """Definitions outside all others, or in a struct or namespace: from the comment above to the closing brace."""
    opened: list[tuple[str, int]] = []  # what each open brace is of, and its line
    head: list[str] = []  # the tokens of the declaration under way
    begin, ended = None, 0  # its first line; the line on which the one before it ended
    for line in lines:
        for kind, text in line.tokens:
            outer = all(what == "struct" for what, _ in opened)
            if not outer:
                pass
            elif kind in Comment.Preproc or kind in Comment.PreprocFile:
                begin, head, ended = None, [], line.number
            elif text.strip() and not (kind in Comment and line.number == ended):
                begin = begin or line.number
                if kind not in Comment:
                    head.append(text)
            for char in text if kind in Punctuation else "":
                if char == "{":
                    what = _opens(head) if outer else "block"
                    opened.append((what, line.number))
                    if what == "struct":
                        begin, head, ended = None, [], line.number
                elif char == "}":
                    if not opened:
                        raise Bad(f"{path}:{line.number}: a closing brace too many")
                    what, _ = opened.pop()
                    if what == "function":
                        name = _name(head)
                        body = lines[begin - 1 : line.number]
                        names = (text for line in body for kind, text in line.tokens if kind in Name)
                        uses = tuple(dict.fromkeys((None, text) for text in names))
                        yield Function(path, name, "__global__" in head, bool(opened), body, uses)
                    if all(w == "struct" for w, _ in opened) and what != "block":
                        begin, head, ended = None, [], line.number
                elif char == ";" and outer:
                    begin, head, ended = None, [], line.number
    if opened:
        raise Bad(f"{path}:{opened[0][1]}: the brace that opens here is never closed")


def _opens(head: list[str]) -> str:
    if {"struct", "namespace"} & set(head):
        return "struct"
    return "function" if "(" in head and "=" not in head[: head.index("(")] else "block"


def _name(head: list[str]) -> str:
    """The identifier before the parameters: the first before a parenthesis, attributes such as __launch_bounds__ aside."""
    return next(a for a, b in zip(head, head[1:]) if b == "(" and not a.startswith("__") and a.isidentifier())
