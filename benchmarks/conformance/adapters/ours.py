"""This input: `pipeline.StepIterator` over TFRecords that `pipeline.index` indexed."""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
from collections.abc import Iterator

from benchmarks.conformance.adapter import Batch, Job
from benchmarks.conformance.adapters import tfrecords

TITLE = "this input"
PACKAGES: tuple[str, ...] = ("tensorflow",)
MODULES = ("tensorflow", "pipeline")
DOCS: tuple[str, ...] = ()
NOTE = (
    '`StepIterator` with `remainder="pad"` over TFRecords that `pipeline.index` indexed ([order](order.md), '
    "[reading](reading.md)); padding has weight 0."
)
RESUMES = ELASTIC = SKIPS = True
ENDLESS = False


def write(folder: str, shards: list[range]) -> None:
    """Writes TFRecords and indexes them."""
    from pipeline.index.__main__ import main  # noqa: PLC0415

    tfrecords.write(folder, shards)
    with contextlib.redirect_stdout(io.StringIO()):
        main([folder, "--split=train:*.tfrecord"])


class Loader:
    """`StepIterator` on a rank's shard."""

    def __init__(self, job: Job) -> None:
        from pipeline import Shard, StepIterator, steps_per_epoch  # noqa: PLC0415

        rows = job.rows * job.ranks
        self._iterator = StepIterator(
            job.folder,
            global_batch_size=rows,
            training=True,
            parse=lambda found: found,
            shard=Shard(job.rank, job.ranks),
            on_corrupt="skip" if job.skip else "raise",
            max_corrupt=100,
        )
        if job.saved:
            self._iterator.set_state(json.loads(pathlib.Path(job.own).read_text()))
        self._steps = steps_per_epoch(job.folder, global_batch_size=rows)

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yields batches up to the epoch's last step."""
        while self._iterator.step < (number + 1) * self._steps:
            found, weights = next(self._iterator)
            yield list(found), list(weights)

    def save(self, path: str) -> None:
        """Writes the state as JSON."""
        pathlib.Path(path).write_text(json.dumps(self._iterator.get_state()))
