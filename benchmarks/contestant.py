"""A training loop in a process of its own, which runs when it is told to: `benchmarks.contestant NAME FLAGS...`.

In one process the background threads of one contestant would take the cores of the others. It prints a line once it is
warm, and then one round as JSON for every number of seconds that it reads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, Any

from benchmarks.rounds import Round, one_round
from pipeline.errors import DataError


class Contestant:
    """A child process that measures rounds, and between them is stopped with all processes that it started.

    What they make ahead would take the cores of the one whose turn it is.
    """

    def __init__(self, name: str, command: Sequence[str], errors: IO[str] | None = None) -> None:
        """Starts it; its stderr goes to a file, or to this process's."""
        self._name = name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )

    def ask(self, line: str) -> dict[str, Any]:
        """Gives it a line, such as the seconds of a round; returns what it answers."""
        assert self._process.stdin
        self._signal(signal.SIGCONT)
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = dict(json.loads(self.line()))
        self._signal(signal.SIGSTOP)
        return answer

    def end(self) -> None:
        """Ends the process and those that it started."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def line(self) -> str:
        """Returns the next line that it prints.

        Raises:
          DataError: it has ended.
        """
        assert self._process.stdout
        line: str = self._process.stdout.readline()
        if not line:
            raise DataError(f"{self._name}: ended; its error is above")
        return line


def alternate(contestants: dict[str, tuple[str, list[str]]], rounds: int, seconds: float) -> dict[str, list[Round]]:
    """Measures rounds in turn; returns those of each contestant.

    Args:
      contestants: the loop and the flags of the run, by name.
      rounds: of each.
      seconds: of a round.
    """
    started: dict[str, Contestant] = {}
    try:
        for name, (loop, flags) in contestants.items():
            started[name] = Contestant(name, [sys.executable, "-m", "benchmarks.contestant", loop, *flags])
            started[name].line()  # once it is warm
        found: dict[str, list[Round]] = {name: [] for name in started}
        for _ in range(rounds):
            for name, contestant in started.items():
                found[name].append(Round(**contestant.ask(str(seconds))))
        return found
    finally:
        for contestant in started.values():
            contestant.end()


def main(name: str, flags: list[str]) -> None:
    """Serves rounds until stdin ends."""
    from benchmarks import loops  # noqa: PLC0415, here because it loads much that other contestants do not need

    take = loops.CONTESTANTS[name](loops.make(flags))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(dataclasses.asdict(one_round(take, float(line)))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
