"""`python -m pipeline.bench DATA_DIR`: times each stage of an input on this machine and names the bottleneck."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from pipeline.bench import result
from pipeline.bench.result import result_of
from pipeline.commands import commandline, quiet
from pipeline.commands.flags import check, flag
from pipeline.errors import as_flag, name_of
from pipeline.manifest.sources import parse_sources
from pipeline.order_flags import InputFlags
from pipeline.request import HOST, Request
from pipeline.resolved import ResolvedInput, ResolvedRequest, resolve_all

COMMAND = "pipeline.bench"
_SECONDS = 0.2  # seconds per round


@dataclasses.dataclass(frozen=True)
class BenchConfig:
    """The input to time, given by the arguments that the run passes to input_fn."""

    data_dir: str = flag(
        text="the data set's folder; or a=0.7,b=0.3, timed end to end", positional=True, metavar="DATA_DIR"
    )
    order: InputFlags = dataclasses.field(default_factory=InputFlags)
    augment_on: str = flag(
        HOST,
        "device: batches are passed on as stored; both: as uint8; the work of the steps on them is not timed",
    )
    evaluation: bool = flag(False, "time the input of evaluation; default: training")
    replicas: int | None = flag(
        None, "replicas on GPUs, or on logical CPUs without GPUs; default: all GPUs, or one CPU", least=1
    )
    rounds: int = flag(5, "rounds of each measurement, taken in turn; medians are reported", least=1)
    steps: int | None = flag(None, "steps per round; default: as many as take 0.2 s", least=1)
    json: bool = flag(False, "print one JSON object instead")

    def __post_init__(self) -> None:
        check(self)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints what each stage costs and which one bounds the input.

    Raises:
      DataError: there is no valid data set, or a shard is missing or corrupt.
      UsageError: a flag cannot work, or the data set has no images.
    """
    description = "Time each stage of an input: read, check, decode, order, gather, augment, batch, copy to device."
    config = commandline.parse(COMMAND, description, BenchConfig, argv, {"global_batch_size": 128})
    commandline.require("tensorflow")
    with as_flag("split", "--split"):
        data, how = parse_sources(config.data_dir, "DATA_DIR"), config.order.options
        request = Request(data, training=not config.evaluation, augment_on=config.augment_on, **how)
        resolved = resolve_all(request)
    for part in resolved.parts:
        part.manifest.require_images()
    with quiet.loading():
        from pipeline.bench import measure, subject  # noqa: PLC0415, here because they load TensorFlow

    # TensorFlow warns about a function that is traced many times; here each part of an input has its own function.
    with quiet.logs(), measure.input_errors():
        strategy = subject.strategy_of(config.replicas, resolved.request.global_batch_size)
        if resolved.request.is_mixture:
            _measure_mixture(config, resolved, strategy)
        else:
            _measure(config, resolved.first, strategy)


def _measure(config: BenchConfig, resolved: ResolvedRequest, strategy: Any) -> None:
    from pipeline.bench import measure, subject  # noqa: PLC0415, here because they load TensorFlow

    names = subject.names_of(strategy)
    opened = subject.Subject.opened(resolved, strategy)
    whole = opened.whole_part()
    if not config.json:
        print("\n".join(result.heading(resolved, names)), flush=True)
    how: dict[str, Any] = {"rounds": config.rounds, "seconds": _SECONDS, "steps": config.steps}
    samples = measure.measure(opened.parts(), **how, text="stages")
    samples |= measure.measure([whole], **how, text="end to end")
    found = result_of(opened.stages(), samples, samples[whole.name], measure.CORES)
    if config.json:
        print(json.dumps(result.as_object(found, resolved, names, measure.CORES, opened.reads.source)))
        return
    print()
    print("\n".join(result.stage_lines(found, resolved.order.num_records)))
    print()
    print("\n".join(result.verdict_lines(found, measure.CORES, opened.reads.source)))


def _measure_mixture(config: BenchConfig, resolved: ResolvedInput, strategy: Any) -> None:
    from pipeline.bench import measure, subject  # noqa: PLC0415, here because they load TensorFlow

    names = subject.names_of(strategy)
    resolved.request.check_replicas(len(names))
    segments = subject.segments_of(resolved)
    parts = [subject.segment_part(segment, strategy) for segment in segments]
    if not config.json:
        print("\n".join(result.mixture_heading(resolved, names)), flush=True)
    samples = measure.measure(parts, config.rounds, _SECONDS, config.steps, text="segments")
    if config.json:
        print(json.dumps(result.mixture_as_object(resolved, segments, samples, names, measure.CORES)))
        return
    print("", *result.segment_lines(segments, samples, measure.CORES), sep="\n")
    print(f"the stages of a source: {name_of(COMMAND)} of its DIR, with --split")


def entry_point() -> None:
    """Runs the command as a console script."""
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
