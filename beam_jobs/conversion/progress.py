"""The progress of a conversion, read from the receipts of finished shards."""

from __future__ import annotations

from beam_jobs.plan import Plan
from beam_jobs.runs.display import Display
from beam_jobs.shards import receipts
from beam_jobs.target import staging
from pipeline.commands.text import count_of
from pipeline.errors import DataError

_SECONDS_BETWEEN_REMOTE_LOOKS = 2.0  # a store charges more for a list than for a read


class Progress(Display):
    """Shows how far a conversion has come, in rows of the source that shards hold, or skipped as invalid."""

    def __init__(self, plan: Plan) -> None:
        """Draws the bar."""
        self._folder = plan.receipts_dir
        self._waiting = {receipts.name_of(name) for name in plan.file_names}
        self._shards = len(self._waiting)
        self._label = _label(plan)
        self._bytes = self._rejects = 0
        if self._folder.is_remote:
            self.seconds_between_looks = _SECONDS_BETWEEN_REMOTE_LOOKS
        super().__init__(plan.num_rows)

    def text(self) -> str:
        """Returns the progress in one line."""
        rejects = f", {self._rejects:,} rejects" if self._rejects else ""
        return (
            f"{self._label}{self.finished:,} of {count_of(self._shards, 'shard')}, {self.done:,} of "
            f"{count_of(self.total, 'example')}, "
            f"{self._bytes / (1 << 20):,.1f} MiB, {self.rate:,.0f} examples/s{rejects}"
        )

    def _look(self) -> None:
        try:
            present = self._waiting.intersection(self._folder.names())
        except (OSError, DataError):  # the workers will report it
            present = set()
        for name in present:
            if receipt := receipts.load(self._folder / name):
                self._waiting.discard(name)
                self.finished += 1
                self.done += receipt.info.num_examples + receipt.num_rejects
                self._bytes += receipt.info.num_bytes
                self._rejects += receipt.num_rejects


def finished_part(plan: Plan) -> float:
    """Returns the fraction of a plan's work, 0 to 1, that is done already; each of two passes counts one half."""
    found = receipts.in_folder(plan.receipts_dir)
    return sum(receipt.info.num_examples + receipt.num_rejects for receipt in found) / (
        plan.config.passes * plan.num_rows
    )


def _label(plan: Plan) -> str:
    if plan.config.passes != 2:
        return ""
    return "pass 1 of 2: " if plan.receipts_dir.name == staging.FIRST_PASS else "pass 2 of 2: "
