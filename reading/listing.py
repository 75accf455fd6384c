"""An excerpt as it is shown: without what all its lines are set in by, and each token with its class."""

from typing import Iterator, NamedTuple

from pygments.token import STANDARD_TYPES

from reading.sources import Excerpt, Line

# Classes by the first letters of pygments' short names: preprocessor and decorators, comments, strings, numbers, types,
# keywords, functions.
CLASSES = (("cp", "p"), ("c", "c"), ("s", "s"), ("m", "n"), ("kt", "t"), ("k", "k"), ("ow", "k"), ("nf", "f"),
           ("fm", "f"), ("nd", "p"), ("nc", "t"))  # fmt: skip


class Shown(NamedTuple):
    """A line: its number, how far it is set in, and its tokens as (class or None, text)."""

    number: int
    indent: int
    tokens: tuple[tuple[str | None, str], ...]


def shown(excerpt: Excerpt) -> list[Shown]:
    indents = [_indent(line.text) for line in excerpt.lines if line.text.strip() and not _at_margin(line)]
    common = min(indents, default=0)
    lines: list[Shown] = []
    aligned, less, before = -1, 0, 0
    for line in excerpt.lines:
        there, cut = _indent(line.text), 0
        if line.text.strip() and not _at_margin(line):
            if there != aligned:
                # Lines that are aligned with a parenthesis far to the right would have no room in a column.
                far = lines and there - common > before + 12
                aligned, less = (there, there - common - before - 8) if far else (-1, 0)
            cut = common + less
            before = there - cut
        lines.append(Shown(line.number, max(there - cut, 0), tuple(_tokens(line, cut))))
    return lines


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def _at_margin(line: Line) -> bool:
    """Whether it stands at the margin wherever its code is."""
    return line.text.startswith("#pragma")


def _tokens(line: Line, cut: int) -> Iterator[tuple[str | None, str]]:
    started = False
    for kind, text in line.tokens:
        dropped = min(cut, len(text))
        text, cut = text[dropped:], cut - dropped
        if text.isspace() and started:
            text = text[:2]  # comments below each other
        if text:
            started = True
            yield _class(kind) if text.strip() else None, text


def _class(kind) -> str | None:
    while kind not in STANDARD_TYPES:
        kind = kind.parent
    return next((name for start, name in CLASSES if STANDARD_TYPES[kind].startswith(start)), None)
