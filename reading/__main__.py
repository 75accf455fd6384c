"""``python -m reading``: the four columns of an operator as a static site, or a step of it in the terminal."""

import argparse
import sys
from pathlib import Path

from crosscheck.command import Parser, add_names, while_read
from reading import operators
from reading.sources import Bad, Tree

ROOT = Path(__file__).resolve().parent.parent
OUT = Path("build/reading")


def parser() -> Parser:
    p = Parser(
        prog="python -m reading",
        description="One operator in four columns, NumPy, CUDA, Triton and Pallas, step beside step, as a static site; "
        "python -m reading show prints a step in the terminal.",
    )
    p.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"where to (default: {OUT})")
    add_names(p, "--op", "operators (default: all)")
    p.add_argument("--force", action="store_true", help="write into a directory that has other things in it, too")
    return p


def show_parser() -> Parser:
    p = Parser(prog="python -m reading show", description="Print an operator's steps, all columns beside each other.")
    p.add_argument("operator", metavar="OP")
    p.add_argument("--step", metavar="WORDS", help="one step, in the words of its marker (default: all)")
    return p


def chosen(tree: Tree, asked: list[str] | None) -> list[str]:
    """The operators that are asked for, in the order of the table of cases."""
    from crosscheck.cases import OPERATORS

    known = operators.names(tree)
    for name in asked or ():
        if name not in known:
            raise operators.nearest("--op", name, known)
    order = list(OPERATORS)
    return sorted(asked or known, key=lambda name: order.index(name) if name in order else len(order))


def build(options: argparse.Namespace) -> int:
    from reading import site

    tree = Tree(ROOT)
    site.build(tree, options.out, chosen(tree, options.op), options.force)
    print(options.out / "index.html")
    return 0


def show(options: argparse.Namespace) -> int:
    from reading import terminal

    terminal.show(operators.load(Tree(ROOT), options.operator), options.step)
    return 0


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv[:1] == ["show"]:
            options = show_parser().parse_args(argv[1:])
            return while_read(lambda: show(options))
        options = parser().parse_args(argv)
        return while_read(lambda: build(options))
    except (Bad, ValueError) as error:
        print(f"python -m reading: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"python -m reading: {error.filename} cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name not in ("jinja2", "markupsafe"):
            raise
        print(f"python -m reading: {error.name} is not installed; accepted: the packages of [reading]", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
