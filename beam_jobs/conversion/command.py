"""The command from its flags to its summary: plan, lock, Beam job, publication, report."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Collection, Iterator, Sequence

from beam_jobs import sources
from beam_jobs.config import ConvertConfig
from beam_jobs.examples import columns
from beam_jobs.plan import Plan, make_plan
from beam_jobs.report.summary import facts_of_plan, summary
from beam_jobs.runs import entry
from beam_jobs.sink import Sink, sink_of
from beam_jobs.sink.present import check_same, existing_manifest, notes, other_pixels, renumbered
from beam_jobs.sources import dealt, published
from pipeline import manifest
from pipeline.commands import commandline, quiet
from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError, to_run
from pipeline.files.paths import with_version
from pipeline.files.remote import in_command, is_url
from pipeline.manifest import naming, unconverted
from pipeline.records import columns as stored_columns

_SOURCE = re.compile("--source=.")


def _check_source(config: ConvertConfig) -> None:
    commandline.require("apache_beam")  # brings pyarrow, which sources import
    sources.check(config.source_options)


def _check_folder(arguments: Sequence[str]) -> None:
    """Raises UsageError with the whole command to run if a folder is given without --dataset."""
    if any(argument.startswith("--dataset") for argument in arguments):
        return
    source = next(filter(_SOURCE.match, arguments), "").partition("=")[2]
    folder = source or (arguments[0] if arguments else "")
    if not os.path.isdir(folder):
        return
    if os.path.isfile(os.path.join(folder, naming.MANIFEST)):
        advice = f"it is a data set already; train on it: {to_run('trainer.run')} {in_command(folder)}"
    else:
        advice = unconverted.advice(folder)
    is_written = "" if source else f", and {folder} would be --data_dir, where the data set is written"
    raise UsageError(f"--dataset is missing{is_written}; {folder}: {advice}")


def _check_unconverted(config: ConvertConfig) -> None:
    """Raises UsageError if the files to convert are already a converted data set."""
    if config.dataset not in ("image_folder", "image_table", "webdataset", "parquet", "arrow") or is_url(
        config.source or ""
    ):
        return
    try:
        manifest.load(config.source or "")
    except (DataError, UsageError):
        return
    train = f"{to_run('trainer.run')} {in_command(config.source or '')}"
    raise UsageError(f"--source={config.source}: is a data set already; train on it: {train}")


def _check_no_version(config: ConvertConfig) -> None:
    """Raises UsageError if the folder to write to names one version of a data set."""
    place, version = with_version(config.data_dir)
    if version is not None and not is_url(place) and os.path.isfile(os.path.join(place, naming.MANIFEST)):
        raise UsageError(f"--data_dir={config.data_dir}: names one version; write to the data set's folder: {place}")


def convert(command: str, argv: Sequence[str] | None) -> None:
    """Runs a conversion from its command line.

    Args:
      command: name of the command, for --help.
      argv: flags; None for the process's own arguments.

    Raises:
      PipelineError: bad flags or data, with the exit code and one line of text.
    """
    started, arguments = time.monotonic(), sys.argv[1:] if argv is None else argv
    _check_folder(arguments)
    description = "Converts a data set into sharded TFRecords and a manifest."
    config, beam_arguments, flags = commandline.parse_known(
        command,
        description,
        ConvertConfig,
        arguments,
        check=_check_source,
        others=entry.check_beam_flags,
    )
    commandline.require("apache_beam", *sources.packages_needed(config.dataset))
    with quiet.loading():
        # Imported late: they take 2 s, which --help and a bad flag need not wait for.
        from beam_jobs.conversion import appending, dry_run, job  # noqa: PLC0415
        from beam_jobs.report import card  # noqa: PLC0415
        from beam_jobs.runs import runners  # noqa: PLC0415
    options = runners.parse(beam_arguments, flags)
    sink = sink_of(config.data_dir, "an append" if config.append else "")
    sink.check(config.dataset, config.source)
    _check_unconverted(config)
    _check_no_version(config)
    parent = appending.parent_in(sink) if config.append else None
    with published.refused() if config.dry_run else contextlib.nullcontext():
        plan = make_plan(config, sink.data_dir, parent)
        columns.chosen(config.columns, plan.column_features)  # fails before the conversion rather than after it
    lowered = runners.bound_workers(options, len(plan.elements))
    workers = runners.use_all_cores(options, plan.sample.seconds, len(plan.elements))
    if config.dry_run:
        dry_run.show(plan, sink, config.overwrite, workers, lowered)
        return

    if parent is not None:
        appending.append(sink, plan, parent, options, (command, arguments), started)
        return
    with replacing(sink, plan, config.overwrite) as staged:
        if staged is None:
            print(f"{sink.data_dir}: already holds this data set, made with the same options; nothing to do")
        else:
            _say_begin(plan, sink.shown, workers, lowered)
            resumed, began = job.finished_part(staged), time.monotonic()
            job.run_passes(staged, options)
            seconds = time.monotonic() - began
            images = facts_of_plan(staged)
            no_card = card.write_card(staged.data_dir, command, arguments, images)
    if staged is None:
        made = manifest.load(sink.data_dir)
        for line in other_pixels(plan, made):
            print(line)
        _describe_again(sink, command, arguments)
        _add_columns(config, sink, columns.chosen(config.columns, plan.column_features))
        return
    made, total = manifest.load(sink.data_dir), time.monotonic() - started
    url = sink.data_dir.url if sink.data_dir.is_remote else ""
    print(summary(made, sink.shown, seconds, total, resumed=resumed, has_card=not no_card, images=images, url=url))
    if not config.are_own_columns:
        stored_columns.add(str(sink.data_dir), config.columns)
    of_columns = columns.notes(config.columns, plan.column_features, made.columns)
    for note in [*([no_card] if no_card else []), *of_columns, *notes(sink.data_dir, made)]:
        print(f"note: {note}")


def _describe_again(sink: Sink, command: str, arguments: Sequence[str]) -> None:
    """Writes the card and `croissant.json` of an earlier conversion if they are missing or, the latter, out of date."""
    from beam_jobs.report import card  # noqa: PLC0415, here because --help must be fast

    if not (sink.data_dir / naming.CARD).exists():
        no_card = card.write_card(sink.data_dir, command, arguments)
        print(f"note: {no_card}" if no_card else f"{naming.CARD} was missing, and is written again")
    if card.renew_croissant(sink.data_dir):
        print(f"{naming.CROISSANT} was missing or out of date, and is written again")


def _add_columns(config: ConvertConfig, sink: Sink, named: Collection[str] | None) -> None:
    """Adds the columns of --columns that an earlier conversion did not make, by reading its shards again.

    `named` has the record columns that the flag names; None if it names none.
    """
    there = manifest.load(sink.data_dir).columns
    missing = [name for name in named or () if name not in there]
    if missing and sink.data_dir.is_remote:
        raise UsageError(
            f"--columns={config.columns}: the data set there has no column {', '.join(missing)}, and columns are added "
            "to a local or mounted folder only",
            path=sink.data_dir,
            advice="--overwrite converts it again, with them",
        )
    if missing or not config.are_own_columns:
        stored_columns.add(str(sink.data_dir), config.columns)
    elif named is None and not there:
        how = "--overwrite makes them"
        if not sink.data_dir.is_remote:
            how = f"to add them: {to_run('pipeline.index')} {in_command(str(sink.data_dir))} --add_columns=records"
        print(f"note: the data set has no columns; {how}")


@contextlib.contextmanager
def replacing(sink: Sink, plan: Plan, overwrite: bool) -> Iterator[Plan | None]:
    """Locks a sink and yields the plan to write there; None if the sink holds this data set already.

    When the block ends, the files written in it become the sink's data set. If it fails, the old data set stays as it
    was.

    Args:
      sink: sink to write to, already checked.
      plan: plan of the conversion.
      overwrite: whether a different data set there may be replaced.

    Raises:
      PipelineError: the sink holds a different data set, or cannot be locked, read or written.
    """
    with sink.locked():
        present = existing_manifest(sink.data_dir)
        if present and not overwrite:
            check_same(plan, present, sink.data_dir)
            sink.tidy()
            yield None
            return
        for line in renumbered(plan, present) if present else ():
            print(line)
        with sink.opened(plan, present) as staged:
            yield staged


def _say_begin(plan: Plan, data_dir: str, workers: int, lowered: str) -> None:
    with_workers = f" with {workers} processes" if workers > 1 else ""
    what = f"{count_of(plan.num_rows, 'example')} to {count_of(len(plan.elements), 'shard')}"
    print(f"{plan.source.dataset}: {what} in {data_dir}{with_workers}")
    if lowered:
        print(lowered)
    if shares := dealt.shares_of(plan.source):
        print("\n".join(shares.lines()))
