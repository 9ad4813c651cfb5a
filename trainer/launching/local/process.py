"""A process of a job: started in its own process group, monitored, and ended together with its children.

Processes write to files, not to pipes: if the launcher is killed, writing to a pipe would end them before they have
saved.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
import math
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
from trainer.cluster import tf_config
from trainer.journal import Beat
from trainer.launching.local.guardian import Guardian

_MOST_KEPT = 20  # number of lines


class Tail:
    """Follows a file that another process writes, line by line.

    Attributes:
      path: path of the file.
      last: last lines read so far.
    """

    def __init__(self, path: pathlib.Path) -> None:
        """Follows what is appended from now on; creates the file if it is missing."""
        self.path = path
        path.touch()
        self._file = path.open("rb", buffering=0)
        self._file.seek(0, 2)
        self._rest = b""
        self.last: collections.deque[str] = collections.deque(maxlen=_MOST_KEPT)

    def lines(self, is_end: bool = False) -> list[str]:
        """Returns the new lines, including a last line without a newline if the process has ended."""
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
SIGNALLED = 128  # base of a shell's exit codes for signals


@dataclasses.dataclass(frozen=True)
class ExitStatus:
    """How a process ended, and whether restarting it may help.

    Attributes:
      code: exit code; the negated signal number if a signal killed it.
      silence: reason why the launcher killed it for silence; empty if it did not.
    """

    code: int
    silence: str = ""

    @property
    def is_good(self) -> bool:
        """Whether the process succeeded."""
        return self.code == 0

    @property
    def is_restartable(self) -> bool:
        """Whether the same command may succeed if it is run again."""
        return self.code not in (0, EXIT_DATA, EXIT_USAGE)

    @property
    def exit_code(self) -> int:
        """The code as a shell reports it: 128 + the signal's number."""
        return SIGNALLED - self.code if self.code < 0 else self.code

    def __str__(self) -> str:
        """Text on how the process ended."""
        if self.silence:
            return f"{self.silence}, and was killed"
        if self.code < 0 or self.code > SIGNALLED:
            return f"was killed by {_name_of(self.exit_code - SIGNALLED)}"
        meaning = _MEANINGS.get(self.code)
        return f"ended with exit code {self.code}{f' ({meaning})' if meaning else ''}"


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_STARTING_SECONDS = 60.0  # added to the timeout until the first heartbeat: Python starts slowly on a busy machine
_LONG = 10.0  # factor on the timeout in phases without countable progress, such as compiling
_MISSED = 4.0  # seconds after which a heartbeat is late


class HeartbeatMonitor:
    """Reads a process's heartbeats and notices silence: the process is stopped, stuck, or makes no progress.

    Only the launcher's clock is used, since the process's may differ.

    Args:
      path: path of the heartbeat file.
      timeout: seconds without a sign of life or progress after which a process counts as silent.
      now: time at which the process was started, in seconds of a monotonic clock.

    Attributes:
      beat: newest heartbeat; None before the first.
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
        """Names of the processes that this process reports as lost."""
        return self.beat.lost if self.beat else ()

    @property
    def has_stepped(self) -> bool:
        """Whether the process has made a step."""
        return self.beat is not None and self.beat.made > 0

    @property
    def unheard(self) -> float:
        """Seconds since the last heartbeat."""
        return self._now - self._heard

    @property
    def is_late(self) -> bool:
        """Whether a heartbeat is overdue, which hints at the process that made the others fail."""
        return self.beat is not None and self.unheard > _MISSED + self.beat.quiet

    @property
    def silence(self) -> str:
        """Text on what has been missing for too long; empty if nothing has."""
        if self.beat is None:
            is_silent = self.unheard > self._timeout + _STARTING_SECONDS
            return f"gave no sign of life for {self.unheard:.0f} s" if is_silent else ""
        if self.unheard > self._timeout + self.beat.quiet:
            return f"gave no sign of life for {self.unheard:.0f} s{self._where()}"
        passed, longest = self._now - self._achieved, math.inf  # if it serves others
        if self.beat.expects == "steps":
            longest = max(self._timeout, self.beat.patience)
        elif self.beat.expects == "end":
            longest = _LONG * self._timeout + self.beat.quiet
        return f"made no progress for {passed:.0f} s{self._where()}" if passed > longest else ""

    def _where(self) -> str:
        assert self.beat is not None
        step = "" if self.beat.step is None else f" after step {self.beat.step}"
        return f"{step} ({self.beat.phase})"


PAGE = "page"  # role of the process that serves the job's page; it is not part of the job
_PR_SET_PDEATHSIG = 1  # from Linux's <sys/prctl.h>


@dataclasses.dataclass(frozen=True)
class Task(tf_config.Task):
    """A process of the job, and its place on this machine, which it keeps while the number of workers changes."""

    slot: int = 0


class Process:
    """A started process.

    Attributes:
      task: role of the process.
      out: its stdout, which goes to a file.
      err: its stderr, which goes to another file.
      monitor: monitor of its heartbeats.
      exit_status: exit status; None while the process runs.
      is_ending: whether the process has been asked to end.
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
        """Starts the process.

        Args:
          task: role of the process.
          command: program to run, with its arguments.
          environment: environment variables to add.
          folder: folder for its output and its heartbeat.
          guardian: guardian, which ends the process if the launcher dies.
          silent_timeout: seconds after which the process counts as silent.
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
                preexec_fn=_dies_with_parent(),  # noqa: PLW1509, the launcher has a single thread
            )
        guardian.guard(self.pid)
        self.monitor = HeartbeatMonitor(beats, silent_timeout, time.monotonic())
        self.exit_status: ExitStatus | None = None
        self.is_ending = False
        self._silence = ""

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its process group."""
        return self._popen.pid

    def poll(self) -> ExitStatus | None:
        """Returns the exit status if the process has ended, after killing the rest of its group; otherwise None."""
        # WNOWAIT: until `wait` below, the kernel does not reuse the group's id.
        if self.exit_status is None and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.exit_status = ExitStatus(self._popen.wait(), self._silence)
            self._guardian.release(self.pid)
        return self.exit_status

    @property
    def has_failed(self) -> bool:
        """Whether it ended without success and was not asked to end; being killed for silence is a failure."""
        if self.exit_status is None or self.exit_status.is_good:
            return False
        return not self.is_ending or bool(self.exit_status.silence)

    def ask_to_end(self) -> None:
        """Asks the process once to save and end; first continues one that is stopped, which could not end otherwise."""
        if not self.is_ending and self.exit_status is None:
            self.is_ending = True
            for number in (signal.SIGTERM, signal.SIGCONT):
                os.kill(self.pid, number)  # `Popen.send_signal` might reap it before `poll` does

    def kill(self, silence: str = "") -> None:
        """Kills the process and everything it has started.

        Args:
          silence: text on what was missing, if it is killed for silence.
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
    """Returns a function that makes a child receive SIGTERM when the launcher dies; None if the system cannot.

    It is called between fork and exec.
    """
    if not sys.platform.startswith("linux"):
        return None
    libc, parent = ctypes.CDLL(None), os.getpid()

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent has died already
            os._exit(1)

    return prepare
