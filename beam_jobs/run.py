"""Runs the Beam pipeline of a plan in the background, so that signals, the bar and errors stay with the command."""

from __future__ import annotations

import re
import threading

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineRunner

from beam_jobs import jobs, write
from beam_jobs.plan import Plan
from beam_jobs.progress import Progress
from beam_jobs.quiet import quiet_threads
from beam_jobs.runners import make_runner
from pipeline import errors

_POLL_SECONDS = 0.1
_WORKER_DIED = "Channel closed prematurely"  # all that Beam says of it
# A worker in another process sends its exception as text: the traceback, and where in the pipeline it was.
_OUR_ERROR = re.compile(r"^(?:\w+: )?pipeline\.errors\.(\w+Error): (.*?)(?: \[while running .*)?$", re.MULTILINE)


def run(plan: Plan, options: PipelineOptions) -> None:
    """Writes the shards and the manifest of a plan.

    Args:
      plan: what to write.
      options: Beam's, with the runner.

    Raises:
      PipelineError: a worker's own error, or what Beam says in one line.
    """
    runner, lifeline = make_runner(options)
    failures: list[BaseException] = []
    thread = threading.Thread(target=_run, args=(plan, options, runner, failures), daemon=True, name="beam")
    write.gate.open()
    ended = False
    try:
        with Progress(plan) as progress, quiet_threads():
            thread.start()
            while thread.is_alive():
                thread.join(_POLL_SECONDS)
                progress.show()
        ended = not failures
    finally:
        # After Ctrl-C the runner's threads and processes are still at work; after a failure some can be.
        if lifeline:
            lifeline.cut()
        if not ended:
            write.gate.shut()
    if failures:
        raise as_one_line(failures[0]) from failures[0]


def _run(plan: Plan, options: PipelineOptions, runner: PipelineRunner, failures: list[BaseException]) -> None:
    try:
        pipeline = beam.Pipeline(runner, options)
        pipeline | "Convert" >> jobs.ConvertDataset(plan)
        state = pipeline.run().wait_until_finish()
        if state not in (None, "DONE"):
            raise errors.DataError(f"the runner ended in state {state}; see its log")
    except BaseException as error:
        failures.append(error)


def as_one_line(failure: BaseException) -> errors.PipelineError:
    """Returns the error of ours that is in `failure`, its causes or their texts; else one of Beam's last line."""
    error: BaseException | None = failure
    while error is not None:
        if match := _OUR_ERROR.search(f"{type(error).__module__}.{type(error).__name__}: {error}"):
            kind = getattr(errors, match[1], errors.DataError)
            return kind(match[2]) if issubclass(kind, errors.PipelineError) else errors.DataError(match[2])
        error = error.__cause__ or error.__context__
    if _WORKER_DIED in str(failure):
        return errors.DataError("a worker process died (out of memory?); run again with fewer --direct_num_workers")
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()] or ["no message"]
    return errors.DataError(f"Beam: {type(failure).__name__}: {lines[-1]}")
