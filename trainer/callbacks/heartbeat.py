"""Signs of life for a launcher and a run's page: a file with the process's last `Beat`, written about once per second.

A thread writes it, even during long calls into TensorFlow. A live process may still hang, so the file counts beats and
achievements separately: a process in a hung collective beats without achieving anything.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import os
import pathlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Self

from pipeline.errors import EXIT_DATA, PipelineError, line_of
from trainer import journal
from trainer.callbacks.base import Callback, Phase
from trainer.journal import Beat
from trainer.loop import Progress
from trainer.run_folder import RunFolder

VARIABLE = "STEPFEED_HEARTBEAT"  # path of the file; unset if nobody reads it
_BETWEEN = 1.0  # seconds between beats
_SOON = 0.2  # a new phase is written immediately if the last beat is at least this many seconds old
_HANGS = 5.0  # seconds that an ending process waits for the file system of the run's folder
_WINDOW = 10  # beats over which speeds are averaged
_PATIENCE = 5.0  # times the slowest loop so far


class Heartbeat(Callback):
    """Context that writes beats to a file and copies them to the run's folder, if there are any."""

    def __init__(self, path: str | None = None) -> None:
        self._path = pathlib.Path(path) if path else None
        now = time.time()
        job = os.environ.get(journal.JOB, "")
        self._beat = Beat(os.getpid(), now, job, started=now, host=socket.gethostname())
        self._written, self._achieved_at = -math.inf, time.monotonic()
        self._rows, self._steps_per_loop = 0, 1
        self._slowest, self._evaluates = 0.0, False
        self._seen: collections.deque[Progress] = collections.deque(maxlen=_WINDOW)
        self._progress: Progress | None = None
        self._lock, self._ended, self._is_beating = threading.RLock(), threading.Event(), False
        self._copier: threading.Thread | None = None

    @classmethod
    def of_environment(cls) -> Heartbeat:
        """Returns a heartbeat that writes to the file named in the environment."""
        return cls(os.environ.get(VARIABLE) or None)

    def keep_in(self, folder: RunFolder, name: str, is_chief: bool) -> None:
        """Also copies the beats to the run's folder, for `trainer.watch`.

        The folder may be on a file system that hangs, which must not hold up training, so another thread writes there.

        Args:
          folder: folder of the run.
          name: name of this process: `worker-1`.
          is_chief: whether this process has locked the folder, and creates the heartbeats' folder in it.
        """
        path = folder.heartbeats / f"{name}.json"
        with contextlib.suppress(OSError):
            if self._path and path.resolve() == self._path.resolve():  # it is the launcher's own file
                return
            if is_chief:
                path.parent.mkdir(parents=True, exist_ok=True)
            copier = threading.Thread(
                target=self._run_copies, args=(path,), name="copies of the heartbeat", daemon=True
            )
            with self._lock:  # the thread waits for it
                copier.start()
                self._copier = copier
                self._start()

    def on_devices(self, devices: Sequence[str]) -> None:
        """Notes the devices of the process."""
        with self._lock:
            self._beat = dataclasses.replace(self._beat, devices=tuple(devices))

    def job(self, last_step: int, rows: int, steps_per_loop: int = 1) -> None:
        """Sets the step at which training ends, the number of batch rows, and the most steps per loop."""
        with self._lock:
            self._rows, self._steps_per_loop = rows, steps_per_loop
            self._beat = dataclasses.replace(self._beat, last_step=last_step)

    def on_phase(self, phase: Phase) -> None:
        """Counts the phase as progress; writes it immediately if the last beat is not recent or beats may now stop."""
        with self._lock:
            self._evaluates = False
            self._achieve(phase=phase.name, expects=phase.expects, quiet=phase.quiet)
            if time.monotonic() - self._written > _SOON or phase.quiet:
                self._write()

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Context for the phase `saving`, after which the previous phase continues."""
        before = self._beat
        self.on_phase(Phase("saving"))
        yield
        self.on_phase(Phase(before.phase, before.expects, before.quiet))

    def on_end(self, step: int) -> None:
        """Begins the phase `finishing`."""
        self.on_phase(Phase("finishing"))

    def on_loop(self, progress: Progress) -> None:
        """Counts the loop as progress, and estimates how long the next one may take."""
        with self._lock:
            is_first, self._progress = self._progress is None, progress
            if self._beat.expects == "steps":
                self._slowest = max(self._slowest, time.monotonic() - self._achieved_at)
            # The first loop is one step, mostly compiling, which does not show how long a whole loop takes.
            patience = progress.compiling.seconds * self._steps_per_loop if is_first else _PATIENCE * self._slowest
            step = {"step": progress.step, "made": progress.spent.steps, "patience": round(patience, 3)}
            self._achieve(phase="training", expects="steps", quiet=0.0, **step)
            if is_first:  # from here on, a kill does not count as a failure at start-up
                self._write()

    def on_evaluation_loop(self) -> None:
        """Counts the previous loop as progress."""
        with self._lock:  # the first loop is compiled, which may take long: only expect the end of the phase
            if self._evaluates:
                self._slowest = max(self._slowest, time.monotonic() - self._achieved_at)
            patience = round(_PATIENCE * self._slowest, 3)
            self._achieve(expects="steps" if self._evaluates else "end", patience=patience)
            self._evaluates = True

    def __enter__(self) -> Self:
        if self._path:
            self._start()
        return self

    def _start(self) -> None:
        self._write()
        if not self._is_beating:
            self._is_beating = True
            threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Writes how the process ended."""
        with self._lock:
            self._ended.set()
            code = 0 if error is None else getattr(error, "exit_code", EXIT_DATA)
            self._beat = dataclasses.replace(self._beat, exit_code=code, error=line_of(error) if error else None)
            self.on_lost(error.lost if isinstance(error, PipelineError) else self._beat.lost)
        if self._copier:
            self._copier.join(_HANGS)

    def on_lost(self, names: Sequence[str]) -> None:
        """Writes the names before the line about them goes to stderr, so that the launcher holds that line back."""
        with self._lock:
            self._beat = dataclasses.replace(self._beat, lost=tuple(names))
            self._write()

    def _achieve(self, **changes: Any) -> None:
        self._achieved_at = time.monotonic()
        self._beat = dataclasses.replace(self._beat, achieved=self._beat.achieved + 1, **changes)

    def _run(self) -> None:
        while not self._ended.wait(_BETWEEN):
            with self._lock:
                if not self._ended.is_set():
                    self._write()

    def _run_copies(self, path: pathlib.Path) -> None:
        is_last = False
        while not is_last:
            with self._lock:  # held by `__exit__` until the last beat is complete
                is_last, beat = self._ended.is_set(), self._beat
            journal.write(beat, path)  # unless the chief has not made the folder yet
            self._ended.wait(_BETWEEN)

    def _write(self) -> None:
        if not (self._path or self._copier):
            return
        self._written = time.monotonic()
        self._beat = dataclasses.replace(self._beat, time=time.time(), beats=self._beat.beats + 1, **self._speeds())
        if self._path:
            journal.write(self._beat, self._path)  # unless the disk is full: the launcher reports the silence

    def _speeds(self) -> dict[str, Any]:
        # A compiled step says nothing about other steps, least of all which worker they wait for.
        if self._progress is None or self._progress.spent.steps <= self._progress.compiling.steps:
            return {}
        self._seen.append(self._progress)
        earliest = self._seen[0] if self._seen[0].step < self._progress.step else None
        spent = self._progress.since(earliest)
        if spent.seconds <= 0:
            return {}
        return {
            "examples_per_second": round(spent.rate(self._rows), 1),
            "input_wait": round(spent.waiting, 3),
            "seconds_per_step": round(spent.seconds / spent.steps, 6),
            "waited_per_step": round(spent.waited / spent.steps, 6),
            "exchanged_per_step": round(spent.exchanged / spent.steps, 6) if spent.exchanged else None,
        }
