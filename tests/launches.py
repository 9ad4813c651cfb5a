"""The launcher as a real process, with the trainer or with what stands for it, and a look at what it leaves."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
PATH = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
FAKE = (sys.executable, str(ROOT / "tests" / "fake_trainer.py"))
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}: ")
SECONDS = 300.0  # within which anything happens, on a busy machine
CODE = """
import sys
from pipeline.commands import commandline
from trainer import launch
commandline.run("trainer.launch", lambda argv: launch.main(argv, program={program}))
"""


class Launch:
    """A launcher that runs."""

    def __init__(
        self,
        model_dir: pathlib.Path,
        flags: Sequence[str],
        trainer_flags: Sequence[str],
        program: Sequence[str] | None = None,
        environment: Mapping[str, str] = {},
    ) -> None:
        """Starts it, in a session of its own.

        Args:
          model_dir: of the job.
          flags: of the launcher.
          trainer_flags: of the trainer.
          program: instead of the trainer.
          environment: variables to add.
        """
        self.folder = model_dir / "launch"
        command = ["-c", CODE.format(program=program)] if program else ["-m", "trainer.launch"]
        self.process = subprocess.Popen(
            [sys.executable, *command, *flags, "--", f"--model_dir={model_dir}", *trainer_flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": PATH, "NO_COLOR": "1", **environment},
            start_new_session=True,
        )

    def status(self) -> dict[str, Any]:
        """Returns the newest status of this launcher; empty: there is none."""
        try:
            content = json.loads((self.folder / "status.json").read_bytes())
        except FileNotFoundError:
            return {}
        return content if content["pid"] == self.process.pid else {}

    def wait_until(self, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Waits until something holds of the status, and returns it."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            status = self.status()
            if status and holds(status):
                return status
            if self.process.poll() is not None:
                raise AssertionError(self.process.communicate())
            time.sleep(0.02)
        raise AssertionError(self.status())

    def wait_for_step(self, step: int) -> dict[str, Any]:
        """Waits until the job has made a step."""
        return self.wait_until(lambda status: (status["step"] or 0) >= step and status["state"] == "training")

    def end(self) -> tuple[int, str, str]:
        """Returns exit code, stdout without dates and times, and stderr, once it has ended and has left no process."""
        try:
            out, err = self.process.communicate(timeout=SECONDS)
        finally:
            self.process.kill()
        assert left_within(5.0, self.pids()) == []
        return self.process.returncode, TIME.sub("", out), err

    def pids(self) -> list[int]:
        """Returns the processes of the last status."""
        return [one["pid"] for one in self.status().get("processes", [])]


def is_running(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has waited for does not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def left_within(seconds: float, pids: Sequence[int]) -> list[int]:
    """Returns the processes that are still there after so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(map(is_running, pids)):
        time.sleep(0.02)
    return [pid for pid in pids if is_running(pid)]
