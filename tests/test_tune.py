"""The search for configurations: what is near one, where the search goes, and what it refuses."""

import importlib
from dataclasses import dataclass

import pytest

from bench.__main__ import main
from bench.tune import CHOICES, Trial, neighbours, search
from crosscheck import backends


@dataclass(frozen=True)
class Inner:
    width: int


@dataclass(frozen=True)
class Configuration:
    name: str
    warps: int
    stages: int
    whole: bool = True
    inner: Inner = Inner(1)

    def __post_init__(self):
        if self.stages > 8:
            raise ValueError("too many stages")


def test_what_is_near():
    found = dict(neighbours(Configuration("a", 4, 8)))
    assert {c.warps for c in found.values()} == {2, 3, 4, 5, 8}
    assert {c.stages for c in found.values()} == {4, 7, 8}, "16 and 9 are refused by the dataclass"
    assert found["warps 4 -> 8, stages 8 -> 4"] == Configuration("a", 8, 4)
    assert found["whole True -> False"].whole is False and found["inner: width 1 -> 2"].inner == Inner(2)
    assert Configuration("a", 4, 8) not in found.values() and len(set(found.values())) == len(found)


def test_the_search_ends_at_the_fastest():
    best = Configuration("a", 16, 2)

    def try_all(configurations):
        def trial(change, c):
            if c.warps > 32:
                return Trial(change, c, reason="too many warps")
            return Trial(change, c, us=100.0 + abs(c.warps - best.warps) + abs(c.stages - best.stages))

        return [trial(*pair) for pair in configurations]

    rounds = list(search(Configuration("a", 4, 4, inner=Inner(0)), try_all))
    last = rounds[-1][0]
    assert (last.configuration.warps, last.configuration.stages) == (16, 2) and last.us == 100.0
    assert all(r[0].us >= s[0].us for r, s in zip(rounds, rounds[1:])), "each round starts from the last one's best"
    assert rounds[0][0].change == "present"


def test_a_search_from_what_fails_ends():
    trials = lambda pairs: [Trial(change, c, reason="wrong") for change, c in pairs]
    assert len(list(search(Configuration("a", 4, 4), trials))) == 1


@pytest.mark.parametrize("backend, operator", CHOICES)
def test_the_functions_are_there(backend, operator):
    found = backends.find(backend)
    if found.unavailable("cpu") and found.unavailable("gpu"):
        pytest.skip(f"not run: {found.unavailable('cpu')}")
    assert set(CHOICES[backend, operator]) <= set(found.variants(operator))
    for place in CHOICES[backend, operator].values():
        module, name = place.split(":")
        assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["tune", "softmax"], "the following arguments are required: --backend"),
        (["tune", "softmax", "--backend", "torch"], "--backend is 'torch'; accepted: cuda, triton or pallas"),
        (
            ["tune", "softmax", "--backend", "cuda", "--case", "x"],
            "--case is 'x'; accepted: the id of a case of softmax",
        ),
        (["tune", "softmax", "--backend", "cuda"], "CUDA shows no GPU here"),
    ],
)
def test_wrong_command_lines(capsys, monkeypatch, arguments, message):
    monkeypatch.setattr("crosscheck.machine.gpu", lambda: None)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
