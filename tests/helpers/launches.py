"""The launcher as a real process, with the trainer or a stand-in, and checks of what it leaves."""

from __future__ import annotations

import json
import pathlib
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.helpers import forked

FAKE = (sys.executable, str(pathlib.Path(__file__).with_name("fake_trainer.py")))
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}: ")
SECONDS = 300.0  # time limit for anything, on a busy machine
CODE = """
import sys
from pipeline.commands import commandline
from trainer import launch
commandline.run("trainer.launch", lambda argv: launch.main(argv, program={program}))
"""


class Launch:
    """A running launcher."""

    def __init__(
        self,
        model_dir: pathlib.Path,
        flags: Sequence[str],
        trainer_flags: Sequence[str],
        program: Sequence[str] | None = None,
        environment: Mapping[str, str] = {},
    ) -> None:
        """Starts the launcher in a session of its own.

        Args:
          model_dir: folder of the job.
          flags: flags of the launcher.
          trainer_flags: flags of the trainer.
          program: program to run instead of the trainer.
          environment: variables to add.
        """
        self.folder = model_dir / "launch"
        command = ["-c", CODE.format(program=program)] if program else ["-m", "trainer.launch"]
        trainer = ("--", f"--model_dir={model_dir}", *trainer_flags)
        self.process = forked.Process([*command, *flags, *trainer], {"NO_COLOR": "1", **environment})

    def status(self) -> dict[str, Any]:
        """Returns the newest status of this launcher; empty if there is none."""
        try:
            content = json.loads((self.folder / "status.json").read_bytes())
        except FileNotFoundError:
            return {}
        return content if content["pid"] == self.process.pid else {}

    def wait_until(self, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Waits until a condition on the status holds, and returns the status."""
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
        """Waits for the end, checks that no process is left, and returns exit code, undated stdout, and stderr."""
        try:
            out, err = self.process.communicate(timeout=SECONDS)
        finally:
            self.process.kill()
        assert left_within(5.0, self.pids()) == []
        return self.process.returncode, TIME.sub("", out), err

    def pids(self) -> list[int]:
        """Returns the process ids in the last status."""
        return [one["pid"] for one in self.status().get("processes", [])]


def is_running(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def left_within(seconds: float, pids: Sequence[int]) -> list[int]:
    """Returns the processes that still exist after `seconds` seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(map(is_running, pids)):
        time.sleep(0.02)
    return [pid for pid in pids if is_running(pid)]
