"""`--append`: the rows of a source become the next version of a data set."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence

from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs import drafts
from beam_jobs.appending import notes_about
from beam_jobs.conversion import job
from beam_jobs.plan import Plan
from beam_jobs.report import card
from beam_jobs.report.summary import kept_version, summary
from beam_jobs.shards import keys
from beam_jobs.sink import Sink
from beam_jobs.sink.present import appended_before, existing_manifest, notes
from beam_jobs.sources.appended import AppendedSource
from pipeline import manifest
from pipeline.commands.text import count_of
from pipeline.errors import UsageError, to_run
from pipeline.files.remote import in_command
from pipeline.manifest import Manifest, naming, versions


def parent_in(sink: Sink) -> Manifest:
    """Returns the version that an append extends: the newest that the folder holds.

    Raises:
      UsageError: there is no data set, or one that cannot be extended.
      DataError: its manifest cannot be read.
    """
    found = existing_manifest(sink.data_dir) if sink.data_dir.exists() else None
    if found is None:
        raise UsageError(
            f"--append: {sink.shown} holds no data set to append to; leave out --append to convert one there"
        )
    return found


def append(
    sink: Sink,
    plan: Plan,
    parent: Manifest,
    options: PipelineOptions,
    command: tuple[str, Sequence[str]],
    started: float,
) -> None:
    """Converts the rows of a plan into the next version of its data set, and prints a summary.

    Args:
      sink: folder of the data set.
      plan: plan of the append.
      parent: version that it extends.
      options: Beam's options.
      command: name and arguments of the command, for the card.
      started: start time of the command, from `time.monotonic`.

    Raises:
      PipelineError: rows cannot be converted, their keys already exist, or another command is writing there.
    """
    with sink.locked():
        is_made = _is_made(sink, plan, parent)
        if is_made:
            sink.tidy()
            print(f"{sink.shown}: its newest version has these rows, appended by the same options; nothing to do")
        else:
            what = f"{count_of(plan.num_rows, 'example')} to {count_of(len(plan.elements), 'shard')}"
            print(f"{plan.source.dataset}: {what} of version {parent.version + 1} in {sink.shown}", flush=True)
            for line in notes_about(plan.config, plan.source, parent):
                print(line)
            with sink.opened(plan, parent) as staged:
                resumed = job.finished_part(staged)
                began = time.monotonic()
                job.run_passes(_with_keys(staged, parent), options)
                seconds = time.monotonic() - began
        made = manifest.load(sink.data_dir)
        no_card = None
        if not (sink.data_dir / naming.CARD).exists():  # also missing if a command was killed after publishing
            no_card = card.write_card(sink.data_dir, *command)
    if is_made:
        return
    total = time.monotonic() - started
    print(summary(made, sink.shown, seconds, total, resumed=resumed, has_card=not no_card, added=parent))
    for line in (*([f"note: {no_card}"] if no_card else []), *_lines(sink, made, parent)):
        print(line)


def _is_made(sink: Sink, plan: Plan, parent: Manifest) -> bool:
    """Returns whether a locked sink's newest version is the result of this append to the version before it."""
    found = existing_manifest(sink.data_dir)
    if found is not None and found.parent:
        before = next((made for made in versions.all_of(sink.data_dir) if made.digest == found.parent), None)
        if before is not None and appended_before(plan, found, before):
            return True
    if found is None or found.digest != parent.digest:
        raise UsageError(f"--data_dir={sink.shown}: another command has changed it meanwhile; run this one again")
    return False


def _with_keys(plan: Plan, parent: Manifest) -> Plan:
    """Returns the plan with the keys of the version that it extends; rows with these keys are invalid."""
    path = plan.receipts_dir / naming.KNOWN_KEYS
    if not path.exists():
        drafts.publish(path, keys.table_of(plan.published_dir, parent).to_bytes())
    assert isinstance(plan.source, AppendedSource)
    return dataclasses.replace(plan, source=dataclasses.replace(plan.source, known=path))


def _lines(sink: Sink, made: Manifest, parent: Manifest) -> Iterator[str]:
    missing = sorted(parent.columns.keys() - made.columns.keys())
    if missing:
        add = f"{to_run('pipeline.index')} {in_command(sink.shown)} --add_columns=FILE"
        yield (
            f"note: {count_of(len(missing), 'column')} of version {parent.version} are not in the new one "
            f"({', '.join(missing)}): their values came from a file or function, which the new rows lack; to add them: "
            f"{add}"
        )
    yield kept_version(sink.shown, parent, made)
    yield from (f"note: {note}" for note in notes(sink.data_dir, made))
