"""Converts a data set into sharded TFRecords and a manifest: `python -m beam_jobs.convert --help`."""

from __future__ import annotations

import io
import os
import pathlib
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from beam_jobs import sources, target
from beam_jobs.config import ConvertConfig
from beam_jobs.plan import make_plan
from beam_jobs.quiet import quiet_import
from beam_jobs.summary import summary
from pipeline import commandline, manifest

COMMAND = "beam_jobs.convert"


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command.

    Raises:
      PipelineError: bad flags or data, with the exit code and one line of text.
    """
    started = time.monotonic()
    config, beam_arguments, flags = _parse(argv)
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
    present = target.existing_manifest(data_dir)
    if present and not config.overwrite:
        target.check_same(plan, present)
        print(f"{data_dir}: holds this data set already, made with the same options; nothing to do")
        return
    target.check_space(plan, present)
    with target.prepared(plan, present):
        print(f"{config.dataset}: {sum(source.splits.values())} examples to {len(plan.elements)} shards in {data_dir}")
        began = time.monotonic()
        run.run(plan, options)
        now = time.monotonic()
    made = manifest.load(data_dir)
    print(summary(made, config.data_dir, now - began, now - started))
    if strays := target.stray_shards(data_dir, made):
        print(
            f"note: {len(strays)} other shards lie there ({strays[0]}, ...), of a conversion that did not end; unused"
        )


def _parse(argv: Sequence[str] | None) -> tuple[ConvertConfig, list[str], list[str]]:
    parser = commandline.Parser(COMMAND, "Converts a data set into sharded TFRecords and a manifest.")
    parser.add_arguments(ConvertConfig, "config")
    known, rest = parser.parse_known_args(argv)
    return known.config, rest, parser.flags()


def entry_point() -> NoReturn:
    """Runs the command and exits; Ctrl-C and SIGTERM end it at once, with one line and no manifest."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a folder's name need not be valid text
    signals: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        signals.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        commandline.run(COMMAND, main)
    except SystemExit:
        if signals:
            # Python's own exit would first wait for Beam's threads, which go on writing shards.
            sys.stdout.flush()
            os._exit(128 + signals[0])
        raise


if __name__ == "__main__":
    entry_point()
