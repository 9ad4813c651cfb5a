"""The Beam pipeline of both commands, run in a background thread while the command handles signals and progress.

The pipeline is one linear chain, which every runner runs correctly:

    shards -> Reshuffle -> work on them -> group by bucket -> find repeated keys -> group all -> write the result

Elements are lists of shards, the result of each shard, and hashes of keys; no pixel goes through a shuffle. Apart from
Reshuffle, the transforms are primitive: `Create` and `CombineGlobally` expand to a dozen each, which takes Beam as long
to set up as one core needs to convert 10,000 images.

Runners pass a worker's error on as text. With Flink and Spark, that text is a series of Java stack traces; from these,
and from any other failure, one line is reported.
"""

from __future__ import annotations

import abc
import base64
import contextlib
import os
import pathlib
import pickle
import re
import shutil
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TextIO

import apache_beam as beam
import grpc
import requests
import tqdm
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineResult, PipelineRunner

from beam_jobs import drafts
from beam_jobs.runs import runners
from pipeline import errors
from pipeline.files.paths import try_lock

FOUND = -1  # bucket of the shards' results; keys are in buckets 0 to 255


class ShardJob(abc.ABC):
    """The work of a pipeline on the shards of a data set; pickled and sent to every worker.

    Runners retry bundles and may run one twice, so `work` must be idempotent.
    """

    @property
    @abc.abstractmethod
    def shards(self) -> Sequence[Any]:
        """Shards to work on."""

    @abc.abstractmethod
    def work(self, shards: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """Yields (FOUND, result) for each given shard, and (bucket, hashes), for example hashes of its keys."""

    @abc.abstractmethod
    def repeated(self, hashes: Iterable[Any]) -> Sequence[Any]:
        """Returns the repeated items of one bucket, for example keys, that `finish` needs."""

    @abc.abstractmethod
    def finish(self, found: list[Any], repeated: list[Any]) -> str:
        """Writes the job's result and returns its path. A shard that was retried is in `found` twice."""


class OverShards(beam.PTransform):
    """Runs a job; the only output element is the path of its result."""

    def __init__(self, job: ShardJob) -> None:
        super().__init__()
        self._job = job

    def expand(self, pbegin: beam.Pipeline) -> beam.PCollection:
        """Builds the chain."""
        # One element per worker, so that it can begin a shard while it writes another. Runners that use other machines
        # get one element per shard, to distribute as they see fit.
        shards = self._job.shards
        step = runners.workers(pbegin.pipeline) or len(shards)
        parts = [shards[start::step] for start in range(min(step, len(shards)))]
        # Not Map: it wraps its function in a lambda, whose code would be sent to every worker by value.
        return (
            pbegin
            | "Begin" >> beam.Impulse()
            | "ShardNumbers" >> beam.FlatMap(_each, parts)
            | "Spread" >> beam.Reshuffle()
            | "MakeShards" >> beam.FlatMap(_work, self._job)
            | "Group" >> beam.GroupByKey()
            | "CheckKeys" >> beam.FlatMap(_check_group, self._job)
            | "Gather" >> beam.GroupByKey()
            | "WriteResult" >> beam.FlatMap(_finish, self._job)
        )


def _each(_: bytes, parts: list[Sequence[Any]]) -> list[Sequence[Any]]:
    return parts


def _work(shards: Sequence[Any], job: ShardJob) -> Iterator[tuple[int, Any]]:
    with carried():
        yield from job.work(shards)


def _check_group(group: tuple[int, Iterable[Any]], job: ShardJob) -> Iterator[tuple[int, Any]]:
    bucket, values = group
    with carried():
        for value in values if bucket == FOUND else job.repeated(values):
            yield FOUND, (bucket, value)


def _finish(group: tuple[int, Iterable[Any]], job: ShardJob) -> list[str]:
    values = list(group[1])
    found = [value for bucket, value in values if bucket == FOUND]
    with carried():
        return [job.finish(found, [value for bucket, value in values if bucket != FOUND])]


_SECONDS_BETWEEN_LINES = 5.0
_MAX_POLL_SHARE = 0.05  # at most 5% of the time goes into looking: listing 99,999 shards, or a store, is slow
_COLUMNS, _LINES = 80, 24  # if the terminal reports no size, as in some containers
_PREFIX = "stepfeed-run-"
_POLL_SECONDS = 0.1
_CANCEL_SECONDS = 5.0  # for a cluster to accept the cancellation of its job


def run_job(job: ShardJob, options: PipelineOptions, progress: Display) -> None:
    """Runs a job to its end.

    Args:
      job: job to run; it writes its results itself.
      options: Beam's options, with the runner.
      progress: display to show in the meantime.

    Raises:
      PipelineError: a worker's own error, or Beam's in one line.
    """
    with temporary_folder() as folder:
        runner, lifeline = runners.make_runner(options, folder)
        run = _Run(job, runner, options)
        drafts.gate.open()
        ended, loud = False, sys.stderr
        try:
            with progress:
                sys.stderr = MainThreadOnly(loud)  # type: ignore[assignment]
                run.start()
                while run.is_alive():
                    run.join(_POLL_SECONDS)
                    progress.show()
            ended = run.failure is None
        finally:
            # After Ctrl-C the runner's threads and processes are still at work; after a failure some may be.
            if ended:
                sys.stderr = loud
            if lifeline:
                lifeline.cut()
            elif not ended and not run.failure:
                run.cancel()
            if not ended:
                drafts.gate.shut()
    if run.failure:
        raise as_ours(run.failure) from run.failure


class _Run(threading.Thread):
    """A job that runs in the background.

    Attributes:
      failure: error that the job ended with; None while it runs, and if it succeeded.
    """

    def __init__(self, job: ShardJob, runner: PipelineRunner, options: PipelineOptions) -> None:
        super().__init__(daemon=True, name="beam")
        self._job, self._runner, self._options = job, runner, options
        self._result: PipelineResult | None = None
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Builds the pipeline and waits for it to end."""
        try:
            pipeline = beam.Pipeline(self._runner, self._options)
            pipeline | OverShards(self._job)
            self._result = pipeline.run()
            state = self._result.wait_until_finish()
            if state not in (None, "DONE"):
                raise errors.TransientError(f"the runner ended in state {state}; see its log")
        except BaseException as error:
            self.failure = error

    def cancel(self) -> None:
        """Cancels a job on a cluster, because the folder it writes to is about to be removed."""
        if (result := self._result) is None:
            return

        def work() -> None:
            with contextlib.suppress(Exception):
                result.cancel()

        thread = threading.Thread(target=work, daemon=True, name="cancel")
        thread.start()
        thread.join(_CANCEL_SECONDS)


class MainThreadOnly:
    """A text stream that drops the output of other threads.

    A Beam worker thread prints the traceback of an error that it also sends to the runner, and other Beam threads print
    more tracebacks when a worker process ends.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes, if this is the main thread."""
        return self._stream.write(text) if threading.current_thread() is threading.main_thread() else len(text)


class Display(abc.ABC):
    """Shows the progress of a job; a context manager that removes the bar on exit.

    No runner reports progress while it runs, so displays look into the folder that the workers write to.

    Attributes:
      seconds_between_looks: shortest time between two looks.
      total: total amount of work.
      done: finished amount of work.
      finished: number of finished shards.
    """

    seconds_between_looks = 0.5

    def __init__(self, total: int) -> None:
        self.total, self.done, self.finished = total, 0, 0
        self._poll()
        self._at_start = self.done
        self._started = time.monotonic()
        self._next_line = self._started + _SECONDS_BETWEEN_LINES
        self._bar = self._new_bar() if sys.stderr.isatty() else None

    @abc.abstractmethod
    def text(self) -> str:
        """Returns the progress in one line."""

    @abc.abstractmethod
    def _look(self) -> None:
        """Updates `done` and `finished`."""

    @property
    def rate(self) -> float:
        """Work per second, not counting an earlier run's."""
        return (self.done - self._at_start) / max(time.monotonic() - self._started, 1e-9)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self) -> None:
        """Moves the bar, or prints a line if the last one is five seconds old."""
        now = time.monotonic()
        if self._bar is not None and now >= self._next_look:
            self._poll()
            self._bar.n = self.done
            self._bar.set_description_str(self.text())
        elif self._bar is None and now >= self._next_line:
            self._poll()
            self._next_line = now + _SECONDS_BETWEEN_LINES
            left = tqdm.tqdm.format_interval((self.total - self.done) / self.rate) if self.rate else ""
            print(f"{self.text()}{left and f', {left} left'}", flush=True)

    def _poll(self) -> None:
        began = time.monotonic()
        self._look()
        now = time.monotonic()
        self._next_look = now + max(self.seconds_between_looks, (now - began) / _MAX_POLL_SHARE)

    def _new_bar(self) -> tqdm.tqdm:
        size = os.get_terminal_size(sys.stderr.fileno())
        return tqdm.tqdm(
            desc=self.text(),
            total=self.total,
            initial=self.done,
            bar_format="{percentage:3.0f}%|{bar}| {desc}, {elapsed}<{remaining}",
            smoothing=0,  # shards finish in bursts: the mean rate predicts the end better than the latest
            leave=False,
            dynamic_ncols=size.columns > 0 and size.lines > 0,
            ncols=size.columns or _COLUMNS,
            nrows=size.lines or _LINES,
        )


@contextlib.contextmanager
def temporary_folder() -> Iterator[pathlib.Path]:
    """Yields a folder for this process's temporary files and removes it at the end; removes killed runs' folders first.

    A run keeps its folder locked; the kernel releases the lock however the process ends.
    """
    outer = tempfile.tempdir
    place = pathlib.Path(tempfile.gettempdir())
    _remove_abandoned(place)
    made, descriptor = _make_locked(place)
    tempfile.tempdir = os.fspath(made)
    try:
        yield made
    finally:
        tempfile.tempdir = outer
        shutil.rmtree(made, ignore_errors=True)  # after Ctrl-C, a runner's threads may still write there
        os.close(descriptor)


def _make_locked(place: pathlib.Path) -> tuple[pathlib.Path, int]:
    while True:
        made = pathlib.Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        with contextlib.suppress(FileNotFoundError):  # another run removed it before it was locked
            descriptor = os.open(made, os.O_RDONLY)
            if try_lock(descriptor) and made.exists():
                return made, descriptor
            os.close(descriptor)


def _remove_abandoned(place: pathlib.Path) -> None:
    for path in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # it belongs to someone else, or was just removed
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid == os.getuid() and try_lock(descriptor):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


_WORKER_DIED = "Channel closed prematurely"  # all that Beam reports
_CARRIED = re.compile(r"\[pickled: ([A-Za-z0-9+/=]+)\]")
_FRAME = re.compile(r"^\s*(?:at [\w.$/<>]+\(.*\)|\.\.\. \d+ .*)$", re.MULTILINE)
_CAUSE = re.compile(r"^\s*Caused by: (.*\S)", re.MULTILINE)
_PYTHON = re.compile(r"Traceback .*?:$(.*?)^\s+at [\w.$/]+\(", re.MULTILINE | re.DOTALL)  # a worker's own error
_PREAMBLE = re.compile(r"Pipeline \S+ failed in state \w+: ")  # Beam's
_PACKAGE = re.compile(r"\b(?:[a-z]\w*\.){2,}(?=[A-Z])")  # a Java class's package: org.apache.flink.util.
# In messages about a lost task manager, executor or worker pool, or a lost connection.
_LOST = re.compile(
    r"client cancelled|UNAVAILABLE|ConnectException|RemoteTransportException|TaskManager with id|ExecutorLostFailure|"
    r"ConnectionClosed|NoResourceAvailable"
)


@contextlib.contextmanager
def carried() -> Iterator[None]:
    """Context manager for workers: wraps our errors in ones whose text holds the original, pickled, for `as_ours`."""
    try:
        yield
    except errors.PipelineError as error:
        packed = base64.b64encode(pickle.dumps(error)).decode()
        raise RuntimeError(f"{type(error).__name__}: {error} [pickled: {packed}]") from error


def as_ours(failure: BaseException) -> errors.PipelineError:
    """Returns our error from `failure` or its causes; if there is none, an error with Beam's message."""
    error: BaseException | None = failure
    while error is not None:
        if isinstance(error, errors.PipelineError):
            return error
        if match := _CARRIED.search(str(error)):
            found: errors.PipelineError = pickle.loads(base64.b64decode(match[1]))
            return found
        error = error.__cause__ or error.__context__
    if lost := _what_is_gone(failure):
        return errors.TransientError(lost)
    if cause := _root_cause(str(failure)):
        if _LOST.search(cause):
            return errors.TransientError(
                f"the cluster lost a worker ({cause}); run the same command again (docs/clusters.md: when a machine "
                "dies)"
            )
        return errors.DataError(f"the job failed on the cluster: {cause}")
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()] or ["no message"]
    return errors.DataError(f"Beam: {type(failure).__name__}: {lines[-1]}")


def _what_is_gone(failure: BaseException) -> str | None:
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


def _root_cause(text: str) -> str | None:
    """Returns the innermost error in Java stack traces, without its package; None if the text has no stack traces.

    If a Python worker's traceback is among them, its last line is returned.
    """
    if not _FRAME.search(text):
        return None
    if workers_own := _PYTHON.findall(text):
        return str(workers_own[-1].strip().splitlines()[-1].strip())
    causes = _CAUSE.findall(text) or [_PREAMBLE.sub("", text, count=1).splitlines()[0].strip()]
    message = causes[-1].partition(": ")[2]
    # Netty's innermost error repeats the system's message without the address, which an outer one has.
    fullest = max((cause for cause in causes if message and message in cause), key=len, default=causes[-1])
    return _PACKAGE.sub("", fullest)
