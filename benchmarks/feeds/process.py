"""A contestant in a process of its own: `benchmarks.feeds.process MODULE probe | prepare SETTING | run SETTING`.

`run` prints a line once it has loaded its libraries. Then it answers lines: the first with the seconds to the first
batch, each of the others, a number of seconds, with a round of that length. It needs only the contestant's
requirements, the standard library and NumPy.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import json
import os
import sys
import time
from typing import Any, TextIO

from benchmarks import processes, rounds
from benchmarks.feeds.feed import Setting


def main(module: str, task: str, setting: str = "{}") -> None:
    """Runs a task; its replies go to the real stdout, the libraries' output to stderr."""
    says = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        feed: Any = importlib.import_module(module if "." in module else f"benchmarks.feeds.{module}")
        _TASKS[task](feed, json.loads(setting), says)
    except Exception as error:  # the parent skips the contestant with this reason
        _say(says, {"error": f"{type(error).__name__}: {error}"})
    says.close()
    os._exit(0)  # some peers' threads and processes never end


def probe(feed: Any, _: dict[str, Any], says: TextIO) -> None:
    """Reports the versions and how the contestant augments."""
    for module in feed.MODULES:
        importlib.import_module(module)
    versions = {package: importlib.metadata.version(package) for package in feed.PACKAGES}
    _say(says, {"versions": versions, "augments": feed.AUGMENTS})


def prepare(feed: Any, setting: dict[str, Any], says: TextIO) -> None:
    """Writes the contestant's format, and reports the same as `probe`."""
    feed.prepare(Setting(**setting))
    probe(feed, setting, says)


def run(feed: Any, setting: dict[str, Any], says: TextIO) -> None:
    """Loads, reports how long the first batch took, warms up, and serves rounds."""
    for module in feed.MODULES:
        importlib.import_module(module)
    _say(says, {})
    sys.stdin.readline()
    began = time.perf_counter()
    take = feed.take(Setting(**setting))
    take()
    first = time.perf_counter() - began
    rounds.one_round(take, 0.2)
    _say(says, {"first": first})
    for line in sys.stdin:
        found = rounds.one_round(take, float(line), processes.seconds)
        _say(says, {**dataclasses.asdict(found), "memory": processes.memory()})


def _say(says: TextIO, what: dict[str, Any]) -> None:
    says.write(json.dumps(what) + "\n")


_TASKS = {"probe": probe, "prepare": prepare, "run": run}


if __name__ == "__main__":
    main(*sys.argv[1:])
