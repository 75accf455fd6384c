"""Two runs of the same measurements: what became faster or slower, by more than the runs themselves vary."""

import statistics
from typing import NamedTuple, Sequence

from crosscheck.report import key

DRIFT = 0.01  # two runs of the same thing differ by this much though each varies less: clocks, temperature
LOUD = 0.05  # noise past which no difference means nothing


class Change(NamedTuple):
    """A measurement in both runs. ratio: new time over old. noise: the change that the batches' spread explains."""

    record: dict
    old_us: float
    new_us: float
    ratio: float
    noise: float
    verdict: str


def spread(record: dict) -> float:
    """The range of the batch medians, as a share of their median."""
    medians = record["batch_medians_us"]
    return (max(medians) - min(medians)) / statistics.median(medians)


def compare(old: Sequence[dict], new: Sequence[dict]) -> tuple[list[Change], list[dict], list[dict]]:
    """The changes, the records of the old run alone, and those of the new one alone.

    verdict: ``same``, ``faster``, ``slower``, or ``unclear`` where the noise would hide a difference that matters.
    """
    before, after = {key(r): r for r in old}, {key(r): r for r in new}
    changes = []
    for name in before.keys() & after.keys():
        first, second = before[name], after[name]
        ratio = second["device_us"] / first["device_us"]
        noise = (spread(first) + spread(second)) / 2 + DRIFT  # a median moves less than its batches
        if abs(ratio - 1) <= noise:
            verdict = "same" if noise <= LOUD else "unclear"
        else:
            verdict = "slower" if ratio > 1 else "faster"
        changes.append(Change(second, first["device_us"], second["device_us"], ratio, noise, verdict))
    order = {name: i for i, name in enumerate(after)}
    changes.sort(key=lambda change: order[key(change.record)])
    alone = lambda these, those: [record for name, record in these.items() if name not in those]
    return changes, alone(before, after), alone(after, before)
