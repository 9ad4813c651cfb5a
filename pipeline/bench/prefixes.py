"""The pipeline that makes batches, cut off after each of its stages, over a window that stays in memory."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import tensorflow as tf

from pipeline.batch.batches import Batches
from pipeline.batch.dataset import Run
from pipeline.bench.stages import DECODE, GATHER, NUMBERS, WEIGHTS
from pipeline.order.window_plan import WindowPlan
from pipeline.read.window import GOOD, RECORD_ID, Columns, LocalReader


@dataclasses.dataclass(frozen=True, eq=False)
class Prefix(Batches):
    """`Batches` that hand on what there is after a stage.

    Attributes:
      last: the stage. `NUMBERS` hands on the element's number alone, in each of its rows, which is what tf.data itself
        costs; `WEIGHTS` the weights alone.
    """

    last: str = NUMBERS

    @classmethod
    def of(cls, batches: Batches, last: str) -> Prefix:
        """Returns the prefix of `batches` that ends with a stage."""
        return cls(batches.resolved, batches.form, batches.recipe, last)

    def element(self, taken: Columns, plan: WindowPlan, number: tf.Tensor) -> tuple[Any, ...]:
        """See `Batches.element`."""
        if self.last == NUMBERS:
            return (number[..., None] + tf.zeros([taken[RECORD_ID].shape[-1]], tf.int64),)
        if self.last == WEIGHTS:
            return tuple(self.weights(taken, plan, number))
        if self.last == GATHER:
            return tuple(taken.values())
        records = taken[RECORD_ID]
        columns = {name: column for name, column in taken.items() if name not in (RECORD_ID, GOOD)}
        examples = self.form.examples(columns, lambda: self.keys_of(plan.epoch, records))
        if self.last == DECODE:
            return examples.images, examples.labels, records
        return *self.distorted(examples, plan.epoch, records, self.real(taken, plan, number)), records


@dataclasses.dataclass(frozen=True)
class OneWindow(Run):
    """A run whose window is always the same, planned once.

    Attributes:
      window: its number in the epoch.
    """

    window: int = 0

    def plans(self, contiguous: bool = False) -> tf.data.Dataset:
        """See `Run.plans`."""
        return super().plans(contiguous).skip(self.window).take(1).cache().repeat()


class Held(LocalReader):
    """A reader of a window that is in memory already."""

    assigns_rows: ClassVar[bool]

    def __init__(self, reader: LocalReader, columns: Columns) -> None:
        """Hands on `columns`, which `reader` has read."""
        self.assigns_rows, self.specs = reader.assigns_rows, reader.specs  # type: ignore[misc]
        self._columns = columns

    def fetch_ahead(self, pieces: tf.Tensor) -> tf.Tensor:
        """See `WindowReader.fetch_ahead`: nothing is left to fetch."""
        return pieces

    def read(self, pieces: tf.Tensor, row_of: tf.Tensor) -> Columns:
        """See `WindowReader.read`."""
        del pieces, row_of
        return dict(self._columns)


def first_full_window(run: Run) -> int:
    """Returns the number of the first window of an epoch in which an element is complete."""
    feed = run.feed
    return next(w for w in range(feed.order.windows) if int(feed.steps_before(w + 1)) > int(feed.steps_before(w)))
