"""The stages of an input, the cost of each, and the bottleneck, as lines of text or as a JSON object.

A mixture is timed end to end, in each segment of its schedule; to time the stages of a source, run it by itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.batch import AUGMENT, WEIGHTS
from pipeline.commands.text import count_of, table
from pipeline.request import BOTH, DEVICE, HOST, Request
from pipeline.resolved import ResolvedInput, ResolvedRequest

# Parts measured in addition to the stages of a batch. The last four are sections, which overlap because each has its
# own threads.
BYTES = "bytes"
READER, ORDER, BATCHES, DEVICES = "reader", "order", "batches", "devices"
SECTIONS = {
    READER: "reading",
    ORDER: "planning",
    BATCHES: "making batches",
    DEVICES: "making and copying batches",
}
_SECTION_OF = {"read": READER, "check": READER, "order": ORDER, "copy to device": DEVICES}  # all other stages: BATCHES
_IN_JSON = {AUGMENT: "distort"}  # the name that other programs read; see `pipeline.commands.aliases`
CPU_BOUND = 0.75  # above this CPU utilisation the input is CPU-bound
TOGETHER = 0.7  # below this fraction of the slowest section's rate, that section alone is not the bottleneck
_MICRO, _MB = 1e6, 1e6
_LAST = "share of the processor time"
_SHARE = 5  # columns for the share in front of its bar
_LEAST_BAR, _MOST_BAR = 10, 60
_EIGHTHS = " \u258f\u258e\u258d\u258c\u258b\u258a\u2589"
_FULL = "\u2588"
_PLAIN = "#"
_BOUND, _OTHER, _RESET = "\033[33m", "\033[36m", "\033[0m"  # yellow, cyan
_COLUMNS = 80  # width without a terminal


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stage of an input.

    Attributes:
      name: name of the stage: `read`, `check`, ...
      terms: cost, as measured parts to add (1) and to subtract (-1); empty if this input does not have the stage.
      note: remark on how it is done, or why it does not occur.
      row_bytes: bytes per row that it passes on; None if they have no fixed size.
      once: whether it is done once per run rather than per epoch.
    """

    name: str
    terms: Mapping[str, int] = dataclasses.field(default_factory=dict)
    note: str = ""
    row_bytes: float | None = None
    once: bool = False

    @property
    def occurs(self) -> bool:
        """Whether the input has this stage."""
        return bool(self.terms)


def of_prefixes(prefixes: list[str]) -> dict[str, dict[str, int]]:
    """Returns the terms of the stages that make a batch: the cost up to a stage minus the cost up to the previous one.

    Args:
      prefixes: stages after which the input can stop, in order; empty if a batch is a slice of a window.
    """
    terms = {later: {later: 1, sooner: -1} for sooner, later in itertools.pairwise(prefixes)}
    return terms | {"batch": {WEIGHTS: 1} if prefixes else {BATCHES: 1}}


class Sample(NamedTuple):
    """One round: rows, wall-clock seconds, and seconds of processor time over all threads of this process."""

    rows: int
    seconds: float
    processor: float


@dataclasses.dataclass(frozen=True)
class Spread:
    """A figure over the rounds: median, lowest and highest."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Returns the spread of at least one value."""
        ordered = sorted(values)
        return cls(statistics.median(ordered), ordered[0], ordered[-1])


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a stage.

    Attributes:
      stage: the stage.
      processor: microseconds of processor time per row, summed over all cores.
      clock: wall-clock microseconds per row that it adds to the earlier stages of its section.
      share: fraction, 0..1, of the processor time of all stages that each epoch repeats; 0 if it is done once.
    """

    stage: Stage
    processor: Spread
    clock: Spread
    share: float = 0.0


@dataclasses.dataclass(frozen=True)
class Result:
    """The measurement of an input.

    Attributes:
      stages: all stages, in order.
      costs: costs of the stages that occur, by name.
      sections: rows per second of each section alone.
      rate: rows per second end to end.
      processor: microseconds of processor time per row, of the whole process.
      busy: fraction of the cores' time that this process used, 0..1.
      bound: name of the stage that is the bottleneck.
      is_processor_bound: whether the cores are the limit, having no time left for this process.
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
    """Computes the stages' costs and the bottleneck from samples of each part, by name, and of the whole input."""
    found = {stage.name: _cost(stage, samples) for stage in stages if stage.occurs}
    total = sum(cost.processor.median for cost in found.values() if not cost.stage.once)
    costs = {
        name: cost if cost.stage.once else dataclasses.replace(cost, share=cost.processor.median / max(total, 1e-12))
        for name, cost in found.items()
    }
    reads_once = any(stage.once and stage.name == "read" for stage in stages)
    active = [part for part in SECTIONS if part in samples and not (part == READER and reads_once)]  # in every epoch
    sections = {part: Spread.of(_rate(s) for s in samples[part]) for part in active}
    rate, processor, busy = _figures(whole)
    busy /= cores
    slowest = min(sections, key=lambda part: sections[part].median)
    repeated = [cost for cost in costs.values() if not cost.stage.once]
    within = [cost for cost in repeated if _SECTION_OF.get(cost.stage.name, BATCHES) == slowest] or repeated
    # If every section alone is much faster than the whole, they compete for the cores, even if not all are busy.
    by_processor = busy >= CPU_BOUND or rate.median < TOGETHER * sections[slowest].median
    bound = max(repeated, key=lambda c: c.share) if by_processor else max(within, key=lambda c: c.clock.median)
    return Result(stages, costs, sections, rate, processor, busy, bound.stage.name, by_processor)


def _cost(stage: Stage, samples: Mapping[str, Sequence[Sample]]) -> Cost:
    def spread(of: Callable[[Sample], float]) -> Spread:
        terms = [[sign * of(s) / s.rows * _MICRO for s in samples[part]] for part, sign in stage.terms.items()]
        return Spread.of(max(0.0, sum(values)) for values in zip(*terms, strict=True))

    return Cost(stage, spread(lambda s: s.processor), spread(lambda s: s.seconds))


def _rate(sample: Sample) -> float:
    return sample.rows / sample.seconds


def heading(resolved: ResolvedRequest, devices: Sequence[str]) -> list[str]:
    """Returns lines that describe what is timed."""
    made, spec, order, request = resolved.manifest, resolved.spec, resolved.order, resolved.request
    image = made.features["image"]
    size = "x".join("?" if side is None else str(side) for side in image.shape)
    stored = f"{size} {image.encoding}" + (f" in {made.packing}" if made.packing else "")
    resized = f", resized to {request.size[0]}x{request.size[1]}" if request.size else ""
    windows = f"{count_of(order.windows, 'window')} of {count_of(spec.streams, 'stream')}"
    return [
        f"{made.dataset}, split {spec.split}: {count_of(order.num_records, 'image')} of {stored}{resized}",
        *([f"view: {spec.view}"] if spec.view else []),
        f"{'training' if spec.training else 'evaluation'}, {'kept in memory' if order.windows == 1 else windows}; "
        f"batches of {spec.global_batch_size:,}, {recipe_text(request)}; {count_of(len(devices), 'replica')} on "
        f"{', '.join(devices)}",
    ]


def recipe_text(request: Request) -> str:
    """Returns text that describes how and where images are augmented."""
    recipe = "unaugmented" if request.augment in (None, "none") else f"augmented by {request.augment}"
    return recipe + {HOST: "", DEVICE: " in the steps", BOTH: " here and in the steps"}[request.augment_on]


def stage_lines(result: Result, num_records: int) -> list[str]:
    """Returns the table of stages, with a bar for each one that every epoch repeats."""
    plain = table([_row(result, stage, num_records, "") for stage in result.stages], left=(_LAST,))
    bars = Bars()
    before = len(plain[0]) - len(_LAST) + _SHARE
    width = min(_MOST_BAR, max(_LEAST_BAR, bars.columns - before - 1))
    most = max((cost.share for cost in result.costs.values()), default=0.0) or 1.0
    rows = []
    for stage in result.stages:
        cost = result.costs.get(stage.name)
        bar = bars.bar(cost.share / most, width, stage.name == result.bound) if cost else ""
        rows.append(_row(result, stage, num_records, bar))
    notes = [f"{stage.name}: {stage.note}" for stage in result.stages if stage.occurs and stage.note]
    return [*table(rows, left=(_LAST,)), *notes]


def _row(result: Result, stage: Stage, num_records: int, bar: str) -> list[tuple[str, str]]:
    cost = result.costs.get(stage.name)
    if cost is None:
        cells = ("-", "-", "-", "-", f"absent: {stage.note}")
    else:
        took, size = cost.processor.median, stage.row_bytes
        rate = _MICRO / took if took else 0.0
        once = f"once: {cost.clock.median * num_records / _MICRO:.2g} s"
        cells = (
            f"{took:,.3f}",
            f"{cost.processor.lowest:,.3f} to {cost.processor.highest:,.3f}",
            f"{rate:,.0f}" if took else "-",
            f"{rate * size / _MB:,.1f}" if took and size else "-",
            once if stage.once else f"{cost.share:4.0%} {bar}",
        )
    return list(
        zip(("stage", "us/img", "lowest to highest", "img/s", "MB/s", _LAST), (stage.name, *cells), strict=True)
    )


def verdict_lines(result: Result, cores: int, source: str) -> list[str]:
    """Returns lines with the rates and the bottleneck; `source` describes where the bytes came from."""
    total = sum(cost.processor.median for cost in result.costs.values() if not cost.stage.once)
    sections = ", ".join(f"{SECTIONS[part]} {spread.median:,.0f}" for part, spread in result.sections.items())
    handed_on = next(stage.row_bytes or 0.0 for stage in result.stages if stage.name == "batch")
    return [
        f"us/img is processor time over all cores, img/s and MB/s are those of one core; bytes come from {source}",
        f"all stages of an epoch: {total:,.3f} us/img; from end to end {_spread(result.processor, 3)}",
        f"by the clock, each alone: {sections} img/s",
        f"from end to end: {_spread(result.rate)} img/s, {result.rate.median * handed_on / _MB:,.1f} MB/s; "
        f"{result.busy * cores:.1f} of {count_of(cores, 'core')} busy",
        f"bound by {reason(result)}",
    ]


def reason(result: Result) -> str:
    """Returns text that names the bottleneck and explains it."""
    cost = result.costs[result.bound]
    if result.is_processor_bound:
        text = f"the processor: {result.bound} takes {cost.share:.0%} of its time"
        if result.busy >= CPU_BOUND:
            return text
        return (
            f"{text}; the cores are only {result.busy:.0%} busy, though each section alone is faster: other processes "
            "use them, or the sections wait for each other"
        )
    slowest = min(result.sections, key=lambda part: result.sections[part].median)
    return (
        f"{result.bound}: {SECTIONS[slowest]} alone gives {result.sections[slowest].median:,.0f} img/s, "
        f"with the cores {result.busy:.0%} busy"
    )


def _spread(spread: Spread, digits: int = 0) -> str:
    median, low, high = (f"{v:,.{digits}f}" for v in (spread.median, spread.lowest, spread.highest))
    return f"{median} ({low} to {high})"


def as_object(
    result: Result, resolved: ResolvedRequest, devices: Sequence[str], cores: int, source: str
) -> dict[str, Any]:
    """Returns the result as a JSON-compatible object."""
    spec, request = resolved.spec, resolved.request
    return {
        "dataset": resolved.manifest.dataset,
        "images": resolved.order.num_records,
        "spec": dataclasses.asdict(spec),
        "distort": request.augment,
        "distort_on": request.augment_on,
        "resize": list(request.size) if request.size else None,
        "windows": resolved.order.windows,
        "devices": list(devices),
        "cores": cores,
        "read_from": source,
        "stages": [_stage_object(result, stage) for stage in result.stages],
        "sections": {SECTIONS[part]: dataclasses.asdict(spread) for part, spread in result.sections.items()},
        "images_per_second": dataclasses.asdict(result.rate),
        "processor_us_per_image": dataclasses.asdict(result.processor),
        "busy_share": result.busy,
        "bound": {
            "stage": _IN_JSON.get(result.bound, result.bound),
            "by_processor": result.is_processor_bound,
            "reason": reason(result),
        },
    }


def _stage_object(result: Result, stage: Stage) -> dict[str, Any]:
    cost, name = result.costs.get(stage.name), _IN_JSON.get(stage.name, stage.name)
    if cost is None:
        return {"stage": name, "occurs": "absent", "note": stage.note}
    took = cost.processor.median
    rate = _MICRO / took if took else None
    return {
        "stage": name,
        "occurs": "once" if stage.once else "each epoch",
        "note": stage.note,
        "processor_us_per_image": dataclasses.asdict(cost.processor),
        "clock_us_per_image": dataclasses.asdict(cost.clock),
        "share": None if stage.once else cost.share,
        "images_per_second_per_core": rate,
        "megabytes_per_second_per_core": rate * stage.row_bytes / _MB if rate and stage.row_bytes else None,
    }


class Bars:
    """Draws bars in characters and colours that standard output can show."""

    def __init__(self) -> None:
        """Finds out what standard output can show."""
        self.is_terminal = sys.stdout.isatty()
        self.has_colors = self.is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.columns = shutil.get_terminal_size((_COLUMNS, 24)).columns if self.is_terminal else _COLUMNS
        self._has_blocks = False
        if self.is_terminal:
            with contextlib.suppress(UnicodeEncodeError, LookupError):
                (_FULL + _EIGHTHS).encode(sys.stdout.encoding or "ascii")
                self._has_blocks = True

    def bar(self, share: float, width: int, is_bound: bool) -> str:
        """Returns a bar for a share, 0..1, of `width` columns; the bottleneck's bar has a different colour."""
        eighths = round(min(max(share, 0.0), 1.0) * width * 8)
        if self._has_blocks:
            text = _FULL * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        else:
            text = _PLAIN * round(eighths / 8)
        return f"{_BOUND if is_bound else _OTHER}{text}{_RESET}" if self.has_colors and text else text


@dataclasses.dataclass(frozen=True)
class Segment:
    """Consecutive steps of a mixture with the same number of rows from each source.

    Attributes:
      first_step: first step of the segment.
      rows: number of rows of each source in a step.
      request: request for endless steps of this segment, in the units of the whole schedule.
    """

    first_step: int
    rows: tuple[int, ...]
    request: Request

    @property
    def name(self) -> str:
        """Name of the segment's part."""
        return f"from step {self.first_step}"


def mixture_heading(mixture: ResolvedInput, devices: Sequence[str]) -> list[str]:
    """Returns lines that describe the mixture that is timed."""
    request = mixture.request
    unit = f"; units of {count_of(request.shares.units[0], 'row')}" if request.schedule else ""
    return [
        *(f"source {number}: {source}" for number, source in enumerate(request.sources)),
        f"training; batches of {request.global_batch_size:,}{unit}, {recipe_text(request)}; "
        f"{count_of(len(devices), 'replica')} on {', '.join(devices)}",
    ]


def segment_lines(segments: Sequence[Segment], samples: Mapping[str, Sequence[Sample]], cores: int) -> list[str]:
    """Returns the table of a mixture's segments."""
    rows = []
    for segment in segments:
        rate, processor, busy = _figures(samples[segment.name])
        rows.append(
            [
                ("from step", f"{segment.first_step:,}"),
                ("rows", "+".join(map(str, segment.rows))),
                ("us/img", f"{processor.median:,.3f}"),
                ("lowest to highest", f"{processor.lowest:,.3f} to {processor.highest:,.3f}"),
                ("img/s", f"{rate.median:,.0f}"),
                ("slowest to fastest", f"{rate.lowest:,.0f} to {rate.highest:,.0f}"),
                ("cores busy", f"{busy:.1f} of {cores}"),
            ]
        )
    return [*table(rows), "from end to end: us/img is processor time over all cores, img/s is by the clock"]


def mixture_as_object(
    mixture: ResolvedInput,
    segments: Sequence[Segment],
    samples: Mapping[str, Sequence[Sample]],
    devices: Sequence[str],
    cores: int,
) -> dict[str, Any]:
    """Returns the result for a mixture as a JSON-compatible object."""
    found = []
    for segment in segments:
        rate, processor, busy = _figures(samples[segment.name])
        found.append(
            {
                "first_step": segment.first_step,
                "rows": list(segment.rows),
                "images_per_second": dataclasses.asdict(rate),
                "processor_us_per_image": dataclasses.asdict(processor),
                "busy_share": busy / cores,
            }
        )
    request = mixture.request
    return {
        "sources": [{"data_dir": os.fspath(one.data_dir), "split": one.split} for one in request.sources],
        "spec": mixture.spec.fields(),
        "distort": request.augment,
        "distort_on": request.augment_on,
        "devices": list(devices),
        "cores": cores,
        "segments": found,
    }


def _figures(samples: Sequence[Sample]) -> tuple[Spread, Spread, float]:
    """Returns images per second, microseconds of processor time per image, and the number of busy cores."""
    rate = Spread.of(map(_rate, samples))
    processor = Spread.of(one.processor / one.rows * _MICRO for one in samples)
    return rate, processor, statistics.median(one.processor / one.seconds for one in samples)
