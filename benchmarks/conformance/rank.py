"""One rank of a job, in a process of its own and possibly under another interpreter than the test program.

    python -m benchmarks.conformance.rank ADAPTER probe | write FOLDER | read JOB

`read` prints a line of JSON for each batch and at the end of each epoch, and waits for a line: the collective of a
synchronous step. It needs only the peer's requirements and the standard library.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
from typing import Any, TextIO

from benchmarks.conformance import records
from benchmarks.conformance.adapter import Batch, Job

_OWN = "benchmarks.conformance.adapters."


def main(name: str, task: str, argument: str = "") -> None:
    """Runs a task; its replies go to the real stdout, the libraries' output to stderr."""
    says = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        adapter: Any = importlib.import_module(name if "." in name else _OWN + name)
        _TASKS[task](adapter, argument, says)
    except BaseException as error:  # any error of a peer is a result
        _say(says, {"error": f"{type(error).__name__}: {error}"})
        says.close()
        os._exit(1)  # some peers' threads and processes never end
    says.close()
    os._exit(0)


def probe(adapter: Any, _: str, says: TextIO) -> None:
    """Reports the versions and the adapter's declarations."""
    for module in adapter.MODULES:
        importlib.import_module(module)
    versions = {package: importlib.metadata.version(package) for package in adapter.PACKAGES}
    declared = {name: getattr(adapter, name) for name in ("TITLE", "DOCS", "NOTE", *_FLAGS)}
    _say(says, {"versions": versions, **declared})


_FLAGS = ("RESUMES", "ELASTIC", "SKIPS", "ENDLESS")


def write(adapter: Any, folder: str, says: TextIO) -> None:
    """Writes the peer's data set."""
    adapter.write(folder, list(records.shards()))
    _say(says, {"written": folder})


def read(adapter: Any, text: str, says: TextIO) -> None:
    """Iterates over a job's epochs in step with the other ranks."""
    given = json.loads(text)
    job = Job(**{**given, "saved": tuple(given["saved"])})
    loader = adapter.Loader(job)
    for epoch in range(job.epoch, job.epochs):
        for batch in loader.epoch(epoch):
            _say(says, {"epoch": epoch, **_described(batch)})
            answer = json.loads(sys.stdin.readline())
            if answer["save"]:
                loader.save(answer["save"])
        _say(says, {"end": epoch})
        sys.stdin.readline()


def _described(batch: Batch) -> dict[str, list[int]]:
    """Returns the numbers of the records without padding, and of those whose bytes are wrong."""
    rows, weights = batch
    taken = [bytes(row) for row, weight in zip(rows, weights or [1.0] * len(rows), strict=True) if weight]
    return {
        "numbers": [records.number_of(row) for row in taken],
        "wrong": [records.number_of(row) for row in taken if not records.is_right(row)],
    }


def _say(says: TextIO, what: dict[str, Any]) -> None:
    says.write(json.dumps(what) + "\n")


_TASKS = {"probe": probe, "write": write, "read": read}


if __name__ == "__main__":
    main(*sys.argv[1:])
