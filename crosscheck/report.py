"""Rows as a table for people and as a JSON file for programs."""

import json
import re
import tempfile
from pathlib import Path
from typing import Iterable

from tabulate import tabulate

SCHEMA = 1


class Unusable(ValueError):
    """A request that turns out impossible to carry out: a result file, a variant."""


KEY = ("operator", "backend", "variant", "case")  # what makes a row the same row in another run


def key(row: dict, fields: tuple[str, ...] = KEY) -> tuple:
    return tuple(row[name] for name in fields)


def add_agreement(rows: list[dict]) -> None:
    """Tell each failed row which other backends pass its case."""
    ran: dict[str, dict[str, bool]] = {}
    for row in rows:
        if row["error_over_bound"] is not None or row["verdict"] == "fail":
            ran.setdefault(row["case"], {})[row["backend"]] = row["verdict"] == "pass"
    for row in rows:
        others = {name: right for name, right in ran.get(row["case"], {}).items() if name != row["backend"]}
        if row["verdict"] in ("fail", "inaccurate") and others:
            right = [name for name, passes in others.items() if passes]
            row["reason"] += f"; {', '.join(right)} right here" if right else "; nobody else is right here"


def table(rows: list[dict]) -> str:
    """One line for each backend, variant and dtype of each operator, then every kind of reason once."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault((row["operator"], row["dtype"], row["backend"], row["variant"]), []).append(row)
    lines = []
    for (operator, dtype, backend, variant), group in groups.items():
        count = lambda verdict: sum(row["verdict"] == verdict for row in group) or ""
        compared = [row for row in group if row["error_over_bound"] is not None]
        ulps = [row["max_ulp"] for row in compared]
        timed = [row for row in group if row["seconds"] is not None]
        lines.append(
            {
                "operator": operator,
                "dtype": dtype,
                "backend": backend,
                "variant": variant or "",
                "where": group[0]["where"],
                "pass": count("pass"),
                "fail": count("fail"),
                "inaccurate": count("inaccurate"),
                "unsupported": count("unsupported"),
                "not run": count("not run"),
                "error/bound": f"{max(float(row['error_over_bound']) for row in compared):.3g}" if compared else "",
                "max ulp": "NaN" if None in ulps else max(ulps, default=""),
                "bitwise": f"{sum(row['bitwise_equal'] for row in compared)}/{len(compared)}" if compared else "",
                "seconds": f"{sum(row['seconds'] for row in timed):.2f}" if timed else "",
            }
        )
    for column in ("variant", "inaccurate", "unsupported"):
        if not any(line[column] for line in lines):
            for line in lines:
                del line[column]
    text = tabulate(lines, headers="keys", tablefmt="simple", disable_numparse=True, colalign=_alignment(lines))
    alike: dict[tuple, list[dict]] = {}  # reasons that differ in numbers alone
    for row in rows:
        if row["verdict"] != "pass":
            words = re.sub(r"[-+]?\b(?:nan|inf|\d[\d.e+-]*)", "#", row["reason"])
            alike.setdefault((row["verdict"], row["backend"], words), []).append(row)
    for (verdict, backend, _), group in alike.items():
        which = group[0]["case"] if len(group) == 1 else f"{len(group)} cases, {group[0]['case']} the first"
        text += f"\n{verdict}: {backend}: {group[0]['reason']} ({which})"
    return text


def _alignment(lines: list[dict]) -> list[str]:
    left = ("operator", "dtype", "backend", "variant", "where")
    return ["left" if column in left else "right" for column in (lines[0] if lines else ())]


def read(path: Path, fields: tuple[str, ...] = KEY) -> dict | None:
    """A result file of this schema whose rows are told apart by ``fields``, or None where there is none yet.

    Raises Unusable for anything else.
    """
    if not path.exists():
        return None
    if not path.is_file():
        raise Unusable(f"{path} is no regular file; accepted: a file's path")
    document = parse(path, "rows", fields)
    if document is None:
        raise Unusable(f"{path} is no result file of schema {SCHEMA} with such rows")
    return document


def parse(path: Path, part: str, fields: Iterable[str]) -> dict | None:
    """The result file at ``path``, None where it is not of this schema with a list ``part`` of objects with ``fields``.

    Raises Unusable where it is no JSON at all.
    """
    try:
        document = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise Unusable(f"{path} is no result file: {error}") from None
    right = (
        isinstance(document, dict)
        and document.get("schema") == SCHEMA
        and isinstance(document.get("environment"), dict)
        and isinstance(document.get(part), list)
        and all(isinstance(item, dict) and set(fields) <= set(item) for item in document[part])
    )
    return document if right else None


def check_writable(path: Path) -> None:
    """Raise Unusable unless a file can be put at ``path``."""
    if path.exists() and not path.is_file():
        raise Unusable(f"{path} is no regular file; accepted: a file's path")
    path = path.resolve()
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise Unusable(
            f"{path} cannot be written: {error.strerror}; accepted: a path in a writable directory"
        ) from None


def check_mergeable(path: Path, environment: dict, fields: tuple[str, ...] = KEY) -> None:
    """Raise Unusable unless rows of this environment can be written to ``path``, beside those that are there."""
    check_writable(path)
    document = read(path, fields)
    if document is not None:
        check_environment(path, "rows", document["environment"], environment)


def check_environment(path: Path, part: str, there: dict, here: dict) -> None:
    """Raise Unusable unless the environment of what ``path`` holds is the one here, whatever the date."""
    differing = [name for name in here if name != "date" and there.get(name) != here[name]]
    if differing:
        raise Unusable(f"{path} holds {part} of another environment ({', '.join(differing)}); accepted: a new path")


def write(path: Path, environment: dict, rows: list[dict], fields: tuple[str, ...] = KEY) -> None:
    """Write the rows, keeping those of an earlier run that were not made anew."""
    document = read(path, fields)
    kept = {key(row, fields): row for row in document["rows"]} if document else {}
    if fields is KEY:
        for row in rows:  # a crash may have left a row whose variant nobody knew
            kept.pop(key(row | {"variant": None}), None)
    kept |= {key(row, fields): row for row in rows}
    replace(path, {"schema": SCHEMA, "environment": environment, "rows": list(kept.values())})


def replace(path: Path, document: dict) -> None:
    """Write a result file, whole or not at all, each row on a line of its own."""
    parts = []
    for name, value in document.items():
        lines = [json.dumps(item, allow_nan=False) for item in value] if isinstance(value, list) else None
        parts.append(
            f'"{name}": ' + ("[\n" + ",\n".join(lines) + "\n]" if lines else json.dumps(value, allow_nan=False))
        )
    text = "{\n" + ",\n".join(parts) + "\n}\n"
    path = path.resolve()  # the file that a link means
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        new = Path(scratch) / path.name
        new.write_text(text)
        new.replace(path)
