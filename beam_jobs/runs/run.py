"""Runs a Beam pipeline in a background thread, so that the command handles signals, progress and errors."""

from __future__ import annotations

import abc
import contextlib
import os
import pathlib
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self, TextIO

import apache_beam as beam
import tqdm
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineResult, PipelineRunner

from beam_jobs import drafts
from beam_jobs.runs import failures
from beam_jobs.runs.chain import OverShards, ShardJob
from beam_jobs.runs.runners import make_runner
from pipeline import errors
from pipeline.files.paths import try_lock

_SECONDS_BETWEEN_LINES = 5.0
_MAX_POLL_SHARE = 0.05  # spend at most 5% of the time on looking: listing 99,999 shards, or a store, is slow
_COLUMNS, _LINES = 80, 24  # for a terminal that reports no size, as in some containers
_PREFIX = "stepfeed-run-"
_POLL_SECONDS = 0.1
_CANCEL_SECONDS = 5.0  # for a cluster to accept that its job is cancelled


def run_job(job: ShardJob, options: PipelineOptions, progress: Display) -> None:
    """Runs a job to its end.

    Args:
      job: the job; it writes its results itself.
      options: Beam's options, with the runner.
      progress: the display to show meanwhile.

    Raises:
      PipelineError: a worker's own error, or Beam's in one line.
    """
    with temporary_folder() as folder:
        runner, lifeline = make_runner(options, folder)
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
        raise failures.as_ours(run.failure) from run.failure


class _Run(threading.Thread):
    """A job that runs in the background.

    Attributes:
      failure: the error that it ended with; None while it runs, and if it succeeded.
    """

    def __init__(self, job: ShardJob, runner: PipelineRunner, options: PipelineOptions) -> None:
        super().__init__(daemon=True, name="beam")
        self._job, self._runner, self._options = job, runner, options
        self._result: PipelineResult | None = None
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Builds the pipeline and waits for its end."""
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
        """Cancels the job on a cluster, as the folder that it writes to will be removed."""
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

    A worker thread of Beam prints the traceback of an error that it also sends to the runner, and other threads of Beam
    print more tracebacks when a worker process ends.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes, if this is the main thread."""
        return self._stream.write(text) if threading.current_thread() is threading.main_thread() else len(text)


class Display(abc.ABC):
    """Shows the progress of a job; a context manager that removes the bar at its end.

    No runner reports progress while it runs, so each display looks into the folder that the workers write to.

    Attributes:
      seconds_between_looks: the least time between two looks.
      total: the amount of work.
      done: how much of it is done.
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
        """Work per second, without that of an earlier run."""
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
            smoothing=0,  # shards end in bursts: the mean rate since the start predicts the end better than the latest
            leave=False,
            dynamic_ncols=size.columns > 0 and size.lines > 0,
            ncols=size.columns or _COLUMNS,
            nrows=size.lines or _LINES,
        )


@contextlib.contextmanager
def temporary_folder() -> Iterator[pathlib.Path]:
    """Yields a folder for this process's temporary files; removes it at the end, and at the start those of killed runs.

    A run keeps its folder locked, and the kernel releases the lock however the process ends.
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
        with contextlib.suppress(OSError):  # it is somebody else's, or was just removed
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid == os.getuid() and try_lock(descriptor):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
