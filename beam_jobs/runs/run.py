"""Runs a Beam pipeline in a background thread, so that the command handles signals, progress and errors."""

from __future__ import annotations

import contextlib
import pathlib
import re
import sys
import threading
import urllib.parse
from typing import Any, TextIO

import apache_beam as beam
import grpc
import requests
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineResult

from beam_jobs.runs import java_failure, temporary
from beam_jobs.runs.chain import OverShards, ShardJob
from beam_jobs.runs.display import Display
from beam_jobs.runs.runners import make_runner
from beam_jobs.storage import write
from pipeline import errors

_POLL_SECONDS = 0.1
_CANCEL_SECONDS = 5.0  # for a cluster to accept that its job is cancelled
_WORKER_DIED = "Channel closed prematurely"  # all that Beam reports
# A worker in another process sends its exception as text: the traceback, and where in the pipeline it was.
_OUR_ERROR = re.compile(r"^(?:\w+: )?pipeline\.errors\.(\w+Error): (.*?)(?: \[while running .*)?$", re.MULTILINE)


class MainThreadOnly:
    """A text stream that drops what other threads write.

    A worker thread of Beam prints the traceback of an error that it also sends to the runner, and its other threads
    end with tracebacks of their own when a worker process goes.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes, if this is the main thread."""
        return self._stream.write(text) if threading.current_thread() is threading.main_thread() else len(text)


def run_job(job: ShardJob, options: PipelineOptions, progress: Display) -> None:
    """Runs a job to its end.

    Args:
      job: the job; it writes its results itself.
      options: Beam's options, with the runner.
      progress: the display to show meanwhile.

    Raises:
      PipelineError: a worker's own error, or Beam's in one line.
    """
    with temporary.folder() as folder:
        _run_with(job, options, progress, folder)


def _run_with(job: ShardJob, options: PipelineOptions, progress: Display, folder: pathlib.Path) -> None:
    runner, lifeline = make_runner(options, folder)
    failures: list[BaseException] = []
    results: list[PipelineResult] = []

    def work() -> None:
        try:
            pipeline = beam.Pipeline(runner, options)
            pipeline | OverShards(job)
            results.append(pipeline.run())
            state = results[0].wait_until_finish()
            if state not in (None, "DONE"):
                raise errors.TransientError(f"the runner ended in state {state}; see its log")
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work, daemon=True, name="beam")
    write.gate.open()
    ended, loud = False, sys.stderr
    try:
        with progress:
            sys.stderr = MainThreadOnly(loud)  # type: ignore[assignment]
            thread.start()
            while thread.is_alive():
                thread.join(_POLL_SECONDS)
                progress.show()
        ended = not failures
    finally:
        # After Ctrl-C the runner's threads and processes are still at work; after a failure some may be.
        if ended:
            sys.stderr = loud
        if lifeline:
            lifeline.cut()
        elif not ended and not failures:
            _cancel(results)
        if not ended:
            write.gate.shut()
    if failures:
        raise as_one_line(failures[0]) from failures[0]


def _cancel(results: list[PipelineResult]) -> None:
    """Cancels the job on a cluster: when the command ends, the folder that the job writes to is removed."""

    def cancel() -> None:
        with contextlib.suppress(Exception):
            results[0].cancel()

    if results:
        thread = threading.Thread(target=cancel, daemon=True, name="cancel")
        thread.start()
        thread.join(_CANCEL_SECONDS)


def as_one_line(failure: BaseException) -> errors.PipelineError:
    """Returns our own error found in `failure`, its causes or their texts; else one with the last line of Beam's."""
    error: BaseException | None = failure
    while error is not None:
        if match := _OUR_ERROR.search(f"{type(error).__module__}.{type(error).__name__}: {error}"):
            kind = getattr(errors, match[1], errors.DataError)
            return kind(match[2]) if issubclass(kind, errors.PipelineError) else errors.DataError(match[2])
        error = error.__cause__ or error.__context__
    if lost := _what_is_gone(failure):
        return errors.TransientError(lost)
    if on_cluster := java_failure.as_error(str(failure)):
        return on_cluster
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()] or ["no message"]
    return errors.DataError(f"Beam: {type(failure).__name__}: {lines[-1]}")


def _what_is_gone(failure: BaseException) -> str | None:
    """Returns which process is lost, if that is why a run failed."""
    if _WORKER_DIED in str(failure):
        return "a worker process died (out of memory?); run again with fewer --direct_num_workers"
    if isinstance(failure, grpc.FutureTimeoutError):
        return "the runner's job server does not answer"
    if isinstance(failure, grpc.RpcError):
        reason = failure.details() if isinstance(failure, grpc.Call) else str(failure)
        return f"the runner's job server is gone or failed: {' '.join(str(reason).split())}"
    if isinstance(failure, requests.ConnectionError):  # that is how an uber jar's job is watched
        address = urllib.parse.urlsplit(str(failure.request.url)).netloc if failure.request else "the given address"
        return f"Flink does not answer any more at {address}; run the same command again once it does"
    return None
