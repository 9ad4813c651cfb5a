"""Composes the benchmark: request -> parts -> rounds -> result -> table or JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pipeline.bench import objects, rounds, tables
from pipeline.bench.result import result_of
from pipeline.commands import quiet
from pipeline.errors import UsageError
from pipeline.manifest.sources import parse_sources
from pipeline.order.order import SHUFFLE_BYTES
from pipeline.order.shares import shares_of
from pipeline.request import Request
from pipeline.resolved import ResolvedRequest, resolve

if TYPE_CHECKING:
    from pipeline.bench.__main__ import BenchConfig

_SECONDS = 0.2  # of a round


def run(config: BenchConfig) -> None:
    """Measures and prints.

    Raises:
      DataError: there is no valid data set, or a shard is missing or corrupt.
      UsageError: a flag that cannot work, or a data set without images.
    """
    resolved = resolve(_request(config))
    resolved.manifest.require_images()
    with quiet.loading():
        from pipeline.bench.work import input_errors  # noqa: PLC0415, here because it loads TensorFlow

    with input_errors():
        _measure(config, resolved)


def _measure(config: BenchConfig, resolved: ResolvedRequest) -> None:
    from pipeline.bench import devices, parts  # noqa: PLC0415, here because they load TensorFlow
    from pipeline.bench.subject import Subject  # noqa: PLC0415

    strategy = devices.strategy_of(config.replicas, config.global_batch_size)
    names = devices.names_of(strategy)
    subject = Subject.opened(resolved, strategy)
    whole = parts.whole_of(subject)
    if not config.json:
        print("\n".join(tables.heading(resolved, names)), flush=True)
    how: dict[str, Any] = {"rounds": config.rounds, "seconds": _SECONDS, "steps": config.steps}
    samples = rounds.measure(parts.parts_of(subject), **how, text="stages")
    found = result_of(
        parts.stages_of(subject), samples, rounds.measure([whole], **how, text="end to end")[whole.name], rounds.CORES
    )
    if config.json:
        print(json.dumps(objects.as_object(found, resolved, names, rounds.CORES, subject.reads.source)))
        return
    print()
    print("\n".join(tables.stage_lines(found, resolved.order.num_records)))
    print()
    print("\n".join(tables.verdict_lines(found, rounds.CORES, subject.reads.source)))


def _request(config: BenchConfig) -> Request:
    sources = parse_sources(config.data_dir, "DATA_DIR")
    if not isinstance(sources, str):
        rows = shares_of(config.global_batch_size, [weight for _, weight in sources])
        each = "; ".join(f"{source} --global_batch_size={n}" for (source, _), n in zip(sources, rows, strict=True))
        raise UsageError(f"DATA_DIR={config.data_dir}: is timed one source at a time, by its DIR and --split: {each}")
    return Request(
        config.data_dir,
        config.split,
        global_batch_size=config.global_batch_size,
        training=not config.evaluation,
        seed=config.seed,
        distort=config.distort,
        distort_on=config.distort_on,
        resize=config.resize,
        streams=config.streams,
        shuffle_bytes=SHUFFLE_BYTES if config.shuffle_bytes is None else config.shuffle_bytes,
        remainder=config.remainder,
    )
