"""MosaicML Streaming: `StreamingDataset` and `StreamingDataLoader` over MDS shards."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.conformance import records
from benchmarks.conformance.adapter import Batch, Job
from benchmarks.conformance.adapters import torch_process

TITLE = "MosaicML Streaming"
PACKAGES = ("mosaicml-streaming", "torch")
MODULES = ("streaming",)
DOCS = (
    "https://docs.mosaicml.com/projects/streaming/en/stable/distributed_training/elastic_determinism.html",
    "https://docs.mosaicml.com/projects/streaming/en/stable/distributed_training/fast_resumption.html",
)
NOTE = (
    '`StreamingDataset(remote, local, shuffle=True, num_canonical_nodes=1, batch_size, validate_hash="xxh64")` in a '
    "`StreamingDataLoader` with 2 workers; the state of rank 0 restores every rank."
)
RESUMES = ELASTIC = True
SKIPS = ENDLESS = False


def write(folder: str, shards: list[range]) -> None:
    """Writes MDS shards of about the same number of records, with hashes."""
    from streaming import MDSWriter  # noqa: PLC0415

    limit = records.SIZE * max(map(len, shards)) + 4_096
    with MDSWriter(out=folder, columns={"data": "bytes"}, hashes=["xxh64"], size_limit=limit) as writer:
        for shard in shards:
            for record in shard:
                writer.write({"data": records.record(record)})


class Loader:
    """A loader on a rank; all ranks of the machine share the local copy."""

    def __init__(self, job: Job) -> None:
        from streaming import StreamingDataLoader, StreamingDataset  # noqa: PLC0415

        torch_process.join(job.rank, job.ranks)
        dataset = StreamingDataset(
            remote=job.folder,
            local=f"{job.scratch}/local",
            shuffle=True,
            num_canonical_nodes=1,
            batch_size=job.rows,
            validate_hash="xxh64",
        )
        self._loader = StreamingDataLoader(dataset, batch_size=job.rows, num_workers=2, collate_fn=_collate)
        if job.saved:
            self._loader.load_state_dict(torch_process.load(job.saved[0]))

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yields the loader's batches; the dataset counts its epochs itself."""
        for batch in self._loader:
            yield batch["data"], None

    def save(self, path: str) -> None:
        """Writes the loader's state."""
        torch_process.save(self._loader.state_dict(), path)


def _collate(rows: list[dict[str, bytes]]) -> dict[str, list[bytes]]:
    return {"data": [row["data"] for row in rows]}
