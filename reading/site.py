"""The static site: an index, a page an operator, a style sheet and a script. The same files give the same bytes."""

import re
from html import escape
from pathlib import Path
from typing import Sequence

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from reading import operators, roofline
from reading.listing import shown
from reading.operators import COLUMNS, Operator
from reading.results import Results
from reading.sources import Bad, Excerpt, Tree

HERE = Path(__file__).parent
MANIFEST = "reading.manifest"  # names the files of the directory that are this command's
STATIC = ("style.css", "step.js")


def build(tree: Tree, out: Path, names: Sequence[str], force: bool = False) -> list[Path]:
    """Write the pages of the operators named into ``out``; returns the files. Raises Bad, and then writes nothing.

    force: into a directory that has other things in it, too. What an earlier build left there and this one does not have
    is removed.
    """
    before = _ours(out, force)
    files = pages(tree, names)
    out.mkdir(parents=True, exist_ok=True)
    for name in before - set(files):
        (out / name).unlink(missing_ok=True)
    files[MANIFEST] = "".join(f"{name}\n" for name in sorted(files))
    for name, text in files.items():
        (out / name).write_bytes(text.encode())
    return [out / name for name in files]


def _ours(out: Path, force: bool) -> set[str]:
    """The files of an earlier build in ``out``."""
    if not out.exists():
        return set()
    if not out.is_dir():
        raise Bad(f"--out is {str(out)!r}, which is no directory; accepted: one, or a path where there is nothing")
    manifest = out / MANIFEST
    if manifest.is_file():
        return {name for name in manifest.read_text().split("\n") if name and "/" not in name}
    if any(out.iterdir()) and not force:
        raise Bad(f"--out is {str(out)!r}, which has other things in it; accepted: an empty directory, or --force")
    return set()


def pages(tree: Tree, names: Sequence[str]) -> dict[str, str]:
    """The files of the site by name."""
    loaded = [operators.load(tree, name) for name in names]
    results = Results(tree.root)
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"code": code, "prose": prose}
    environment.globals |= {"operators": loaded, "column_names": COLUMNS}
    found = {name: (HERE / "templates" / name).read_text() for name in STATIC}
    found["index.html"] = environment.get_template("index.html").render(files=sorted(results.documents))
    for operator in loaded:
        found[f"{operator.name}.html"] = environment.get_template("operator.html").render(
            operator=operator, rung_rules=Markup(rung_rules(operator)), **figures(operator, results)
        )
    return found


def figures(operator: Operator, results: Results) -> dict:
    """What the page shows below the code."""
    data = results.roofline(operator.name)
    label = data and (
        f"Roofline of {operator.title} on the {data.gpu}: {len(data.points)} measured calls, up to "
        f"{max(p.tflop_s for p in data.points):.3g} TFLOP/s, at {min(p.intensity for p in data.points):.3g} to "
        f"{max(p.intensity for p in data.points):.3g} FLOPs a byte; memory's peak is {data.memory[0]:.2f} TB/s."
    )
    return {
        "agreement": results.agreement(operator.name),
        "times": results.times(operator.name),
        "compiled": results.compiled(operator.name),
        "line_counts": [
            ((column.title, rung.name) if rung.summary else column.title, str(rung.code_lines), ", ".join(rung.files))
            for column in operator.columns
            for rung in column.rungs
        ],
        "roofline": data,
        "drawing": data and Markup(roofline.draw(data, label)),
        "legend": [(Markup(mark), words) for mark, words in roofline.legend(data)] if data else [],
    }


def rung_rules(operator: Operator) -> str:
    """CSS that shows, of a column with several rungs, the one that its selector has."""
    rules = []
    for column in operator.columns:
        if len(column.rungs) > 1:
            rules.append(f'[data-rung^="{column.name}."]{{display:none}}')
            for rung in column.rungs:
                chosen = f'#rung-{column.name} option[value="{rung.name}"]:checked'
                rules.append(f':root:has({chosen}) [data-rung="{rung.key}"]{{display:block}}')
    return "@supports selector(:has(*)){\n" + "\n".join(rules) + "\n}" if rules else ""


def code(excerpt: Excerpt) -> Markup:
    """An excerpt's lines, each with its number and how far it is set in."""
    lines = []
    for line in shown(excerpt):
        spans = (
            f'<span class="{name}">{escape(text, False)}</span>' if name else escape(text, False)
            for name, text in line.tokens
        )
        lines.append(f'<span class="l" data-n="{line.number}" style="--i:{line.indent}">{"".join(spans)}\n</span>')
    return Markup("".join(lines))


def prose(text: str) -> Markup:
    """Text with `code` in it."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, False)))
