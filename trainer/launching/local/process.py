"""One process of a job: started in its own process group, followed, and ended with its children.

Processes write to files, not to pipes: if the launcher is killed, a pipe would end them before they have saved.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from pipeline import errors
from pipeline.errors import EXIT_DATA, EXIT_RERUN, EXIT_USAGE
from trainer.callbacks import heartbeat
from trainer.callbacks.heartbeat import Beat
from trainer.launching.local.guardian import Guardian

_MOST_KEPT = 20  # last lines


class Tail:
    """Follows a file that another process writes, line by line.

    Attributes:
      path: the file.
      last: the last lines of it that were read.
    """

    def __init__(self, path: pathlib.Path) -> None:
        """Follows what is added from now on; creates the file if it is missing."""
        self.path = path
        path.touch()
        self._file = path.open("rb", buffering=0)
        self._file.seek(0, 2)
        self._rest = b""
        self.last: collections.deque[str] = collections.deque(maxlen=_MOST_KEPT)

    def lines(self, is_end: bool = False) -> list[str]:
        """Returns the new lines; at the end of the process also a last one without a newline."""
        *whole, self._rest = (self._rest + self._file.readall()).split(b"\n")
        if is_end and self._rest:
            whole, self._rest = [*whole, self._rest], b""
        lines = [line.decode(errors="replace").rstrip("\r") for line in whole]
        self.last.extend(line for line in lines if line.strip())
        return lines

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


_MEANINGS = {
    EXIT_DATA: "bad data, or an error in the program",
    EXIT_USAGE: "a flag cannot work",
    EXIT_RERUN: "not done, to be resumed",
}
_SIGNALS = 128  # exit codes above it are those of a shell for signals


@dataclasses.dataclass(frozen=True)
class ExitStatus:
    """How a process ended, and whether it is worth starting again.

    Attributes:
      code: exit code; if a signal killed it, minus the signal's number.
      silence: why the launcher killed it; empty if it did not.
    """

    code: int
    silence: str = ""

    @property
    def is_good(self) -> bool:
        """Whether the process did what it was to do."""
        return self.code == 0

    @property
    def is_restartable(self) -> bool:
        """Whether the same command may succeed when it is run again."""
        return self.code not in (0, EXIT_DATA, EXIT_USAGE)

    @property
    def exit_code(self) -> int:
        """As a shell gives it: 128 + the signal."""
        return _SIGNALS - self.code if self.code < 0 else self.code

    def __str__(self) -> str:
        """What happened to the process."""
        if self.silence:
            return f"{self.silence}, and was killed"
        if self.code < 0 or self.code > _SIGNALS:
            return f"was killed by {_name_of(self.exit_code - _SIGNALS)}"
        meaning = _MEANINGS.get(self.code)
        return f"ended with exit code {self.code}{f' ({meaning})' if meaning else ''}"


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_STARTING_SECONDS = 60.0  # added to the timeout before the first beat: Python starts slowly on a busy machine
_LONG = 10.0  # times the timeout, for phases in which nothing can be counted, such as compiling
_MISSED = 4.0  # seconds after which a beat is late


class HeartbeatMonitor:
    """Reads the heartbeats of a process and notices silence: the process is stopped, stuck, or makes no progress.

    Only the launcher's clock is used; that of the process may differ.

    Args:
      path: the heartbeat file.
      timeout: seconds after which a process is silent.
      now: when the process was started, in seconds of a monotonic clock.

    Attributes:
      beat: the newest; None: there was none.
    """

    def __init__(self, path: pathlib.Path, timeout: float, now: float) -> None:
        self._path, self._timeout = path, timeout
        self.beat: Beat | None = None
        self._heard = self._achieved = self._now = now

    def hear(self, now: float) -> None:
        """Reads the heartbeat file."""
        self._now = now
        beat = Beat.read(self._path)
        if beat is None or (self.beat and beat.beats == self.beat.beats):
            return
        if self.beat is None or beat.achieved != self.beat.achieved:
            self._achieved = now
        self.beat, self._heard = beat, now

    @property
    def lost(self) -> Sequence[str]:
        """Names of the processes that this one says it has lost."""
        return self.beat.lost if self.beat else ()

    @property
    def has_stepped(self) -> bool:
        """Whether the process has made a step."""
        return self.beat is not None and self.beat.made > 0

    @property
    def unheard(self) -> float:
        """Seconds since the last beat."""
        return self._now - self._heard

    @property
    def is_late(self) -> bool:
        """Whether a beat is overdue: a sign of which process of several made the others fail."""
        return self.beat is not None and self.unheard > _MISSED + self.beat.quiet

    @property
    def silence(self) -> str:
        """What has been missing for too long, in words; empty: nothing has."""
        if self.beat is None:
            is_silent = self.unheard > self._timeout + _STARTING_SECONDS
            return f"gave no sign of life for {self.unheard:.0f} s" if is_silent else ""
        if self.unheard > self._timeout + self.beat.quiet:
            return f"gave no sign of life for {self.unheard:.0f} s{self._where()}"
        return f"made no progress for {self._now - self._achieved:.0f} s{self._where()}" if self._hangs() else ""

    def _hangs(self) -> bool:
        assert self.beat is not None
        passed, expected = self._now - self._achieved, self.beat.expects
        if expected == "steps":
            return passed > max(self._timeout, self.beat.patience)
        return expected == "end" and passed > _LONG * self._timeout + self.beat.quiet

    def _where(self) -> str:
        assert self.beat is not None
        step = "" if self.beat.step is None else f" after step {self.beat.step}"
        return f"{step} ({self.beat.phase})"


PAGE = "page"  # the role of the process that serves the job's page, which is not part of the job
_PR_SET_PDEATHSIG = 1  # of Linux, <sys/prctl.h>


@dataclasses.dataclass(frozen=True)
class Task:
    """What a process of a job is.

    Attributes:
      role: worker, chief or ps.
      index: among those of its role.
      slot: its place on this machine, which it keeps while the number of workers changes.
    """

    role: str
    index: int
    slot: int

    @property
    def name(self) -> str:
        """What lines call it: `worker 1`."""
        return self.role if self.role in ("chief", PAGE) else f"{self.role} {self.index}"

    @property
    def file(self) -> str:
        """What files call it: `worker-1`."""
        return self.name.replace(" ", "-")


class Process:
    """A started process.

    Attributes:
      task: what it is.
      out: its stdout, which goes to a file.
      err: its stderr, likewise.
      monitor: judges its heartbeats.
      exit_status: None while it runs.
      is_ending: whether it was told to end.
    """

    def __init__(
        self,
        task: Task,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: pathlib.Path,
        guardian: Guardian,
        silent_timeout: float,
    ) -> None:
        """Starts it.

        Args:
          task: what it is.
          command: program to run, with its arguments.
          environment: variables to add.
          folder: folder for its output and its heartbeat.
          guardian: ends it where the launcher cannot.
          silent_timeout: seconds.
        """
        self.task, self._guardian = task, guardian
        beats = folder / "heartbeats" / f"{task.file}.json"
        logs = folder / "logs"
        with errors.named(folder, "cannot be written to"):
            beats.unlink(missing_ok=True)
            self.out, self.err = Tail(logs / f"{task.file}.stdout.log"), Tail(logs / f"{task.file}.stderr.log")
        variables = {**os.environ, **environment, heartbeat.VARIABLE: str(beats), "PYTHONUNBUFFERED": "1"}
        with self.out.path.open("ab") as out, self.err.path.open("ab") as err:
            self._popen = subprocess.Popen(
                command,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=_dies_with_parent(),  # noqa: PLW1509, the launcher has one thread
            )
        guardian.guard(self.pid)
        self.monitor = HeartbeatMonitor(beats, silent_timeout, time.monotonic())
        self.exit_status: ExitStatus | None = None
        self.is_ending = False
        self._silence = ""

    @property
    def pid(self) -> int:
        """Of the process, which is also that of its group."""
        return self._popen.pid

    def poll(self) -> ExitStatus | None:
        """Looks whether it has ended, and if so ends what it has left behind."""
        # WNOWAIT: until `wait` below, the system gives the number of its group to no other.
        if self.exit_status is None and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.exit_status = ExitStatus(self._popen.wait(), self._silence)
            self._guardian.release(self.pid)
        return self.exit_status

    @property
    def has_failed(self) -> bool:
        """Whether it ended without success, and not because it was told to end; to be killed for silence is failure."""
        if self.exit_status is None or self.exit_status.is_good:
            return False
        return not self.is_ending or bool(self.exit_status.silence)

    def ask_to_end(self) -> None:
        """Asks it to save and end, once; wakes it if it is stopped, since it could not end otherwise."""
        if not self.is_ending and self.exit_status is None:
            self.is_ending = True
            for number in (signal.SIGTERM, signal.SIGCONT):
                os.kill(self.pid, number)  # `Popen.send_signal` would reap one that has just ended, before `poll` can

    def kill(self, silence: str = "") -> None:
        """Kills it and all that it has started.

        Args:
          silence: what was missing, if it is killed for that.
        """
        if self.exit_status is None:
            self.is_ending, self._silence = True, self._silence or silence
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Closes its files."""
        self.out.close()
        self.err.close()


def _dies_with_parent() -> Callable[[], None] | None:
    """Returns what makes a child receive SIGTERM when the launcher dies; None where the system cannot.

    It runs between fork and exec.
    """
    if not sys.platform.startswith("linux"):
        return None
    libc, parent = ctypes.CDLL(None), os.getpid()

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before
            os._exit(1)

    return prepare
