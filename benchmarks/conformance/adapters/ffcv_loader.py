"""FFCV's `Loader` over a .beton file of arrays."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.conformance import records
from benchmarks.conformance.adapter import Batch, Job
from benchmarks.conformance.adapters import torch_process

TITLE = "FFCV"
PACKAGES = ("ffcv", "torch")
MODULES = ("ffcv",)
DOCS = ("https://docs.ffcv.io/making_dataloaders.html", "https://docs.ffcv.io/parameter_tuning.html")
NOTE = (
    "`Loader(order=OrderOption.RANDOM, distributed=True, seed=1, drop_last=True, num_workers=1)`; on one rank without "
    "`distributed`. Its docs say nothing about resuming."
)
RESUMES = ELASTIC = SKIPS = ENDLESS = False


class Records:
    """An indexable data set, as `DatasetWriter` expects it."""

    def __len__(self) -> int:
        return records.COUNT

    def __getitem__(self, index: int) -> tuple[np.ndarray]:
        return (np.frombuffer(records.record(int(index)), np.uint8),)


def write(folder: str, shards: list[range]) -> None:
    """Writes one file."""
    from ffcv.fields import NDArrayField  # noqa: PLC0415
    from ffcv.writer import DatasetWriter  # noqa: PLC0415

    field = NDArrayField(shape=(records.SIZE,), dtype=np.dtype("uint8"))
    DatasetWriter(f"{folder}/train.beton", {"data": field}, num_workers=1).from_indexed_dataset(Records())


class Loader:
    """A loader on a rank."""

    def __init__(self, job: Job) -> None:
        from ffcv.fields.decoders import NDArrayDecoder  # noqa: PLC0415
        from ffcv.loader import Loader as FfcvLoader  # noqa: PLC0415
        from ffcv.loader import OrderOption  # noqa: PLC0415

        if job.ranks > 1:
            torch_process.join(job.rank, job.ranks)
        self._loader = FfcvLoader(
            f"{job.folder}/train.beton",
            batch_size=job.rows,
            num_workers=1,
            order=OrderOption.RANDOM,
            distributed=job.ranks > 1,
            seed=1,
            drop_last=True,
            pipelines={"data": [NDArrayDecoder()]},
        )

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yields copies of the loader's batches, since it reuses their memory."""
        for (batch,) in self._loader:
            yield [bytes(row) for row in np.array(batch)], None

    def save(self, path: str) -> None:
        """Not supported."""
        raise NotImplementedError
