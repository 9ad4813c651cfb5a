"""WebDataset: tar files, divided among ranks by `split_by_node`."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

from benchmarks.conformance import records
from benchmarks.conformance.adapter import Batch, Job

TITLE = "WebDataset: `split_by_node`"
PACKAGES = ("webdataset", "torch")
MODULES = ("webdataset",)
DOCS = (
    "https://github.com/webdataset/webdataset/blob/main/docs/multinode.md",
    "https://github.com/webdataset/webdataset/blob/main/FAQ.md",
)
NOTE = (
    "`WebDataset(urls, nodesplitter=split_by_node, shardshuffle=100).shuffle(1000).batched(rows)` in a `WebLoader` "
    "with 2 workers; to skip, the user's own check with `handler=ignore_and_continue`."
)
SKIPS = True
RESUMES = ELASTIC = ENDLESS = False


def write(folder: str, shards: list[range]) -> None:
    """Writes a tar file per shard."""
    import webdataset  # noqa: PLC0415

    for number, shard in enumerate(shards):
        with webdataset.TarWriter(f"{folder}/train-{number:05d}.tar") as file:
            for record in shard:
                file.write({"__key__": f"{record:06d}", "bin": records.record(record)})


class Loader:
    """A loader on a rank."""

    def __init__(self, job: Job) -> None:
        import webdataset  # noqa: PLC0415

        self._job = job
        self._loader = webdataset.WebLoader(
            self.decoded(webdataset).batched(job.rows, collation_fn=list), batch_size=None, num_workers=2
        )

    def files(self, webdataset: Any) -> Any:
        """Returns the data set of this rank's files."""
        return webdataset.WebDataset(self.urls(), nodesplitter=webdataset.split_by_node, shardshuffle=100, seed=1)

    def urls(self) -> list[str]:
        """Returns the files of all ranks."""
        return sorted(map(str, pathlib.Path(self._job.folder).glob("*.tar")))

    def decoded(self, webdataset: Any) -> Any:
        """Returns the shuffled records."""
        found = self.files(webdataset).shuffle(1_000).to_tuple("bin").map_tuple(bytes)
        if self._job.skip:
            found = found.map_tuple(records.check, handler=webdataset.ignore_and_continue)
        return found

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yields the loader's batches."""
        for batch in self._loader:
            yield [row for (row,) in batch], None

    def save(self, path: str) -> None:
        """Not supported."""
        raise NotImplementedError
