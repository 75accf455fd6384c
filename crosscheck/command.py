"""What the project's commands share."""

import argparse
import os
import sys
from typing import Callable, Iterable, Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from reference.contract import among


class Parser(argparse.ArgumentParser):
    """argparse, with all that is wrong with a command line raised as a ValueError."""

    def error(self, message):
        raise ValueError(message)


def while_read(job: Callable[[], int]) -> int:
    """The job's status, or 141 if whoever reads what it prints has had enough."""
    try:
        status = job()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def add_names(p: Parser, option: str, text: str) -> None:
    p.add_argument(option, nargs="+", metavar="NAME", help=text)


def each(option: str, names: Iterable[str] | None, accepted: Iterable[str]) -> None:
    for name in names or ():
        among(option, name, accepted)


def track[Item](items: Sequence[Item], describe: Callable[[Item], str]) -> Iterator[Item]:
    """The items, with the progress through them on stderr."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(items))
        for item in items:
            progress.update(bar, description=describe(item))
            yield item
            progress.advance(bar)
