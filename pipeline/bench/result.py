"""The stages of an input, what each of them costs, the rate from end to end, and what bounds it."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from pipeline.batch import WEIGHTS

# What is measured beside the stages of a batch. The last four are sections: each has its own threads, and they overlap.
BYTES = "bytes"
READER, ORDER, BATCHES, DEVICES = "reader", "order", "batches", "devices"
SECTIONS = {
    READER: "reading",
    ORDER: "planning",
    BATCHES: "making batches",
    DEVICES: "making and copying batches",
}
CPU_BOUND = 0.75  # above this CPU utilisation the input is CPU-bound
TOGETHER = 0.7  # below this share of the slowest section's rate, that section alone does not bound the input
_MICRO = 1e6


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stage.

    Attributes:
      name: `read`, `check`, ...
      terms: its cost, as parts to add (1) and to subtract (-1); none: it does not occur.
      note: how it is done, or why it does not occur.
      row_bytes: what it hands on per row; None: nothing that has a size.
      once: it is done once per run, not per epoch.
    """

    name: str
    terms: Mapping[str, int] = dataclasses.field(default_factory=dict)
    note: str = ""
    row_bytes: float | None = None
    once: bool = False

    @property
    def occurs(self) -> bool:
        """Whether this input has the stage."""
        return bool(self.terms)


def of_prefixes(prefixes: list[str]) -> dict[str, dict[str, int]]:
    """Returns the terms of the stages that make a batch.

    Args:
      prefixes: `NUMBERS`, and stages that each hand on what the one before did; none: a batch is a slice of a window.
    """
    terms = {later: {later: 1, sooner: -1} for sooner, later in itertools.pairwise(prefixes)}
    return terms | {"batch": {WEIGHTS: 1} if prefixes else {BATCHES: 1}}


class Sample(NamedTuple):
    """One round: rows, seconds by the clock, and seconds of processor time of all threads of this process."""

    rows: int
    seconds: float
    processor: float


@dataclasses.dataclass(frozen=True)
class Spread:
    """A figure over the rounds: the median, the lowest and the highest."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Returns the spread of some values, one at least."""
        ordered = sorted(values)
        return cls(statistics.median(ordered), ordered[0], ordered[-1])


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a stage that occurs costs.

    Attributes:
      stage: the stage.
      processor: microseconds of processor time per row, over all cores.
      clock: microseconds that it adds, by the clock, to those of the stages before it in its section.
      share: of the processor time of all stages that each epoch repeats, 0..1; 0 for one that is done once.
    """

    stage: Stage
    processor: Spread
    clock: Spread
    share: float = 0.0


@dataclasses.dataclass(frozen=True)
class Result:
    """What was measured of an input.

    Attributes:
      stages: all of them, in order.
      costs: by name, of those that occur.
      sections: rows per second of each section by itself.
      rate: rows per second from end to end.
      processor: microseconds of processor time per row, of the whole process.
      busy: share of the cores' time, 0..1.
      bound: the stage that bounds the input.
      is_processor_bound: whether it does so because the cores have no time left, for this process at least.
    """

    stages: Sequence[Stage]
    costs: Mapping[str, Cost]
    sections: Mapping[str, Spread]
    rate: Spread
    processor: Spread
    busy: float
    bound: str
    is_processor_bound: bool


def result_of(
    stages: Sequence[Stage], samples: Mapping[str, Sequence[Sample]], whole: Sequence[Sample], cores: int
) -> Result:
    """Returns what the samples of the parts, and of the whole input, say."""
    found = {stage.name: _cost(stage, samples) for stage in stages if stage.occurs}
    total = sum(cost.processor.median for cost in found.values() if not cost.stage.once)
    costs = {
        name: cost if cost.stage.once else dataclasses.replace(cost, share=cost.processor.median / max(total, 1e-12))
        for name, cost in found.items()
    }
    sections = {part: Spread.of(_rate(s) for s in samples[part]) for part in _repeated(stages, samples)}
    busy = statistics.median(s.processor / s.seconds for s in whole) / cores
    slowest = min(sections, key=lambda part: sections[part].median)
    repeated = [cost for cost in costs.values() if not cost.stage.once]
    within = [cost for cost in repeated if _section(cost.stage) == slowest] or repeated
    rate = Spread.of(_rate(s) for s in whole)
    by_processor = busy >= CPU_BOUND or rate.median < TOGETHER * sections[slowest].median
    bound = max(repeated, key=lambda c: c.share) if by_processor else max(within, key=lambda c: c.clock.median)
    return Result(
        stages,
        costs,
        sections,
        rate,
        Spread.of(s.processor / s.rows * _MICRO for s in whole),
        busy,
        bound.stage.name,
        by_processor,
    )


def _cost(stage: Stage, samples: Mapping[str, Sequence[Sample]]) -> Cost:
    def spread(of: Callable[[Sample], float]) -> Spread:
        terms = [[sign * of(s) / s.rows * _MICRO for s in samples[part]] for part, sign in stage.terms.items()]
        return Spread.of(max(0.0, sum(values)) for values in zip(*terms, strict=True))

    return Cost(stage, spread(lambda s: s.processor), spread(lambda s: s.seconds))


def _repeated(stages: Sequence[Stage], samples: Mapping[str, Sequence[Sample]]) -> list[str]:
    """Returns the sections that work in each epoch."""
    reads_once = any(stage.once and stage.name == "read" for stage in stages)
    return [part for part in SECTIONS if part in samples and not (part == READER and reads_once)]


def _section(stage: Stage) -> str:
    return {"read": READER, "check": READER, "order": ORDER, "copy to device": DEVICES}.get(stage.name, BATCHES)


def _rate(sample: Sample) -> float:
    return sample.rows / sample.seconds
