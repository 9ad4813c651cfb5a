"""A training loop in a process of its own, which runs when it is told to: `benchmarks.contestant NAME FLAGS...`.

In one process the background threads of one contestant would take the cores of the others. It prints a line once it is
warm, and then one round as JSON for every number of seconds that it reads.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence

from benchmarks import loops
from benchmarks.rounds import Round, one_round
from pipeline.errors import DataError


class Contestant:
    """A loop in a child process."""

    def __init__(self, name: str, flags: Sequence[str]) -> None:
        """Starts it and waits until it is warm."""
        command = [sys.executable, "-m", "benchmarks.contestant", name, *flags]
        self._name = name
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._line()

    def round(self, seconds: float) -> Round:
        """Runs it for so long."""
        assert self._process.stdin
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return Round(**json.loads(self._line()))

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
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
            started[name] = Contestant(loop, flags)
        found: dict[str, list[Round]] = {name: [] for name in started}
        for _ in range(rounds):
            for name, contestant in started.items():
                found[name].append(contestant.round(seconds))
        return found
    finally:
        for contestant in started.values():
            contestant.end()


def main(name: str, flags: list[str]) -> None:
    """Serves rounds until stdin ends."""
    take = loops.CONTESTANTS[name](loops.make(flags))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(dataclasses.asdict(one_round(take, float(line)))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
