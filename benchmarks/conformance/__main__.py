"""Which input libraries keep their promises: one test program for this input and its peers.

    python -m benchmarks.conformance [--python=PATH] [--only=ours,mosaic] [--json=FILE]

1,003 records in 30 files, global batches of 30, two epochs. Ranks are processes that wait for each other at every step,
as in synchronous training; waiting for a rank whose epoch has ended would take forever. Each peer is set up according
to its own documentation (benchmarks/conformance/adapters). A peer that is not installed, here or under the interpreter
of `--python`, is skipped with the reason. The result is docs/conformance.md's table, as Markdown.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks import inputs, interpreters
from benchmarks.conformance import job, table
from benchmarks.conformance.checks import Program
from benchmarks.conformance.job import Peer
from pipeline.commands import commandline
from pipeline.commands.flags import check, flag

COMMAND = "benchmarks.conformance"
ADAPTERS = (
    "ours",
    "grain_elastic",
    "mosaic",
    "lit_data",
    "torchdata_stateful",
    "web_dataset",
    "web_dataset_resampled",
    "ffcv_loader",
    "tf_data",
    "tf_data_service",
)


@dataclasses.dataclass(frozen=True)
class ConformanceConfig:
    """What is tested."""

    only: str = flag("", "adapters to run, separated by commas; default: all")
    python: str = flag(
        "", "NAME=PATH of an adapter's interpreter, PATH for all that cannot run here; separated by commas"
    )
    seconds: float = flag(60.0, "seconds in which a rank must give its next batch; otherwise it hangs", least=0.1)
    json: str = flag("", "a file for the verdicts")

    def __post_init__(self) -> None:
        check(self)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the table."""
    config = commandline.parse(COMMAND, "Test what this input and its peers promise.", ConformanceConfig, argv)
    names = inputs.parts_of(config.only, ADAPTERS)
    known = interpreters.parse(config.python, set(ADAPTERS))
    rows = [row_of(name, known.candidates(name), config.seconds) for name in names]
    if config.json:
        pathlib.Path(config.json).write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n")
    print(table.markdown(rows))


def row_of(name: str, pythons: Sequence[str], seconds: float) -> table.Row:
    """Returns the row of an adapter, run with the first interpreter that can run it."""
    began, reason = time.monotonic(), ""
    with tempfile.TemporaryDirectory(prefix="conformance-") as made:
        folder = pathlib.Path(made)
        for python in pythons:
            declared = job.task(Peer(name, python), ["probe"], folder)
            if "versions" not in declared:
                reason = str(declared.get("error") or declared["hung"])
                continue
            try:
                verdicts = Program(Peer(name, python), declared, folder, seconds).verdicts()
            except RuntimeError as error:
                return table.Row(name, declared, {}, str(error))
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            return table.Row(name, declared, verdicts)
    return table.Row(name, {}, {}, reason)


if __name__ == "__main__":
    commandline.run(COMMAND, main)
