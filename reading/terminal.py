"""Steps of an operator in the terminal: the columns side by side where it is wide enough, else one under the other."""

from typing import Iterator

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from reading import operators
from reading.listing import shown
from reading.operators import Column, Operator, Step
from reading.sources import Excerpt

NARROWEST = 50  # characters of a column: below that they stand one under the other
STYLES = {"c": "italic", "s": "cyan", "n": "yellow", "k": "magenta", "f": "blue", "p": "yellow", "t": "green"}


def show(operator: Operator, words: str | None, console: Console | None = None) -> None:
    """Print the step of that name, or all of them. Raises Bad for a name that no step has."""
    names = [step.name for step in operator.steps]
    if words not in (None, *names):
        raise operators.nearest("--step", words, names)
    console = console or Console(highlight=False)
    for step in operator.steps:
        if words in (None, step.name):
            for part in _step(operator, step, console.width):
                console.print(part)


def _step(operator: Operator, step: Step, width: int) -> Iterator[RenderableType]:
    yield Text(f"{operator.title}: {step.name}", "bold")
    yield Text(step.note.replace("`", ""))
    cells = [_cell(operator, step, column) for column in operator.columns]
    if width >= NARROWEST * len(cells):
        beside = Table(box=None, padding=(0, 2, 0, 0), show_header=False, expand=True)
        for _ in cells:
            beside.add_column(ratio=1)
        beside.add_row(*cells)
        yield Text()
        yield beside
    else:
        for cell in cells:
            yield Text()
            yield cell
    yield Text()


def _cell(operator: Operator, step: Step, column: Column) -> RenderableType:
    rung = column.first
    cell = Table.grid(expand=True)
    title = column.title if len(column.rungs) == 1 else f"{column.title}, {rung.name}"
    cell.add_row(Text(title, "bold underline"))
    pieces = rung.pieces.get(step.name, ())
    for piece in pieces:
        place = piece.excerpt.place
        cell.add_row(Text(place if len(piece.steps) == 1 else f"{place} ({', '.join(piece.steps)})", "dim"))
        cell.add_row(_code(piece.excerpt))
    if not pieces:
        cell.add_row(Text(f"No such step: {operator.why_absent(step, rung)}."))
    return cell


def _code(excerpt: Excerpt) -> Table:
    """Its lines with their numbers; a line that is too long goes on below, set in."""
    lines = Table.grid(padding=(0, 1, 0, 0))
    lines.add_column(justify="right", style="dim")
    lines.add_column(overflow="fold")
    for line in shown(excerpt):
        lines.add_row(str(line.number), Text.assemble(*((text, STYLES.get(kind, "")) for kind, text in line.tokens)))
    return lines
