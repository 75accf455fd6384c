"""A search for better configurations: those near the one that a wrapper chooses by shape, each checked, then timed.

Implementations choose how a kernel is carried out by pure functions of the shape that return a frozen dataclass. Here
such a function is replaced by one that returns a neighbour of its answer: one field doubled, halved or one more or
less, or one doubled and another halved. Every neighbour goes through crosscheck, on poisoned buffers, and those that
pass are timed interleaved with the present choice; the search goes on from the fastest until none is better.
Nothing is written: what is found belongs into the function.
"""

import contextlib
import functools
import importlib
import itertools
import statistics
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Callable, Iterator
from unittest import mock

from bench.clocks import Candidate
from bench.run import Bench
from crosscheck import backends
from crosscheck.runner import Task

# (backend, operator) -> variants -> the function that configures it, as module:name.
CHOICES = {
    ("cuda", "softmax"): {
        "5_persistent": "cupy_impl.softmax:persistent_tile",
        "6_packed": "cupy_impl.softmax:packed_tile",
    },
    ("cuda", "rmsnorm"): {
        "5_persistent": "cupy_impl.rmsnorm:persistent_tile",
        "6_packed": "cupy_impl.rmsnorm:packed_tile",
    },
    ("cuda", "rmsnorm_backward"): dict.fromkeys(
        ("backward_2_two_kernels", "backward_3_cooperative"), "cupy_impl.rmsnorm:backward_tile"
    ),
    ("cuda", "matmul"): dict.fromkeys(("3_registers", "4_async", "5_wmma", "6_mma"), "cupy_impl.matmul:configuration")
    | dict.fromkeys(
        ("7_wgmma", "8_specialised", "9_persistent", "10_cluster", "11_split"), "cupy_impl.matmul_hopper:configuration"
    ),
    ("triton", "softmax"): {
        "online": "triton_impl.softmax:online_tiles",
        "resident": "triton_impl.softmax:resident_tiles",
        "packed": "triton_impl.softmax:packed_tiles",
    },
    ("triton", "rmsnorm"): {
        "two_pass": "triton_impl.rmsnorm:two_pass_tiles",
        "resident": "triton_impl.rmsnorm:resident_tiles",
        "packed": "triton_impl.rmsnorm:packed_tiles",
    },
    ("triton", "rmsnorm_backward"): {
        "split_backward": "triton_impl.rmsnorm_backward:split_backward_tiles",
        "resident_backward": "triton_impl.rmsnorm_backward:resident_backward_tiles",
        "shared_backward": "triton_impl.rmsnorm_backward:shared_backward_tiles",
    },
    ("triton", "matmul"): {
        "tiled": "triton_impl.matmul:tiled_tile",
        "descriptors": "triton_impl.matmul:descriptors_tile",
        "persistent": "triton_impl.matmul:persistent_tile",
        "persistent_tf32": "triton_impl.matmul:persistent_tile",
    },
    ("triton", "attention"): {
        "online": "triton_impl.attention:online_tile",
        "descriptors": "triton_impl.attention:descriptors_tile",
        "persistent": "triton_impl.attention:persistent_tile",
    },
    ("pallas", "softmax"): dict.fromkeys(("two_reads", "one_read", "prefetched"), "pallas_impl.rows:configure"),
    ("pallas", "rmsnorm"): dict.fromkeys(("two_reads", "one_read", "prefetched"), "pallas_impl.rows:configure"),
    ("pallas", "matmul"): dict.fromkeys(
        ("plain", "persistent_tf32", "pipelined", "specialised", "persistent"), "pallas_impl.matmul:configure"
    ),
    ("pallas", "rmsnorm_backward"): dict.fromkeys(
        ("two_reads", "one_read", "prefetched"), "pallas_impl.rmsnorm_backward:configure"
    ),
    ("pallas", "attention"): dict.fromkeys(("pipelined", "specialised"), "pallas_impl.attention:configure"),
}

GAIN = 0.005  # less than this is no gain
CALLS, BATCHES = 10, 3


@dataclass(frozen=True)
class Trial:
    """A configuration that was tried. us: of its calls the median on the device, None where ``reason`` says why not."""

    change: str
    configuration: object
    us: float | None = None
    reason: str | None = None


def neighbours(configuration) -> Iterator[tuple[str, object]]:
    """What lies near a frozen dataclass, as (what is changed, the changed one)."""
    numbers = [f.name for f in fields(configuration) if type(getattr(configuration, f.name)) is int]
    seen = {configuration}

    def changed(**values):
        try:
            new = replace(configuration, **values)
        except (TypeError, ValueError):  # the dataclass itself refuses it
            return
        if new not in seen:
            seen.add(new)
            words = ", ".join(f"{name} {getattr(configuration, name)} -> {value}" for name, value in values.items())
            yield words, new

    for field in fields(configuration):
        value = getattr(configuration, field.name)
        if type(value) is bool:
            yield from changed(**{field.name: not value})
        elif is_dataclass(value):
            for words, inner in neighbours(value):
                for _, new in changed(**{field.name: inner}):
                    yield f"{field.name}: {words}", new
    for name in numbers:
        value = getattr(configuration, name)
        for other in dict.fromkeys((2 * value, value // 2, value + 1, value - 1)):
            if other >= 0:
                yield from changed(**{name: other})
    for name, other in itertools.permutations(numbers, 2):
        if getattr(configuration, name) and getattr(configuration, other) > 1:
            yield from changed(**{name: 2 * getattr(configuration, name), other: getattr(configuration, other) // 2})


def search(present, try_all: Callable[[list[tuple[str, object]]], list[Trial]]) -> Iterator[list[Trial]]:
    """The rounds of the search from the ``present`` configuration; of each the trials, that it started from first.

    try_all: the trials of some configurations, timed together.
    """
    tried, change = set(), "present"
    while True:
        near = [(words, c) for words, c in neighbours(present) if c not in tried]
        trials = try_all([(change, present), *near])
        tried |= {present, *(c for _, c in near)}
        yield trials
        start, *others = trials
        best = min((t for t in others if t.us is not None), key=lambda t: t.us, default=None)
        if start.us is None or best is None or best.us > (1 - GAIN) * start.us:
            return
        present, change = best.configuration, best.change


def tune(bench: Bench, task: Task) -> Iterator[list[Trial]]:
    """The rounds of a search on the task's case, for its variant.

    Raises ValueError where the task does not call the variant's function, or gets no configuration from it.
    """
    module, name = CHOICES[task.backend, task.case.operator][task.variant].split(":")
    module, backend = importlib.import_module(module), backends.find(task.backend)
    choose, answers = getattr(module, name), []

    def noting(*arguments, **keywords):
        answers.append(choose(*arguments, **keywords))
        return answers[-1]

    with mock.patch.object(module, name, noting):
        row, *_ = bench.runner.run(task)
    if row["verdict"] != "pass":
        raise ValueError(f"{task.backend} {task.variant} on {task.case.id}: {row['verdict']}: {row['reason']}")
    if not answers or answers[-1] is None:
        raise ValueError(f"{task.backend} {task.variant} does not configure {task.case.id} by {name}")
    kind = backend.kind("gpu")
    bench.clock.flush(kind)

    def with_(configuration):
        return mock.patch.object(module, name, lambda *_, **__: configuration)

    def try_all(configurations):
        trials, candidates = {}, {}
        for words, configuration in configurations:
            with with_(configuration):
                row, *_ = bench.runner.run(task)
            trials[words] = Trial(words, configuration, reason=None if row["verdict"] == "pass" else row["reason"])
            if row["verdict"] == "pass":
                function = backend.function(task.case.operator, task.variant, "gpu")
                arguments, keywords = bench.runner.inputs.call(kind)
                call = functools.partial(function, *arguments, **keywords)
                candidates[words] = Candidate(
                    kind, functools.partial(_within, with_, configuration, call), bench.runner.adapters[kind].wait
                )
                candidates[words].wait([candidates[words].call()])
        times = {words: [] for words in candidates}
        for spans in bench.clock.batches(candidates, dict.fromkeys(candidates, CALLS), BATCHES if candidates else 0):
            for words, own in spans.items():
                times[words] += [(span.end - span.start) / 1e3 for span in own]
        return [replace(t, us=statistics.median(times[w]) if w in times else None) for w, t in trials.items()]

    yield from search(answers[-1], try_all)


def _within(with_: Callable[[object], contextlib.AbstractContextManager], configuration, call: Callable[[], object]):
    with with_(configuration):
        return call()
