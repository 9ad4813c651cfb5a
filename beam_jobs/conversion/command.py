"""What the command does, step by step: flags, target, plan, lock, job, publication, report."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from beam_jobs import sources
from beam_jobs.config import ConvertConfig
from beam_jobs.plan import Plan, make_plan
from beam_jobs.report.summary import summary
from beam_jobs.target.base import Target, target_of
from beam_jobs.target.present import check_same, existing_manifest, notes
from pipeline import manifest
from pipeline.commands import commandline, quiet
from pipeline.manifest import Manifest

_Result = TypeVar("_Result")


def convert(command: str, argv: Sequence[str] | None) -> None:
    """Converts as the flags say.

    Args:
      command: its name, for --help.
      argv: the flags; None for the process's own.

    Raises:
      PipelineError: bad flags or data, with the exit code and one line of text.
    """
    started, arguments = time.monotonic(), sys.argv[1:] if argv is None else argv
    description = "Converts a data set into sharded TFRecords and a manifest."
    config, beam_arguments, flags = commandline.parse_known(command, description, ConvertConfig, arguments)
    sources.check(config.source_options)
    commandline.require("apache_beam", *sources.packages_needed(config.dataset))
    with quiet.loading():
        # 2 s to import: after --help and our own flags.
        from beam_jobs.conversion import passes, progress  # noqa: PLC0415
        from beam_jobs.report.card import page as card  # noqa: PLC0415
        from beam_jobs.runs import runners  # noqa: PLC0415
    options = runners.parse(beam_arguments, flags)
    target = target_of(config.data_dir)
    target.check(config.dataset, config.source)
    plan = make_plan(config, target.data_dir)

    def write(staged: Plan) -> tuple[float, float, str | None]:
        _say_begin(plan, target.shown, runners.use_all_cores(options, plan.sample.seconds))
        resumed, began = progress.finished_part(staged), time.monotonic()
        passes.run(staged, options)
        seconds = time.monotonic() - began
        return seconds, resumed, card.write_card(staged.data_dir, command, arguments)

    outcome = convert_into(target, plan, config.overwrite, write)
    if outcome is None:
        print(f"{target.data_dir}: already holds this data set, made with the same options; nothing to do")
        return
    made, (seconds, resumed, no_card) = outcome
    total = time.monotonic() - started
    print(summary(made, target.shown, seconds, total, resumed=resumed, has_card=not no_card))
    if no_card:
        print(f"note: {no_card}")
    for note in notes(target.data_dir, made):
        print(f"note: {note}")


def convert_into(
    target: Target, plan: Plan, overwrite: bool, write: Callable[[Plan], _Result]
) -> tuple[Manifest, _Result] | None:
    """Locks a target, has the data set of a plan written, and publishes it.

    Args:
      target: where to; checked.
      plan: what to write.
      overwrite: whether another data set there is replaced.
      write: writes shards and manifest of the plan that it is given.

    Returns:
      The manifest and what `write` returned; None if the target holds this data set already.

    Raises:
      PipelineError: the target holds another data set, or a step fails; the data set there stays as it was.
    """
    with target.locked():
        present = existing_manifest(target.data_dir)
        if present and not overwrite:
            check_same(plan, present, target.data_dir)
            target.tidy()
            return None
        with target.opened(plan, present) as staged:
            result = write(staged)
        return manifest.load(target.data_dir), result


def _say_begin(plan: Plan, data_dir: str, workers: int) -> None:
    with_workers = f" with {workers} processes" if workers > 1 else ""
    print(f"{plan.source.dataset}: {plan.num_rows} examples to {len(plan.elements)} shards in {data_dir}{with_workers}")
