"""torchdata's `StatefulDataLoader` with its `StatefulDistributedSampler` over a map-style data set."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.conformance import records
from benchmarks.conformance.adapter import Batch, Job
from benchmarks.conformance.adapters import torch_process

TITLE = "torchdata: `StatefulDataLoader`"
PACKAGES = ("torchdata", "torch")
MODULES = ("torchdata.stateful_dataloader",)
DOCS = (
    "https://docs.pytorch.org/data/main/stateful_dataloader_tutorial.html",
    "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler",
)
NOTE = (
    "`StatefulDataLoader(sampler=StatefulDistributedSampler(shuffle=True), num_workers=2)` over a file of records, "
    "`set_epoch` before each epoch; every rank saves and loads its own `state_dict`. The format is the user's own."
)
RESUMES = True
ELASTIC = SKIPS = ENDLESS = False


def write(folder: str, shards: list[range]) -> None:
    """Writes one file of records of equal length."""
    with open(f"{folder}/train.bin", "wb") as file:
        file.writelines(records.record(number) for shard in shards for number in shard)


class Records:
    """A map-style data set, as documented by torch.utils.data."""

    def __init__(self, folder: str) -> None:
        self._path = f"{folder}/train.bin"

    def __len__(self) -> int:
        return records.COUNT

    def __getitem__(self, index: int) -> bytes:
        with open(self._path, "rb") as file:
            file.seek(index * records.SIZE)
            return file.read(records.SIZE)


class Loader:
    """A loader on a rank."""

    def __init__(self, job: Job) -> None:
        from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: PLC0415
        from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler  # noqa: PLC0415

        dataset = Records(job.folder)
        self._sampler = StatefulDistributedSampler(dataset, job.ranks, job.rank, shuffle=True, seed=1)
        self._loader = StatefulDataLoader(
            dataset, batch_size=job.rows, sampler=self._sampler, num_workers=2, collate_fn=list
        )
        if job.saved:
            self._loader.load_state_dict(torch_process.load(job.own))

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yields the loader's batches."""
        self._sampler.set_epoch(number)
        for batch in self._loader:
            yield batch, None

    def save(self, path: str) -> None:
        """Writes the loader's state."""
        torch_process.save(self._loader.state_dict(), path)
