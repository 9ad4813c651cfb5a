"""LitData: `StreamingDataset` and `StreamingDataLoader` over chunks that `optimize` wrote."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.conformance import records
from benchmarks.conformance.adapter import Batch, Job
from benchmarks.conformance.adapters import torch_process

TITLE = "LitData"
PACKAGES = ("litdata", "torch")
MODULES = ("litdata",)
DOCS = (
    "https://lightning.ai/docs/litdata/features/mulit-gpu-multi-node",
    "https://github.com/Lightning-AI/litData#pause-resume",
)
NOTE = (
    "`optimize`, then `StreamingDataset(shuffle=True, drop_last=True)` in a `StreamingDataLoader` with 2 workers; "
    "every rank saves and loads its own `state_dict`."
)
RESUMES = ELASTIC = True
SKIPS = ENDLESS = False


def sample(number: int) -> dict[str, np.ndarray]:
    """Returns a record as `optimize` expects it."""
    return {"data": np.frombuffer(records.record(number), np.uint8)}


def write(folder: str, shards: list[range]) -> None:
    """Writes roughly one chunk per shard."""
    import litdata  # noqa: PLC0415

    most = max(map(len, shards))
    litdata.optimize(
        fn=sample, inputs=list(range(records.COUNT)), output_dir=folder, chunk_size=most, num_workers=1, verbose=False
    )


class Loader:
    """A loader on a rank."""

    def __init__(self, job: Job) -> None:
        import litdata  # noqa: PLC0415

        torch_process.join(job.rank, job.ranks)
        dataset = litdata.StreamingDataset(job.folder, shuffle=True, drop_last=True)
        self._loader = litdata.StreamingDataLoader(dataset, batch_size=job.rows, num_workers=2)
        if job.saved:
            self._loader.load_state_dict(torch_process.load(job.own))

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yields the loader's batches; it counts its epochs itself."""
        for batch in self._loader:
            yield [bytes(row) for row in batch["data"].numpy()], None

    def save(self, path: str) -> None:
        """Writes the loader's state."""
        torch_process.save(self._loader.state_dict(), path)
