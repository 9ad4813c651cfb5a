"""Times a mixture from end to end, in each segment of its schedule; the stages of a source are timed by itself."""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from pipeline.batch.compose import make_dataset
from pipeline.bench.measure import Part
from pipeline.bench.result import Sample, Spread, recipe_text
from pipeline.bench.subject import steps
from pipeline.commands.text import count_of, table
from pipeline.distribution import distribute_request
from pipeline.order import shares
from pipeline.request import Request
from pipeline.resolved import ResolvedInput, schedule_of

_MICRO = 1e6


@dataclasses.dataclass(frozen=True)
class Segment:
    """Steps of a mixture that have the same rows of each source.

    Attributes:
      first_step: of the segment.
      rows: of each source in a step.
      request: endless steps of this segment, in the units of the whole schedule.
    """

    first_step: int
    rows: tuple[int, ...]
    request: Request

    @property
    def name(self) -> str:
        """What its part is called."""
        return f"from step {self.first_step}"


def segments_of(mixture: ResolvedInput) -> list[Segment]:
    """Returns the segments of a mixture; without a schedule it has one."""
    request, schedule = mixture.request, mixture.request.schedule
    if not schedule:
        return [Segment(0, tuple(part.spec.global_batch_size for part in mixture.parts), request)]
    # All segments take a step each, so that the units stay the same; then the one that is timed does not end.
    short = [(step, weights) for step, (_, weights) in enumerate(schedule)]
    rows, last = schedule_of(request), len(schedule)
    return [
        Segment(first, of_segment, dataclasses.replace(request, schedule=[*short, (last, weights)], start_step=last))
        for (first, of_segment), (_, weights) in zip(rows, schedule, strict=True)
    ]


def part_of(segment: Segment, strategy: tf.distribute.Strategy | None) -> Part:
    """Returns a segment as a part to measure: the input as a run has it, including reading."""
    request = segment.request
    batches = make_dataset(request) if strategy is None else distribute_request(strategy, request)
    return steps(segment.name, batches, request.global_batch_size, whole=1)


def heading(mixture: ResolvedInput, devices: Sequence[str]) -> list[str]:
    """Returns the lines that say what is timed."""
    request, segments = mixture.request, schedule_of(mixture.request)
    unit = f"; units of {count_of(shares.unit_of(segments), 'row')}" if segments else ""
    return [
        *(f"source {number}: {source}" for number, source in enumerate(request.sources)),
        f"training; batches of {request.global_batch_size:,}{unit}, {recipe_text(request)}; "
        f"{count_of(len(devices), 'replica')} on {', '.join(devices)}",
    ]


def lines(segments: Sequence[Segment], samples: Mapping[str, Sequence[Sample]], cores: int) -> list[str]:
    """Returns the table of the segments."""
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


def as_object(
    mixture: ResolvedInput,
    segments: Sequence[Segment],
    samples: Mapping[str, Sequence[Sample]],
    devices: Sequence[str],
    cores: int,
) -> dict[str, Any]:
    """Returns the result as JSON can hold it."""
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
        "distort": request.distort,
        "distort_on": request.distort_on,
        "devices": list(devices),
        "cores": cores,
        "segments": found,
    }


def _figures(samples: Sequence[Sample]) -> tuple[Spread, Spread, float]:
    """Returns images per second, microseconds of processor time per image, and how many cores are busy."""
    rate = Spread.of(one.rows / one.seconds for one in samples)
    processor = Spread.of(one.processor / one.rows * _MICRO for one in samples)
    return rate, processor, statistics.median(one.processor / one.seconds for one in samples)
