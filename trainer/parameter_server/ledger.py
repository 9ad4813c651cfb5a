"""The ledger: how often each step was begun, and how often applied, counted on a parameter server."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

SPAN = 1 << 14  # most steps between two readings: the variable has a row for each
_BEGUN, _APPLIED = 0, 1


class Ledger(tf.Module):
    """Two counts for each step since the last reading, on a parameter server.

    A worker marks a step as begun before it applies the gradient, and as applied after that. If it is lost in between,
    nobody knows which part of the gradient was applied; the step is then begun again.

    Attributes:
      counts: int32 (SPAN, 2), the row of step s is s % SPAN.
    """

    def __init__(self, span: int = SPAN) -> None:
        """Makes the counts; call it in the strategy's scope."""
        super().__init__()
        self.counts = tf.Variable(tf.zeros([span, 2], tf.int32), trainable=False, name="ledger")
        self._span = span

    def missing(self, first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Returns which of `count` steps from `first` on (int64 scalars) have not been applied, int64 (n,)."""
        steps = tf.range(first, first + count)
        counts = self.counts.sparse_read(steps % self._span)
        return tf.boolean_mask(steps, tf.equal(counts[:, _APPLIED], 0))

    def begin(self, step: tf.Tensor) -> tf.Operation:
        """Marks a step as begun."""
        return self._mark(step, _BEGUN)

    def applied(self, step: tf.Tensor) -> tf.Operation:
        """Marks a step as applied."""
        return self._mark(step, _APPLIED)

    def _mark(self, step: tf.Tensor, column: int) -> tf.Operation:
        where = tf.stack([step % self._span, tf.constant(column, tf.int64)])[None]
        handle = self.counts.handle
        with tf.device(handle.device):
            marked: tf.Operation = tf.raw_ops.ResourceScatterNdAdd(
                ref=handle, indices=where, updates=tf.ones([1], tf.int32)
            )
        return marked

    def read(self, first: int, stop: int) -> Tally:
        """Returns how the steps first to stop - 1 went, and clears the counts; no worker may be at work."""
        rows = self.counts.numpy()[np.arange(first, stop) % self._span]
        self.counts.assign(tf.zeros_like(self.counts))
        begun, applied = rows[:, _BEGUN], rows[:, _APPLIED]
        return Tally(
            once=int(np.sum(applied == 1)),
            twice=int(np.sum(applied > 1)),
            never=int(np.sum(applied == 0)),
            again=int(np.sum(begun > np.maximum(applied, 1))),
        )


@dataclasses.dataclass
class Tally:
    """How steps went; a checkpoint remembers it.

    Attributes:
      once, twice, never: steps that were applied once, more often, not at all.
      again: of these, steps that a lost worker had begun: part of its gradient may have been applied as well.
      dropped: gradients that came too late; their rows were computed again, or by another worker as well.
    """

    once: int = 0
    twice: int = 0
    never: int = 0
    again: int = 0
    dropped: int = 0

    def add(self, more: Tally) -> None:
        """Adds other steps."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(more, field.name))

    def state_dict(self) -> dict[str, int]:
        """Returns what a checkpoint remembers."""
        return dataclasses.asdict(self)

    def load_state_dict(self, stored: Any) -> None:
        """Takes over what a checkpoint remembers."""
        for name, value in (stored or {}).items():
            setattr(self, name, int(value))

    def __str__(self) -> str:
        """The line at the end of a run."""
        again = f"; {self.again} of them begun by a worker that was lost, and again by another" if self.again else ""
        dropped = f"; {self.dropped} late gradients dropped, their rows computed again" if self.dropped else ""
        counts = f"{self.once:,} applied once, {self.twice:,} twice, {self.never:,} not at all"
        return f"ledger: of {self.once + self.twice + self.never:,} steps, {counts}{again}{dropped}"
