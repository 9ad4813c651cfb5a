"""One pass, or two: what the first wrote chunk by chunk of the source, the second shuffles row by row."""

from __future__ import annotations

import dataclasses

from apache_beam.options.pipeline_options import PipelineOptions

from beam_jobs import sources
from beam_jobs.conversion.job import Conversion
from beam_jobs.conversion.progress import Progress
from beam_jobs.plan import Origin, Plan
from beam_jobs.runs.run import run_job
from beam_jobs.sources.base import SourceOptions
from beam_jobs.target import staging
from pipeline import manifest
from pipeline.manifest import Manifest, naming


def run(plan: Plan, options: PipelineOptions) -> None:
    """Writes the shards and the manifest of a plan, in as many passes as it says.

    Raises:
      PipelineError: a worker's error, or Beam's in one line.
    """
    if plan.config.passes == 2:
        plan = _second_pass(plan, _run_first_pass(plan, options))
    run_job(Conversion(plan), options, Progress(plan))


def _run_first_pass(plan: Plan, options: PipelineOptions) -> Manifest:
    folder = plan.receipts_dir / staging.FIRST_PASS
    folder.make_folder()
    config = dataclasses.replace(plan.config, compression="")
    first = dataclasses.replace(plan, data_dir=folder, receipts_dir=folder, config=config)
    try:
        run_job(Conversion(first), options, Progress(first))
        (plan.data_dir / naming.REJECTS).remove()  # of an earlier run
    finally:
        staging.move_rejects(folder, plan.data_dir)  # before the manifest, the last of all files
    return manifest.load(folder)


def _second_pass(plan: Plan, made: Manifest) -> Plan:
    """Returns the plan that reads the records of the first pass, whose manifest is `made`."""
    encoding = "raw" if made.features["image"].encoding == "raw" else "source"
    images = dataclasses.replace(plan.sample.images, encoding=encoding, size=None)
    return dataclasses.replace(
        plan,
        source=sources.open_source(SourceOptions("tfrecord", (plan.receipts_dir / staging.FIRST_PASS).url)),
        sample=dataclasses.replace(plan.sample, images=images, source_bytes={}),
        origin=Origin(made.source, {name: split.num_rejects for name, split in made.splits.items()}),
    )
