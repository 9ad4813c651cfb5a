"""What the command does, step by step: flags, source, plan, lock, run, publish."""

from __future__ import annotations

import pathlib
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from beam_jobs import sample, sources
from beam_jobs.config import ConvertConfig
from beam_jobs.plan import Plan, shard_counts
from beam_jobs.report.summary import summary
from beam_jobs.sources import resplit
from beam_jobs.storage import paths
from beam_jobs.storage.paths import AnyPath, RemotePath
from beam_jobs.target import local as local_target
from beam_jobs.target import remote as remote_target
from beam_jobs.target import staging, target
from pipeline.commands import commandline, quiet
from pipeline.errors import PipelineError
from pipeline.manifest import naming

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions


def convert(command: str, argv: Sequence[str] | None) -> None:
    """Converts as the flags say.

    Args:
      command: its name, for --help.
      argv: the flags; None for the process's own.

    Raises:
      PipelineError: bad flags or data, with the exit code and one line of text.
    """
    started = time.monotonic()
    description = "Converts a data set into sharded TFRecords and a manifest."
    config, beam_arguments, flags = commandline.parse_known(command, description, ConvertConfig, argv)
    sources.check(config.source_options)
    commandline.require("apache_beam", *sources.packages_needed(config.dataset))
    with quiet.loading():
        # 2 s to import: after --help and our own flags.
        from beam_jobs.conversion import progress  # noqa: PLC0415
        from beam_jobs.report.card import page as card  # noqa: PLC0415
        from beam_jobs.runs import beam_flags, runners  # noqa: PLC0415
    options = beam_flags.parse(beam_arguments, flags)
    runners.check(options)
    data_dir, place, shown = _where_to(config)
    plan, seconds = make_plan(config, data_dir)
    with place.locked(data_dir):
        present = target.existing_manifest(data_dir)
        if present and not config.overwrite:
            target.check_same(plan, present)
            place.tidy(data_dir)
            print(f"{data_dir}: holds this data set already, made with the same options; nothing to do")
            return
        if config.dataset == "tfrecord":
            target.check_apart(config.source, data_dir, present)
        workers = runners.use_all_cores(options, seconds)
        with place.opened(data_dir, plan, present) as staged:
            _say_begin(plan, shown, workers)
            resumed, began = progress.finished_part(staged), time.monotonic()
            _run(staged, config, options, data_dir)
            seconds = time.monotonic() - began
            no_card = card.write_card(paths.path_of(staged.data_dir), command, sys.argv[1:] if argv is None else argv)
            made = place.publish(staged, data_dir, present)
    print(summary(made, shown, seconds, time.monotonic() - started, resumed=resumed, has_card=not no_card))
    _say_notes(no_card, target.stray_shards(data_dir, made))


def _where_to(config: ConvertConfig) -> tuple[AnyPath, Any, str]:
    """Returns the folder, what knows how to write there, and its name as people may see it."""
    data_dir = paths.path_of(config.data_dir)
    place: Any = remote_target if isinstance(data_dir, RemotePath) else local_target
    if config.dataset == "image_folder" and isinstance(data_dir, pathlib.Path):
        target.check_outside(config.source, data_dir)
    place.check_folder(data_dir)
    shown = str(data_dir) if isinstance(data_dir, RemotePath) else config.data_dir  # a URL may hold a secret
    return data_dir, place, shown


def make_plan(config: ConvertConfig, data_dir: AnyPath) -> tuple[Plan, float]:
    """Opens the source and returns the plan, and the seconds that its work may take one core.

    Raises:
      PipelineError: the source or a flag cannot work.
    """
    source = resplit.resplit(sources.open_source(config.source_options), config.split_fractions)
    looked = sample.take(source, config.image_encoding, config.size, config.channels)
    plan = Plan(
        source=source,
        data_dir=paths.text_of(data_dir),
        seed=config.seed,
        num_shards=shard_counts(source, looked, config.shards_by_split, config.max_shard_bytes),
        images=looked.images,
        record_bytes=looked.record_bytes,
        source_bytes=looked.source_bytes,
        compression=config.compression,
        max_shard_bytes=config.max_shard_bytes,
        max_rejects=config.max_rejects,
        flags=config.shaping_flags,
    )
    return plan, looked.seconds


def _run(plan: Plan, config: ConvertConfig, options: PipelineOptions, data_dir: AnyPath) -> None:
    with quiet.loading():
        from beam_jobs.conversion import passes  # noqa: PLC0415 (as above)
    try:
        convert_plan = passes.run_both if config.passes == 2 else passes.run_once
        convert_plan(plan, options)
    except PipelineError:
        if isinstance(data_dir, pathlib.Path) and not (data_dir / naming.MANIFEST).exists():  # else it has its own list
            staging.keep_rejects(pathlib.Path(plan.data_dir), data_dir)
        raise


def _say_begin(plan: Plan, data_dir: str, workers: int) -> None:
    examples = sum(plan.source.splits.values())
    with_workers = f" with {workers} processes" if workers > 1 else ""
    print(f"{plan.source.dataset}: {examples} examples to {len(plan.elements)} shards in {data_dir}{with_workers}")


def _say_notes(no_card: str | None, strays: list[str]) -> None:
    if no_card:
        print(f"note: {no_card}")
    if strays:
        print(f"note: {len(strays)} other shards lie there ({strays[0]}, ...), which its manifest does not list")
