"""What the command does, step by step: flags, source, plan, lock, run, publish."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Sequence

from beam_jobs import sources, staging, target
from beam_jobs.config import ConvertConfig
from beam_jobs.plan import make_plan
from beam_jobs.quiet import quiet_import
from beam_jobs.summary import summary
from pipeline import commandline


def convert(command: str, argv: Sequence[str] | None) -> None:
    """Converts as the flags say.

    Args:
      command: its name, for --help.
      argv: the flags; None for the process's own.

    Raises:
      PipelineError: bad flags or data, with the exit code and one line of text.
    """
    started = time.monotonic()
    config, beam_arguments, flags = _parse(command, argv)
    sources.check_name(config.dataset)
    commandline.require("apache_beam", *sources.MODULES_NEEDED.get(config.dataset, ()))
    with quiet_import():
        from beam_jobs import beam_flags, run, runners  # noqa: PLC0415 (2 s to import: after --help and our own flags)
    options = beam_flags.parse(beam_arguments, flags)
    runners.check(options)
    data_dir = pathlib.Path(config.data_dir).absolute()
    target.check_folder(data_dir)
    source = sources.open_source(config.dataset, config.source)
    plan = make_plan(source, str(data_dir), config.seed, config.shards_by_split)
    with target.locked(data_dir):
        present = target.existing_manifest(data_dir)
        if present and not config.overwrite:
            target.check_same(plan, present)
            print(f"{data_dir}: holds this data set already, made with the same options; nothing to do")
            return
        staging.check_places(data_dir, plan.file_names)
        staging.remove_leftovers(data_dir)
        target.check_space(plan, present)
        with staging.opened(data_dir) as folder:
            examples = sum(source.splits.values())
            print(f"{config.dataset}: {examples} examples to {len(plan.elements)} shards in {data_dir}")
            began = time.monotonic()
            run.run(dataclasses.replace(plan, data_dir=str(folder)), options)
            made = staging.publish(folder, data_dir, present)
            now = time.monotonic()
    print(summary(made, config.data_dir, now - began, now - started))
    if strays := target.stray_shards(data_dir, made):
        print(f"note: {len(strays)} other shards lie there ({strays[0]}, ...), which its manifest does not list")


def _parse(command: str, argv: Sequence[str] | None) -> tuple[ConvertConfig, list[str], list[str]]:
    parser = commandline.Parser(command, "Converts a data set into sharded TFRecords and a manifest.")
    parser.add_arguments(ConvertConfig, "config")
    known, rest = parser.parse_known_args(argv)
    return known.config, rest, parser.flags()
