"""Data sets written without Beam, in this process: the functions that the Beam pipeline calls, one after the other."""

from __future__ import annotations

import pathlib

from beam_jobs.config import ConvertConfig
from beam_jobs.conversion import command as conversion
from beam_jobs.plan import Plan
from beam_jobs.shards import key_check, manifest_writer, writer
from pipeline.commands import commandline


def convert_in_process(*flags: object) -> pathlib.Path:
    """Converts as `python -m beam_jobs.convert` does with the same flags, in one pass; returns the data set's folder.

    For tests whose subject is not Beam: it saves the 2 s of Beam's import and the 0.3 s of each pipeline.

    Raises:
      PipelineError: as the command.
    """
    config = commandline.parse("beam_jobs.convert", "", ConvertConfig, [str(flag) for flag in flags])
    assert config.passes == 1
    data_dir, place, _ = conversion._where_to(config)
    plan, _ = conversion.make_plan(config, data_dir)
    with place.locked(data_dir), place.opened(data_dir, plan, None) as staged:
        write_data_set(staged)
        place.publish(staged, data_dir, None)
    assert isinstance(data_dir, pathlib.Path)
    return data_dir


def write_data_set(plan: Plan) -> pathlib.Path:
    """Writes the shards and the manifest of a plan into its folder; returns the manifest's path.

    Raises:
      PipelineError: as the pipeline.
    """
    receipts = list(writer.make_shards(plan, plan.elements))
    if not plan.source.unique_keys:
        check_keys(plan.data_dir, receipts)
    return pathlib.Path(str(manifest_writer.publish(plan, receipts)))


def check_keys(data_dir: str, receipts: list[writer.Receipt]) -> None:
    """Raises DataError where two records have one key."""
    buckets: dict[int, list[key_check.KeyHashes]] = {}
    for receipt in receipts:
        for bucket, hashes in key_check.by_bucket(data_dir, receipt.info):
            buckets.setdefault(bucket, []).append(hashes)
    if repeated := [pair for group in buckets.values() if (pair := key_check.first_repeated(group))]:
        raise key_check.as_error(data_dir, repeated)
