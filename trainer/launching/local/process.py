"""One process of a job: started in a group of its own, followed, and ended with all that it has started itself."""

from __future__ import annotations

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
from trainer.actions import heartbeat
from trainer.launching.local.ending import Ending
from trainer.launching.local.guardian import Guardian
from trainer.launching.local.silence import Listener
from trainer.launching.local.tail import Tail

_PR_SET_PDEATHSIG = 1  # of Linux, <sys/prctl.h>


@dataclasses.dataclass(frozen=True)
class Task:
    """What a process of a job is.

    Attributes:
      role: worker, chief or ps.
      index: among those of its role.
      slot: place on this machine, which it keeps while the number of workers changes.
    """

    role: str
    index: int
    slot: int

    @property
    def name(self) -> str:
        """How lines call it."""
        return self.role if self.role == "chief" else f"{self.role} {self.index}"

    @property
    def file(self) -> str:
        """How files call it."""
        return self.name.replace(" ", "-")


class Process:
    """A started process.

    Attributes:
      task: what it is.
      out: its stdout, which goes to a file.
      err: its stderr, likewise.
      listener: for its heartbeats.
      ending: how it ended; None while it runs.
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
          command: to run.
          environment: variables to add.
          folder: for its output and its heartbeat.
          guardian: that ends it where the launcher cannot.
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
        self.listener = Listener(beats, silent_timeout, time.monotonic())
        self.ending: Ending | None = None
        self.is_ending = False
        self._silence = ""

    @property
    def pid(self) -> int:
        """Of the process, which is also that of its group."""
        return self._popen.pid

    def poll(self) -> Ending | None:
        """Looks whether it has ended, and if so ends what it has left behind."""
        if self.ending is None and _has_ended(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # before the number of the group can be another's
            self.ending = Ending(self._popen.wait(), self._silence)
            self._guardian.release(self.pid)
        return self.ending

    def ask_to_end(self) -> None:
        """Asks it to save and end, once; wakes it if it is stopped, since it could not end otherwise."""
        if not self.is_ending and self.ending is None:
            self.is_ending = True
            self._popen.send_signal(signal.SIGTERM)
            self._popen.send_signal(signal.SIGCONT)

    def kill(self, silence: str = "") -> None:
        """Kills it and all that it has started.

        Args:
          silence: why, where the reason is that nothing was heard of it.
        """
        if self.ending is None:
            self.is_ending, self._silence = True, self._silence or silence
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Closes its files."""
        self.out.close()
        self.err.close()


def program() -> tuple[str, ...]:
    """Returns what runs the trainer as this process runs: with the current folder on its path or without."""
    safe = () if sys.path[:1] in ([""], [os.getcwd()]) else ("-P",)
    return (sys.executable, *safe, "-m", "trainer.run")


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


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
