"""One pass, or two: what the first wrote chunk by chunk of the source, the second shuffles row by row."""

from __future__ import annotations

import dataclasses
import pathlib

from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs import sources
from beam_jobs.conversion.job import ConvertDataset
from beam_jobs.conversion.progress import Progress
from beam_jobs.plan import Origin, Plan
from beam_jobs.runs import run
from beam_jobs.sources.base import SourceOptions
from beam_jobs.storage import paths, write
from beam_jobs.target import staging
from pipeline import manifest
from pipeline.errors import DataError, PipelineError
from pipeline.manifest import Manifest, naming


def run_once(plan: Plan, options: PipelineOptions) -> None:
    """Writes the shards and the manifest of a plan; raises as `run.run_transform`."""
    run.run_transform(ConvertDataset(plan), options, Progress(plan))


def run_both(plan: Plan, options: PipelineOptions) -> None:
    """Writes the shards and the manifest of a plan by way of an inner folder with those of the first pass.

    Raises:
      PipelineError: as `run_once`.
    """
    folder, first = paths.path_of(plan.data_dir), paths.path_of(plan.receipts_dir) / staging.FIRST_PASS
    place = paths.text_of(first)
    try:
        if isinstance(first, pathlib.Path):
            first.mkdir(exist_ok=True)
    except OSError as error:
        raise DataError(f"{first}: cannot be made: {error.strerror or error}") from None
    try:
        run_once(dataclasses.replace(plan, data_dir=place, own_receipts_dir=place, compression=""), options)
    except PipelineError:
        staging.keep_rejects(first, folder)
        raise
    made = manifest.load(first)
    again = dataclasses.replace(
        plan,
        source=sources.open_source(SourceOptions("tfrecord", place)),
        images=dataclasses.replace(plan.images, encoding=_as_stored(made), size=None),
        source_bytes={},
        own_receipts_dir=plan.receipts_dir,
        origin=Origin(made.source, {name: split.num_rejects for name, split in made.splits.items()}),
    )
    write.remove(folder / naming.REJECTS)  # of an earlier run
    staging.keep_rejects(first, folder)  # before the manifest, the last of all files
    run_once(again, options)


def _as_stored(made: Manifest) -> str:
    return "raw" if made.features["image"].encoding == "raw" else "source"
