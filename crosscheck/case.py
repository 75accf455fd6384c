"""What a case is, and what the check knows of an operator."""

import math
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import Callable, Iterable, Iterator, Mapping

import numpy as np

from reference.contract import Expected, scalar


@dataclass(frozen=True, eq=False)
class Case:
    """One call to check.

    id: unique, ``vector_add-bfloat16-1025``. shape: axis names to lengths. arguments: the call's keyword
    arguments; for an array (bias, residual, a weight of another dtype) they say that or how it is drawn, see
    ``Operator.call``. distribution, seed: how the inputs are drawn. sets: among ``cpu`` and ``gpu`` (checked
    for correctness on such machines) and ``performance`` (timed).
    """

    id: str
    operator: str
    shape: Mapping[str, int]
    dtype: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    distribution: str = "normal"
    seed: int = 0
    sets: frozenset[str] = frozenset({"cpu", "gpu"})


@dataclass(frozen=True)
class Operator:
    """What the check needs to know of an operator beside its reference.

    module: its basename in every tree. dtypes: those of its contract. inputs: names in the order of the call, optional
    ones not among them. arrays: all arrays of a case's call, name to shape and dtype. outputs: a case's results in their order, name to shape and dtype. draw: a case's inputs by
    name. sample: which elements of a big case's outputs are held to the reference, as flat indices by output, or None
    for all. expect: the reference's word on a case and its inputs, at such indices alone where they are given. random:
    a small case drawn at random, beside the table.
    """

    name: str
    module: str
    dtypes: tuple[str, ...]
    inputs: tuple[str, ...]
    arrays: Callable[[Case], dict[str, tuple[tuple[int, ...], str]]]
    outputs: Callable[[Case], dict[str, tuple[tuple[int, ...], str]]]
    draw: Callable[[Case], dict[str, np.ndarray]]
    sample: Callable[[Case], dict[str, np.ndarray] | None]
    expect: Callable[[Case, Mapping[str, np.ndarray], Mapping[str, np.ndarray] | None], dict[str, Expected]]
    random: Callable[[np.random.Generator, str], Case]

    def call(self, case: Case, arrays: Mapping[str, object]) -> tuple[list, dict[str, object]]:
        """A case's arguments by position and by keyword, with its arrays (of any framework) in their places."""
        keywords = {name: arrays.get(name, value) for name, value in case.arguments.items() if name not in self.inputs}
        return [arrays[name] for name in self.inputs], keywords

    def bytes(self, case: Case) -> int:
        """Of all arrays of a case's call and all its outputs: what it moves at least."""
        arrays = [*self.arrays(case).values(), *self.outputs(case).values()]
        return sum(math.prod(shape) * scalar(dtype).itemsize for shape, dtype in arrays)


SAMPLED, ELEMENTS = 256, 1 << 21  # rows of a big case that are held to the reference, fewer where they have more in all


def whole(outputs: int) -> bool:
    """Whether all of a case's outputs, so many, are held to the reference."""
    return outputs < 1 << 22


def some(n: int, seed: int, width: int = 1, tile: int = 128) -> np.ndarray:
    """SAMPLED of n indices or fewer, of rows so wide, sorted: the ends, both sides of the first and the last tile edge,
    drawn ones."""
    edges = np.r_[0, 1, tile - 1 : tile + 2, n - n % tile - 1 : n - n % tile + 2, n - 2, n - 1]
    count = min(SAMPLED, max(ELEMENTS // width, 32))
    drawn = np.random.default_rng(seed).integers(0, n, count - len(edges))
    index = np.unique(np.r_[edges, drawn])
    return index[(index >= 0) & (index < n)]


def flat(rows: np.ndarray, cols: int) -> np.ndarray:
    """Flat indices of whole rows of a (..., cols) array."""
    return (rows[:, None] * cols + np.arange(cols)).ravel()


def at_flat(index: np.ndarray, cols: int, expect: Callable[[np.ndarray], Expected]) -> Expected:
    """What is expected at flat indices of a (..., cols) array, from a function of the rows they are in."""
    row, col = np.divmod(index, cols)
    rows = np.flatnonzero(np.bincount(row))
    place = np.searchsorted(rows, row)
    found = expect(rows)
    value, bound = (a.reshape(len(rows), cols)[place, col] for a in (found.value, found.bound))
    return found._replace(value=value, bound=bound)


def pairwise(**axes: Iterable) -> Iterator[dict[str, object]]:
    """Few combinations of the axes' values in which every two values of two axes meet.

    Greedy: each combination starts from a pair not yet met and takes for every other axis the value that meets the
    most new ones.
    """
    values = {name: list(axis) for name, axis in axes.items()}
    spots = {name: [(name, i) for i in range(len(axis))] for name, axis in values.items()}
    left = dict.fromkeys(
        frozenset(pair) for one, other in combinations(spots.values(), 2) for pair in product(other, one)
    )
    while left:
        chosen = dict(next(iter(left)))
        for name, candidates in spots.items():
            if name not in chosen:
                new = lambda spot: sum(frozenset((spot, other)) in left for other in chosen.items())
                # Among equals the one whose turn it is, lest the first value take all.
                turn = lambda spot: (spot[1] - len(left)) % len(candidates)
                chosen[name] = max(candidates, key=lambda spot: (new(spot), turn(spot)))[1]
        for pair in combinations(chosen.items(), 2):
            left.pop(frozenset(pair), None)
        yield {name: values[name][i] for name, i in chosen.items()}


def table(cases: Iterable[Case]) -> dict[str, Case]:
    """Cases by id; a case that comes twice belongs to the sets of both."""
    found: dict[str, Case] = {}
    for case in cases:
        twin = found.get(case.id)
        found[case.id] = replace(case, sets=case.sets | twin.sets) if twin else case
    return found
