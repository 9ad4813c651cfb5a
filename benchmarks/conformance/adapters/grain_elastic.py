"""Grain's `ElasticIterator` over ArrayRecord files."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

from benchmarks.conformance import records
from benchmarks.conformance.adapter import Batch, Job

TITLE = "Grain: `ElasticIterator`"
PACKAGES = ("grain", "array_record")
MODULES = ("grain", "array_record")
DOCS = (
    "https://google-grain.readthedocs.io/en/latest/grain.experimental.html",
    "https://google-grain.readthedocs.io/en/latest/tutorials/dataset_basic_tutorial.html",
)
NOTE = (
    "`MapDataset.source(ArrayRecordDataSource).shuffle(seed).repeat()` in an `ElasticIterator`; batches may straddle "
    "epochs, so records are counted over two epochs. The state of rank 0 restores every rank. The files have "
    "`group_size:1,uncompressed`."
)
RESUMES = ELASTIC = ENDLESS = True
SKIPS = False


def write(folder: str, shards: list[range]) -> None:
    """Writes an ArrayRecord file per shard."""
    from array_record.python.array_record_module import ArrayRecordWriter  # noqa: PLC0415

    for number, shard in enumerate(shards):
        writer = ArrayRecordWriter(f"{folder}/train-{number:05d}.arrayrecord", "group_size:1,uncompressed")
        for record in shard:
            writer.write(records.record(record))
        writer.close()


class Loader:
    """An endless elastic iterator, cut into epochs of whole steps."""

    def __init__(self, job: Job) -> None:
        import grain  # noqa: PLC0415
        from grain.experimental import ElasticIterator  # noqa: PLC0415

        files = sorted(map(str, pathlib.Path(job.folder).glob("*.arrayrecord")))
        source = grain.sources.ArrayRecordDataSource(files)
        dataset = grain.MapDataset.source(source).shuffle(seed=1).repeat()
        self._rows = job.rows * job.ranks
        shard = grain.sharding.ShardOptions(shard_index=job.rank, shard_count=job.ranks)
        self._iterator = iter(ElasticIterator(dataset, self._rows, shard))
        self._step = 0
        if job.saved:
            state = json.loads(pathlib.Path(job.saved[0]).read_text())
            self._iterator.set_state(state["iterator"])
            self._step = state["step"]

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yields batches up to the step that contains the epoch's last record."""
        while self._step < -((number + 1) * -records.COUNT // self._rows):
            batch = next(self._iterator)
            self._step += 1
            yield list(batch), None

    def save(self, path: str) -> None:
        """Writes the iterator's state as JSON."""
        state = {"iterator": self._iterator.get_state(), "step": self._step}
        pathlib.Path(path).write_text(json.dumps(state))
