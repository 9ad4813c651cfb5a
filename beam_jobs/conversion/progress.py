"""The progress of a conversion, read from the receipts of finished shards: no runner reports it while it runs."""

from __future__ import annotations

import contextlib
import time

import tqdm

from beam_jobs.plan import Plan
from beam_jobs.runs import display
from beam_jobs.runs.display import Display
from beam_jobs.shards import receipts
from beam_jobs.storage import write
from beam_jobs.storage.paths import RemotePath
from beam_jobs.target import staging
from pipeline.errors import DataError

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_BETWEEN_REMOTE_LOOKS = 2.0  # each costs the store a request of its dearer kind
_LOOKING = 0.05  # of the time, at most: a folder of 99,999 shards, or one on an object store, takes longer to list
_BAR = "{desc}{percentage:3.0f}%|{bar}| {n:,} of {total:,} examples{postfix}, {elapsed}<{remaining}"


class Progress(Display):
    """Shows how far a conversion has come.

    Attributes:
      finished: shards that are written.
      rows: rows of the source that these shards hold, or skipped as invalid.
    """

    def __init__(self, plan: Plan) -> None:
        """Draws the bar."""
        self._folder = plan.receipts_dir
        self._waiting = {receipts.name_of(name) for name in plan.file_names}
        self._shards = len(self._waiting)
        self._total = plan.num_rows
        self._label = _label(plan)
        self.finished = self.rows = self._bytes = self._rejects = 0
        super().__init__()
        self._at_start = self.rows

    def line(self) -> str:
        """Returns the progress in one line; the rate counts the work of this run only."""
        rate = self._rate()
        left = f", {_duration((self._total - self.rows) / rate)} left" if rate else ""
        return (
            f"{self._label}{self.finished} of {self._shards} shards, {self.rows:,} of {self._total:,} examples, "
            f"{self._details()}{left}"
        )

    def _new_bar(self) -> tqdm.tqdm:
        return display.bar(self._label, _BAR, self.rows, self._total)

    def _move(self, bar: tqdm.tqdm) -> None:
        bar.set_postfix_str(f"{self.finished}/{self._shards} shards, {self._details()}", refresh=False)
        bar.n = self.rows

    def _rate(self) -> float:
        return (self.rows - self._at_start) / max(time.monotonic() - self._started, 1e-9)

    def _details(self) -> str:
        rejects = f", {self._rejects:,} rejects" if self._rejects else ""
        return f"{self._bytes / (1 << 20):,.1f} MiB, {self._rate():,.0f} examples/s{rejects}"

    def _look(self) -> float:
        began = time.monotonic()
        try:
            present = self._waiting.intersection(write.names_in(self._folder))
        except (OSError, DataError):  # the workers will report it
            present = set()
        for name in present:
            if receipt := receipts.load(self._folder / name):
                self._waiting.discard(name)
                self.finished += 1
                self.rows += receipt.info.num_examples + receipt.num_rejects
                self._bytes += receipt.info.num_bytes
                self._rejects += receipt.num_rejects
        now = time.monotonic()
        least = _SECONDS_BETWEEN_REMOTE_LOOKS if isinstance(self._folder, RemotePath) else _SECONDS_BETWEEN_LOOKS
        return now + max(least, (now - began) / _LOOKING)


def finished_part(plan: Plan) -> float:
    """Returns the fraction of a plan's work, 0 to 1, that is done already; each of two passes counts one half."""
    rows = 0
    for folder in [plan.receipts_dir, plan.receipts_dir / staging.FIRST_PASS][: plan.passes]:
        with contextlib.suppress(DataError):  # the first pass has not begun
            rows += sum(receipt.info.num_examples + receipt.num_rejects for receipt in receipts.in_folder(folder))
    return rows / (plan.passes * plan.num_rows)


def _label(plan: Plan) -> str:
    if plan.passes != 2:
        return ""
    return "pass 1 of 2: " if plan.receipts_dir.name == staging.FIRST_PASS else "pass 2 of 2: "


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
