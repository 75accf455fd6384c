"""The clocks: what a call takes on the device, and what its caller waits.

Device time is CUPTI's record of the device, read through torch.profiler, which sees kernels, copies and memsets
whichever library launched them. Before every call its own framework enqueues a *flush* on its own stream: a kernel that
inverts every bit of a buffer twelve times the size of the L2 cache, repeated where the call takes its caller long. The
flush empties the cache of the call's data, hides the time its launches take on the host, and marks in the records where
the call begins: what lies between two flushes is the call, from its first record's start to its last one's end. The cache is left full of written lines, not
of read ones, on purpose: a call pays for the lines that the flush left to write back as the next flush pays for the
call's, so that bytes over time is what memory sustains. After a cache of read lines 60 MB of the output would be free.
"""

import collections
import itertools
import math
import random
import statistics
import time
from dataclasses import dataclass
from typing import Callable, Iterator, Mapping, NamedTuple, Sequence

TICK_US = 0.032  # by which the GPU's clock steps: 2 % of the shortest kernels
MOST_PASSES = 8  # of a flush, each of 300 us on an H200; for calls that wait for the device themselves
SLACK_NS = 200  # two kernels of one stream: CUPTI's clock lets the second start this much before the first one's end


class Record(NamedTuple):
    """A kernel, copy or memset on the device; nanoseconds."""

    name: str
    start: int
    end: int


class Span(NamedTuple):
    """A call on the device, in nanoseconds.

    ordered: it began after its flush; what does not was enqueued on a stream that nothing orders behind the caller's.
    """

    start: int
    end: int
    ordered: bool


@dataclass(frozen=True)
class Candidate:
    """A call to time. kind: whose arrays it takes, a key of ``crosscheck.arrays.KINDS``. wait: the framework's own
    synchronisation on a list of results."""

    kind: str
    call: Callable[[], object]
    wait: Callable[[Sequence[object]], object]


def spans(records: Sequence[Record], marks: Sequence[str]) -> list[Span | None]:
    """The call behind each flush; None for one that left no record. marks: the flush's kernel of each call, in order.

    Raises RuntimeError where the flushes among the records are not those of the calls.
    """
    calls: list[list[Record]] = []
    kernels, found = set(marks), []
    for record in sorted(records, key=lambda record: record.start):
        if record.name in kernels:
            found.append(record)
            calls.append([])
        elif calls:
            calls[-1].append(record)
    if [mark.name for mark in found] != list(marks):
        raise RuntimeError(
            f"the device ran {len(found)} flushes in another order or number than the {len(marks)} enqueued: "
            "a call launches the very kernel that marks its begin"
        )
    return [
        Span(own[0].start, max(r.end for r in own), own[0].start >= mark.end - SLACK_NS) if own else None
        for mark, own in zip(found, calls)
    ]


class DeviceClock:
    """Times calls on the device. Needs torch, whose profiler it reads."""

    def __init__(self, l2_bytes: int):
        import torch

        self._torch = torch
        self._elements = 12 * l2_bytes // 4
        self._flushes: dict[str, Callable[[], None]] = {}
        self._marks: dict[str, str] = {}
        self._flush_ns: dict[str, int] = {}
        self._record(lambda: None)  # the first session takes seconds

    def _record(self, job: Callable[[], object]) -> list[Record]:
        from torch.profiler import ProfilerActivity, profile

        self._torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as session:
            job()
            self._torch.cuda.synchronize()
        events = [e for e in session.profiler.kineto_results.events() if "CUDA" in str(e.device_type())]
        return [Record(e.name(), e.start_ns(), e.start_ns() + e.duration_ns()) for e in events]

    def flush(self, kind: str) -> Callable[[], None]:
        """The flush of the framework of such arrays."""
        if kind not in self._flushes:
            flush = getattr(self, f"_{kind}_flush")()
            flush()
            (record,) = self._record(flush)
            self._flushes[kind], self._marks[kind] = flush, record.name
            self._flush_ns[kind] = record.end - record.start
        return self._flushes[kind]

    def _torch_flush(self):
        return self._torch.empty(self._elements, dtype=self._torch.int32, device="cuda").bitwise_not_

    def _cupy_flush(self):
        import cupy

        buffer = cupy.empty(self._elements // 2, "int64")  # CuPy moves an element at a time: wider ones are faster
        return lambda: cupy.invert(buffer, out=buffer)

    def _jax_flush(self):
        import jax

        invert = jax.jit(lambda buffer: ~buffer, donate_argnums=0)
        buffer = jax.numpy.zeros(self._elements, "int32")

        def flush():
            nonlocal buffer
            buffer = invert(buffer)

        return flush

    def passes(self, candidate: Candidate) -> int:
        """Flushes in a row that take the device twice as long as a call's launches take the host, MOST_PASSES at most."""
        flush, spent = self.flush(candidate.kind), []
        for _ in range(3):
            flush()
            start = time.perf_counter_ns()
            result = candidate.call()
            spent.append(time.perf_counter_ns() - start)
            candidate.wait([result])
            self._torch.cuda.synchronize()
        return min(MOST_PASSES, math.ceil(2 * statistics.median(spent) / self._flush_ns[candidate.kind]))

    def batch(self, candidates: Mapping[str, Candidate], order: Sequence[str]) -> list[Span | None]:
        """One call after the other in the order given, each behind its flushes, with nothing between them."""
        flushes = {name: self.flush(candidate.kind) for name, candidate in candidates.items()}
        passes = {name: self.passes(candidate) for name, candidate in candidates.items()}

        def job():
            for name in order:
                for _ in range(passes[name]):
                    flushes[name]()
                candidates[name].wait([candidates[name].call()])
                self._torch.cuda.synchronize()  # whatever a call left on streams of its own

        marks = [self._marks[candidates[name].kind] for name in order for _ in range(passes[name])]
        found = spans(self._record(job), marks)
        return [found[last - 1] for last in itertools.accumulate(passes[name] for name in order)]

    def batches(
        self, candidates: Mapping[str, Candidate], calls: Mapping[str, int], count: int
    ) -> Iterator[dict[str, list[Span | None]]]:
        """So many batches, each of ``calls`` of every candidate in an order of its own: their spans by name."""
        for seed in range(count):
            order = shuffled(calls, seed)
            spans = {name: [] for name in candidates}
            for name, span in zip(order, self.batch(candidates, order)):
                spans[name].append(span)
            yield spans


def shuffled(calls: Mapping[str, int], seed: int) -> list[str]:
    """Every name as often as said, in an order drawn at random."""
    order = [name for name, n in calls.items() for _ in range(n)]
    random.Random(seed).shuffle(order)
    return order


def stream(candidate: Candidate, calls: int, before_end: Callable[[], None] = lambda: None) -> float:
    """Seconds a call in a stream of asynchronous calls that ends with the framework's own synchronisation.

    before_end: called when all is enqueued and the device still at work.
    """
    candidate.wait([candidate.call()])
    start = time.perf_counter()
    for _ in range(calls):
        result = candidate.call()
    before_end()
    candidate.wait([result])
    return (time.perf_counter() - start) / calls


def median_and_quartiles(times: Sequence[float]) -> tuple[float, list[float]]:
    """The median of microseconds, and the first and the third quartile.

    Times that the GPU's clock has rounded to the same tick are taken as spread evenly over it, as for grouped data:
    else the median of a short kernel jumps by a tick where one call more falls on its other side.
    """
    ticks = collections.Counter(round(time / TICK_US) for time in times)
    times = [TICK_US * (tick - 0.5 + (i + 0.5) / n) for tick, n in ticks.items() for i in range(n)]
    if len(times) == 1:
        return times[0], [times[0], times[0]]
    first, _, third = statistics.quantiles(times, n=4, method="inclusive")
    return statistics.median(times), [first, third]
