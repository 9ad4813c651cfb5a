"""Contestants that feed batches: prepared once, then measured in turns, each in a process of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks import commands
from benchmarks.contestant import Contestant
from benchmarks.feeds.feed import Setting
from benchmarks.interpreters import Interpreters
from pipeline.errors import DataError

ROOT = pathlib.Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A contestant.

    Attributes:
      module: module in `feeds`.
      options: options of the contestant.
      shared: key of the contestants that share a folder, which the first of them prepares; empty for a folder of its
        own.
    """

    module: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    shared: str = ""


@dataclasses.dataclass(frozen=True)
class Ready:
    """A contestant that can run: its interpreter, its folder, and its facts."""

    entry: Entry
    python: str
    own: str
    versions: dict[str, str]
    augments: str


@dataclasses.dataclass(frozen=True)
class Result:
    """A contestant's rounds in one setting: each with `rate`, `cpu` (microseconds per item) and `memory` (bytes)."""

    part: str
    name: str
    rows: int
    augmented: bool
    first: float
    rounds: list[dict[str, float]]
    versions: dict[str, str]
    augments: str


def prepared(
    entries: Mapping[str, Entry], setting: Setting, folder: pathlib.Path, known: Interpreters
) -> dict[str, Ready]:
    """Returns the contestants that can run, after writing their data; prints why others cannot."""
    found = {}
    for name, entry in entries.items():
        own = folder / (entry.shared or name)
        is_first = not own.exists()
        own.mkdir(parents=True, exist_ok=True)
        own_setting = dataclasses.replace(setting, own=str(own), options=dict(entry.options))
        reason = ""
        for python in known.candidates(name):
            said = _ask(python, entry, "prepare" if is_first else "probe", own_setting)
            if "error" not in said:
                found[name] = Ready(entry, python, str(own), said["versions"], said["augments"])
                break
            reason = said["error"]
        if name not in found:
            print(f"{name}: skipped, {reason}", flush=True)
    return found


def measured(part: str, ready: Mapping[str, Ready], setting: Setting, rounds: int, seconds: float) -> Iterator[Result]:
    """Yields each contestant's rounds in a setting, measured in turns; prints why any has none."""
    first: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        started = {}
        for name, one in ready.items():  # they load their libraries in parallel, and then begin one by one
            own = dataclasses.replace(setting, own=one.own, options=dict(one.entry.options))
            started[name] = _start(one.python, one.entry, "run", own)
            stack.callback(started[name].end)
        loaded = {name: _said(contestant) for name, contestant in started.items()}
        for name, said in loaded.items():
            if "error" not in said:
                said.update(_asked(started[name]))
            if "error" in said:
                print(f"{name}: skipped, {said['error']}", flush=True)
                del started[name]
            else:
                first[name] = said["first"]
        found: dict[str, list[dict[str, float]]] = {name: [] for name in started}
        for _ in range(rounds):
            for name, contestant in started.items():
                found[name].append(contestant.ask(str(seconds)))
    for name, own_rounds in found.items():
        versions, augments = ready[name].versions, ready[name].augments
        yield Result(part, name, setting.rows, setting.augmented, first[name], own_rounds, versions, augments)


def machine() -> dict[str, Any]:
    """Returns the facts about the machine that the results depend on."""
    return {"processor": commands.processor(), "cores": os.cpu_count(), "python": sys.version}


def _start(python: str, entry: Entry, task: str, setting: Setting) -> Contestant:
    arguments = [entry.module, task, json.dumps(dataclasses.asdict(setting))]
    environment = ["env", f"PYTHONPATH={ROOT}", "TF_CPP_MIN_LOG_LEVEL=3", "CUDA_VISIBLE_DEVICES="]
    with open(os.devnull, "w") as nowhere:
        return Contestant(entry.module, [*environment, python, "-m", "benchmarks.feeds.process", *arguments], nowhere)


def _ask(python: str, entry: Entry, task: str, setting: Setting) -> dict[str, Any]:
    contestant = _start(python, entry, task, setting)
    try:
        return _said(contestant)
    finally:
        contestant.end()


def _asked(contestant: Contestant) -> dict[str, Any]:
    """Returns a contestant's answer once it may begin, or why it does not answer."""
    try:
        return contestant.ask("begin")
    except DataError as error:
        return {"error": str(error)}


def _said(contestant: Contestant) -> dict[str, Any]:
    """Returns a line that a contestant prints, or why there is none."""
    try:
        return dict(json.loads(contestant.line()))
    except DataError as error:
        return {"error": str(error)}
