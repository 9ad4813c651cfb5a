"""Plain tf.data: files divided by `shard`, then shuffled, as `tf.data.Dataset.shard` documents it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.conformance import records
from benchmarks.conformance.adapter import Batch, Job
from benchmarks.conformance.adapters import tfrecords

TITLE = "tf.data: `shard`, `shuffle`"
PACKAGES = ("tensorflow",)
MODULES = ("tensorflow",)
DOCS = (
    "https://www.tensorflow.org/api_docs/python/tf/data/Dataset#shard",
    "https://www.tensorflow.org/guide/data#iterator_checkpointing",
)
NOTE = (
    "`list_files(shuffle=False)`, `shard` by rank, `shuffle`, `interleave`, `batch`; the iterator in a "
    "`tf.train.Checkpoint`; `ignore_errors()` to skip."
)
RESUMES = SKIPS = True
ELASTIC = ENDLESS = False
write = tfrecords.write


class Loader:
    """A new dataset per epoch, since the seed changes with the epoch."""

    def __init__(self, job: Job) -> None:
        self._job, self._resume = job, bool(job.saved)

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yields the batches of a new iterator; the first one is restored if there is a checkpoint."""
        import tensorflow as tf  # noqa: PLC0415

        self._iterator = iter(dataset(self._job, seed=number, shard=True))
        if self._resume:
            tf.train.Checkpoint(iterator=self._iterator).read(_prefix(self._job.own)).assert_consumed()
            self._resume = False
        for batch in self._iterator:
            yield list(batch.numpy()), None

    def save(self, path: str) -> None:
        """Writes a checkpoint, and a file with its name next to it."""
        import tensorflow as tf  # noqa: PLC0415

        found = tf.train.Checkpoint(iterator=self._iterator).write(path + "-checkpoint")
        with open(path, "w") as file:
            file.write(found)


def _prefix(path: str) -> str:
    with open(path) as file:
        return file.read()


def dataset(job: Job, seed: int, shard: bool) -> Any:
    """Returns an epoch of a rank's batches; without `shard`, of batches of all records."""
    import tensorflow as tf  # noqa: PLC0415

    files = tf.data.Dataset.list_files(f"{job.folder}/*.tfrecord", shuffle=False)
    if shard:
        files = files.shard(job.ranks, job.rank)
    files = files.shuffle(records.SHARDS, seed=seed)
    found = files.interleave(tf.data.TFRecordDataset, cycle_length=4).shuffle(records.COUNT, seed=seed)
    return (found.ignore_errors() if job.skip else found).batch(job.rows).prefetch(tf.data.AUTOTUNE)
