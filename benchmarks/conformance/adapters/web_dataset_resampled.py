"""WebDataset with files drawn at random on every rank, and epochs of a given number of steps."""

from __future__ import annotations

from typing import Any

from benchmarks.conformance import records
from benchmarks.conformance.adapter import Job
from benchmarks.conformance.adapters import web_dataset

TITLE = "WebDataset: `resampled`, `with_epoch`"
PACKAGES = web_dataset.PACKAGES
MODULES = web_dataset.MODULES
DOCS = web_dataset.DOCS
NOTE = (
    "`WebDataset(urls, resampled=True).shuffle(1000).batched(rows)` in a `WebLoader` with 2 workers, "
    "`.with_epoch(records // global batch)`: even steps, at the price of records drawn with replacement."
)
SKIPS = True
RESUMES = ELASTIC = ENDLESS = False
write = web_dataset.write


class Loader(web_dataset.Loader):
    """A loader on a rank."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._loader = self._loader.with_epoch(records.COUNT // (job.rows * job.ranks))

    def files(self, webdataset: Any) -> Any:
        """Returns all files, drawn with replacement."""
        return webdataset.WebDataset(self.urls(), resampled=True, nodesplitter=None)
