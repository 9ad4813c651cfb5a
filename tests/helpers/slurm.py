"""Slurm's commands as stubs: srun starts real processes on this machine, following its manual and sources."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

_SRUN = f"""#!{sys.executable}
import os, signal, subprocess, sys

words = sys.argv[1:]
options = [word for word in words if words.index(word) < words.index("bash")]
(count,) = [int(word.partition("=")[2]) for word in options if word.startswith("--ntasks=")]
tasks = []

def forces_termination(number, frame):  # src/srun/signals.c
    for task in tasks:
        os.killpg(task.pid, signal.SIGKILL)

signal.signal(signal.SIGTERM, forces_termination)
for rank in range(count):
    environment = {{**os.environ, "SLURM_PROCID": str(rank), "SLURM_STEP_ID": "0"}}
    tasks.append(subprocess.Popen(words[len(options):], env=environment, start_new_session=True))
    with open(os.environ["STUB"] + "/tasks", "a") as file:
        print(tasks[-1].pid, file=file, flush=True)
codes = [task.wait() for task in tasks]
sys.exit(max(code if code >= 0 else 128 - code for code in codes))
"""
_SCANCEL = """#!/bin/bash
trap "" TERM  # it may be a process of a task
[ "$1" = --signal=TERM ] && { [ "$2" = "$SLURM_JOB_ID" ] || [ "$2" = "$SLURM_JOB_ID.0" ]; } || exit 9
while read -r task; do kill -TERM -- "-$task" 2> /dev/null; done < "$STUB/tasks"
"""
_SCONTROL = """#!/bin/bash
case "$1 $2" in
    "show hostnames") [ "$3" = "$SLURM_JOB_NODELIST" ] && printf '%s\\n' $STUB_HOSTS;;
    "requeue $SLURM_JOB_ID") echo requeued >> "$STUB/requeued";;
    *) exit 9;;
esac
"""
# Commands on the nodes: neither this machine's Slurm nor its Python.
_COMMANDS = ("bash", "cat", "env", "grep", "mkdir", "rm", "sleep", "touch", "wc")
JOB_ID = 4711
TIMEOUT = 300.0  # seconds


class Slurm:
    """A job in a cluster of stubs.

    Attributes:
      folder: folder that the job was submitted in, where the stubs keep their notes.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[str]] = []
        (folder / "bin").mkdir(parents=True)
        for name, text in (("srun", _SRUN), ("scancel", _SCANCEL), ("scontrol", _SCONTROL)):
            self.command(name, text)
        for name in _COMMANDS:
            found = shutil.which(name)
            assert found, f"these tests need {name}"
            (folder / "bin" / name).symlink_to(found)

    def command(self, name: str, text: str) -> None:
        """Makes an executable that the job finds by name."""
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def start(self, script: str, hosts: str = "n1 n2", **environment: str) -> subprocess.Popen[str]:
        """Starts a batch script, like Slurm after submission or a requeue."""
        (self.folder / "job.sh").write_text(script)
        (self.folder / "tasks").unlink(missing_ok=True)
        (self.folder / "tasks").touch()
        given = {"SLURM_JOB_ID": str(JOB_ID), "SLURM_JOB_NODELIST": "n[1-2]", "STUB": str(self.folder)}
        path = f"{self.folder}/bin"
        variables: Mapping[str, str] = {**os.environ, **given, "STUB_HOSTS": hosts, "PATH": path, **environment}
        process = subprocess.Popen(
            ["bash", "job.sh"],
            cwd=self.folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def run(self, script: str, **environment: str) -> tuple[int, str]:
        """Runs a batch script to its end; returns its exit code and output."""
        process = self.start(script, **environment)
        output, _ = process.communicate(timeout=TIMEOUT)
        return process.returncode, output

    def warn(self, process: subprocess.Popen[str]) -> None:
        """Sends Slurm's signal before the time limit with --signal=B:USR1, only to the script."""
        os.kill(process.pid, signal.SIGUSR1)

    def cancel(self, process: subprocess.Popen[str]) -> None:
        """Sends scancel's signal: SIGTERM to the tasks and to the script."""
        for task in self.tasks():
            os.killpg(task, signal.SIGTERM)
        os.kill(process.pid, signal.SIGTERM)

    def end(self) -> None:
        """Kills processes left by a failed test."""
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        for task in self.tasks():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(task, signal.SIGKILL)

    def tasks(self) -> list[int]:
        """Returns the process groups of the tasks."""
        path = self.folder / "tasks"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def requeued(self) -> int:
        """Returns how many times the job was requeued."""
        path = self.folder / "requeued"
        return len(path.read_text().split()) if path.exists() else 0

    def wait_for(self, *names: str) -> None:
        """Waits until files with these names exist."""
        end = time.monotonic() + TIMEOUT
        while not all((self.folder / name).exists() for name in names):
            assert time.monotonic() < end, names
            time.sleep(0.05)
