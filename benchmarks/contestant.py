"""A training loop in a process of its own, which runs on demand: `benchmarks.contestant NAME FLAGS...`.

In one process the background threads of one contestant would take the cores of the others. It prints a line with facts
about itself as JSON once it is warm, and then one round as JSON for every number of seconds that it reads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple

from benchmarks import processes
from benchmarks.rounds import Round, one_round
from pipeline.errors import DataError

ROOT = pathlib.Path(__file__).parents[1]


class Contestant:
    """A child process that measures rounds; between them, it is stopped together with all processes it started.

    Otherwise their prefetching would take the cores of the contestant being measured.
    """

    def __init__(self, name: str, command: Sequence[str], errors: IO[str] | None = None) -> None:
        """Starts the process; its stderr goes to a file, or to this process's."""
        self._name = name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )

    def ask(self, line: str) -> dict[str, Any]:
        """Sends a line, such as the seconds of a round; returns the answer.

        Raises:
          DataError: the process has ended.
        """
        assert self._process.stdin
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        answer = dict(json.loads(self.line()))
        self._signal(signal.SIGSTOP)
        return answer

    def said(self) -> dict[str, Any]:
        """Returns its facts once it is ready, or its `error`; then it is stopped until its turn."""
        try:
            return dict(json.loads(self.line()))
        except DataError as error:
            return {"error": str(error)}
        finally:
            self._signal(signal.SIGSTOP)

    def end(self) -> None:
        """Ends the process and those it started."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def line(self) -> str:
        """Returns the next line that it prints.

        Raises:
          DataError: the process has ended.
        """
        assert self._process.stdout
        line: str = self._process.stdout.readline()
        if not line:
            raise DataError(f"{self._name}: ended; its error is above")
        return line


class Measured(NamedTuple):
    """A contestant's facts and rounds."""

    facts: dict[str, Any]
    rounds: list[Round]


def command(loop: str, flags: Sequence[str], python: str = sys.executable) -> list[str]:
    """Returns the command that serves rounds of a loop."""
    # PyTorch's threads wait in a busy loop, which takes ten times the processor time if the machine has other work.
    environment = ["env", f"PYTHONPATH={ROOT}", "TF_CPP_MIN_LOG_LEVEL=3", "OMP_WAIT_POLICY=PASSIVE"]
    return [*environment, python, "-m", "benchmarks.contestant", loop, *flags]


def in_turns(commands: Mapping[str, Sequence[str]], rounds: int, seconds: float) -> dict[str, Measured]:
    """Measures rounds in turn; returns the rounds of each contestant that can run, and prints why others cannot.

    Args:
      commands: command of each contestant, by name; see `command`.
      rounds: number of rounds per contestant.
      seconds: length of a round.
    """
    started: dict[str, Contestant] = {}
    found: dict[str, Measured] = {}
    try:
        for name, arguments in commands.items():
            started[name] = Contestant(name, arguments)
            facts = started[name].said()  # once it is warm
            if "error" in facts:
                print(f"{name}: skipped, {facts['error']}", flush=True)
            else:
                found[name] = Measured(facts, [])
        for _ in range(rounds):
            for name, one in list(found.items()):
                try:
                    one.rounds.append(Round(**started[name].ask(str(seconds))))
                except DataError as error:  # for example out of memory
                    print(f"{error}", flush=True)
                    del found[name]
        return found
    finally:
        for contestant in started.values():
            contestant.end()


def alternate(contestants: dict[str, tuple[str, list[str]]], rounds: int, seconds: float) -> dict[str, list[Round]]:
    """Measures rounds in turn; returns the rounds of each contestant.

    Args:
      contestants: loop and flags of each contestant, by name.
      rounds: number of rounds per contestant.
      seconds: length of a round.

    Raises:
      DataError: a contestant cannot run.
    """
    found = in_turns({name: command(*one) for name, one in contestants.items()}, rounds, seconds)
    for name in contestants:
        if name not in found:
            raise DataError(f"{name}: did not run; its error is above")
    return {name: one.rounds for name, one in found.items()}


def main(name: str, flags: list[str]) -> None:
    """Serves rounds until stdin ends."""
    module = "benchmarks.torch_loops" if name.startswith("torch") else "benchmarks.loops"
    try:
        contest = importlib.import_module(module).contest(name, flags)
    except Exception as error:  # the parent skips the contestant with this reason
        if not isinstance(error, ImportError):
            traceback.print_exc()
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        return
    print(json.dumps(contest.facts), flush=True)
    for line in sys.stdin:
        found = one_round(contest.take, float(line), processes.seconds)
        print(json.dumps({**dataclasses.asdict(found), "peak": processes.peak()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
