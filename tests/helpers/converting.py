"""Data sets written without Beam, in this process: the functions that the Beam pipeline calls, in sequence."""

from __future__ import annotations

import pathlib
import signal
from collections.abc import Callable

from beam_jobs.config import ConvertConfig
from beam_jobs.conversion.command import replacing
from beam_jobs.drafts import gate
from beam_jobs.plan import Plan, make_plan
from beam_jobs.shards import keys, manifest_writer, writer
from beam_jobs.shards.receipts import Receipt
from beam_jobs.sink import sink_of
from pipeline.commands import commandline
from pipeline.files.paths import StoragePath
from tests.helpers import forked


def convert_in_process(*flags: object, write: Callable[[Plan], object] | None = None) -> pathlib.Path:
    """Converts like `python -m beam_jobs.convert` with the same flags, in one pass; returns the data set's folder.

    For tests whose subject is not Beam: it saves the 2 s of Beam's import and the 0.3 s of each pipeline.

    Args:
      *flags: flags of the command, without Beam's.
      write: function to call instead of `write_data_set`.

    Raises:
      PipelineError: the same errors as from the command.
    """
    config = commandline.parse("beam_jobs.convert", "", ConvertConfig, [str(flag) for flag in flags])
    gate.open()  # closed if a Beam job failed in this process
    sink = sink_of(config.data_dir)
    sink.check(config.dataset, config.source)
    with replacing(sink, make_plan(config, sink.data_dir), config.overwrite) as staged:
        if staged:
            (write or write_data_set)(staged)
    return pathlib.Path(config.data_dir)


def write_data_set(plan: Plan) -> pathlib.Path:
    """Writes the shards and the manifest of a plan into its folder; returns the manifest's path.

    Raises:
      PipelineError: as the pipeline.
    """
    assert plan.config.passes == 1
    receipts = list(writer.write_shards(plan, plan.elements))
    if not plan.source.unique_keys:
        check_keys(plan.data_dir, receipts)
    return pathlib.Path(str(manifest_writer.write_manifest(plan, receipts)))


def check_keys(data_dir: StoragePath, receipts: list[Receipt]) -> None:
    """Raises DataError if two records have the same key."""
    buckets: dict[int, list[keys.KeyHashes]] = {}
    for receipt in receipts:
        for bucket, hashes in keys.by_bucket(data_dir, receipt.info):
            buckets.setdefault(bucket, []).append(hashes)
    if repeated := [pair for group in buckets.values() for pair in keys.repeats(group)]:
        raise keys.as_error(data_dir, repeated)


def write_shard(plan: Plan, split: str, shard: int) -> Receipt:
    """Writes one shard of a plan."""
    return next(writer.write_shards(plan, [(split, shard)]))


_KILLED = """
import os, pathlib, signal, sys
from beam_jobs import COMMAND
from beam_jobs.sink import staging
from pipeline.files.remote import RemotePath

left, publish = [int(sys.argv[1])], staging.FUNCTION

def counted(function):
    def call(*arguments, **options):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call

def killed(*arguments):
    os.replace, pathlib.Path.unlink = counted(os.replace), counted(pathlib.Path.unlink)
    for change in ("write_bytes", "remove", "remove_folder"):
        setattr(RemotePath, change, counted(getattr(RemotePath, change)))
    return publish(*arguments)

staging.FUNCTION = killed
COMMAND.main(sys.argv[2:])
"""


def killed_in(function: str, change: int, *arguments: object, command: str = "convert") -> str:
    """Runs a command in another process, which kills itself before a change of files or objects; returns its stdout.

    Args:
      function: function of `beam_jobs.sink.staging` from which on changes are counted.
      change: number of the change, from 1 on.
      *arguments: arguments of the command.
      command: `convert` or `edit`.
    """
    program = _KILLED.replace("FUNCTION", function).replace("COMMAND", command)
    done = forked.run(["-c", program, change, *arguments])
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout
