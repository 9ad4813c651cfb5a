"""Records of steps: workers' reports, averages and sums over them, and the ledger on a parameter server."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from trainer.step.measures import WEIGHT, Measure, Sums
from trainer.step.state import DECAY
from trainer.step.train_step import AVERAGED, REGULARIZATION, TOTAL_LOSS, LoopResult
from trainer.task import LOSS

_OWN = 2  # numbers before the sums: regularisation and norm


class Row(NamedTuple):
    """Results of a step.

    Attributes:
      penalty: regularisation term.
      norm: norm of the gradient before clipping.
      sums: sums of the measure, flattened and concatenated.
    """

    penalty: float
    norm: float
    sums: np.ndarray


class Rows:
    """Packs and unpacks rows. The names and shapes of the sums are known once a graph has been traced."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._shapes: dict[str, tf.TensorShape] = {}

    def packed(self, sums: Sums, penalty: tf.Tensor, norm: tf.Tensor) -> tf.Tensor:
        """Returns a row as a string scalar, since a graph needs its shape before the sums are known."""
        self._shapes = {name: value.shape for name, value in sums.items()}
        flat = [tf.reshape(tf.cast(value, tf.float32), [-1]) for value in sums.values()]
        return tf.io.serialize_tensor(tf.concat([tf.stack([penalty, norm]), *flat], axis=0))

    def unpacked(self, text: bytes) -> Row:
        """Unpacks a row."""
        numbers = tf.io.parse_tensor(text, tf.float32).numpy()
        return Row(float(numbers[0]), float(numbers[1]), numbers[_OWN:].astype(np.float64))

    def loss(self, row: Row) -> float:
        """Returns the mean loss of a step without regularisation."""
        sums = self._sums(row)
        return float(sums[LOSS]) / (float(sums[WEIGHT]) or 1.0)

    def weight(self, row: Row) -> float:
        """Returns the sum of the weights of a step's examples."""
        return float(self._sums(row)[WEIGHT])

    def values(self, row: Row) -> dict[str, float]:
        """Returns the loss and metrics of a step, in the order of `LoopResult.values`."""
        sums = {name: tf.constant(value, tf.float32) for name, value in self._sums(row).items()}
        results = {name: float(value) for name, value in self._measure.results(sums).items()}
        return {TOTAL_LOSS: results[LOSS] + row.penalty, REGULARIZATION: row.penalty, **results}

    def _sums(self, row: Row) -> dict[str, np.ndarray]:
        sizes = [shape.num_elements() for shape in self._shapes.values()]
        parts = np.split(row.sums, np.cumsum(sizes)[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}


class Averages:
    """Moving averages of the losses over the steps, in order; a checkpoint saves them."""

    def __init__(self, is_skipped: Callable[[int], bool] = lambda _: False) -> None:
        self.values = [math.nan] * len(AVERAGED)
        self._is_skipped = is_skipped

    def add(self, step: int, loss: float, penalty: float) -> None:
        """Adds a step by its number, counted from 0. A skipped step has no loss and must not be added."""
        if self._is_skipped(step):
            return
        values = {TOTAL_LOSS: loss + penalty, LOSS: loss, REGULARIZATION: penalty}
        for i, name in enumerate(AVERAGED):
            old, new = self.values[i], values[name]
            self.values[i] = new if math.isnan(old) else DECAY * old + (1 - DECAY) * new

    def state_dict(self) -> list[float | None]:
        """Returns the state for a checkpoint."""
        return [None if math.isnan(value) else value for value in self.values]

    def load_state_dict(self, stored: list[float | None] | None) -> None:
        """Restores the state from a checkpoint; None if it has none."""
        if stored is not None:
            self.values = [math.nan if value is None else value for value in stored]


class EpochSums:
    """Sums over the steps of the current epoch, in order; a checkpoint saves them as `LoopResult.epoch`."""

    def __init__(self, steps_per_epoch: int) -> None:
        self._steps_per_epoch = steps_per_epoch
        self._epoch: int | None = None  # None for the next step's epoch, which continues the sums
        self._sums = np.zeros(0)

    @property
    def steps(self) -> int:
        """Number of steps added."""
        return int(self._sums[0]) if len(self._sums) else 0

    def add(self, step: int, row: Row, weight: float) -> None:
        """Adds a step with the total weight of its examples; the first step of another epoch resets the sums."""
        here = np.concatenate([[1.0, row.penalty * weight], row.sums])
        goes_on = step % self._steps_per_epoch and self._epoch in (None, step // self._steps_per_epoch)
        self._sums = self._sums + here if goes_on and len(here) == len(self._sums) else here
        self._epoch = step // self._steps_per_epoch

    def means(self, rows: Rows) -> list[float]:
        """Returns the means over the epoch, in the order of `LoopResult.values`; NaN if all steps were skipped."""
        total = Row(0.0, 0.0, self._sums[_OWN:])
        weight = rows.weight(total)
        means = rows.values(total._replace(penalty=float(self._sums[1]) / (weight or 1.0)))
        return list(means.values()) if weight > 0 else [math.nan] * len(means)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint."""
        return {"steps_per_epoch": self._steps_per_epoch, "sums": self._sums.tolist()}

    def load_state_dict(self, stored: dict[str, Any] | None) -> None:
        """Restores the state from a checkpoint; None if it has none."""
        if stored is not None and stored["steps_per_epoch"] == self._steps_per_epoch:
            self._sums = np.array(stored["sums"])


def loop_result(step: int, averages: Averages, means: list[float], norm: float) -> LoopResult:
    """Returns a step's results in the form that actions expect."""
    none = tf.zeros([0])
    return LoopResult(
        tf.constant(step, tf.int64),
        none,
        tf.constant(True),
        tf.constant(0.0, tf.float64),
        tf.constant(0.0, tf.float64),
        tf.constant(averages.values),
        none,
        tf.constant(means, tf.float64),
        norm=tf.constant(norm),
    )


SPAN = 1 << 14  # maximum number of steps between readings, as the variable has a row for each
_BEGUN, _APPLIED = 0, 1


class Ledger(tf.Module):
    """Two counts for each step since the last reading, on a parameter server.

    A worker marks a step as begun before it applies the gradient, and as applied afterwards. If the worker is lost in
    between, it is unknown which part of the gradient was applied; the step is then run again.

    Attributes:
      counts: variable with the counts, int32 (SPAN, 2); step s has row s % SPAN.
    """

    def __init__(self, span: int = SPAN) -> None:
        """Makes the counts. Call it in the strategy's scope."""
        super().__init__()
        self.counts = tf.Variable(tf.zeros([span, 2], tf.int32), trainable=False, name="ledger")
        self._span = span

    def missing(self, first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Returns the steps among the `count` from `first` (int64 scalars) that have not been applied, int64 (n,)."""
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
        """Returns the tally of steps `first` to `stop - 1` and clears the counts; no worker may be running."""
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
    """Counts of what happened to steps; a checkpoint saves them.

    Attributes:
      once, twice, never: number of steps applied once, more than once, and not at all.
      again: number of these that a lost worker had also begun: part of its gradient may have been applied as well.
      dropped: number of gradients that came too late; their rows were computed again, or by another worker as well.
    """

    once: int = 0
    twice: int = 0
    never: int = 0
    again: int = 0
    dropped: int = 0

    def add(self, more: Tally) -> None:
        """Adds the counts of other steps."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(more, field.name))

    def state_dict(self) -> dict[str, int]:
        """Returns the state for a checkpoint."""
        return dataclasses.asdict(self)

    def load_state_dict(self, stored: Any) -> None:
        """Restores the state from a checkpoint."""
        for name, value in (stored or {}).items():
            setattr(self, name, int(value))

    def __str__(self) -> str:
        """The line at the end of a run."""
        again = f"; {self.again} of them begun by a worker that was lost, and again by another" if self.again else ""
        dropped = f"; {self.dropped} late gradients dropped, their rows computed again" if self.dropped else ""
        counts = f"{self.once:,} applied once, {self.twice:,} twice, {self.never:,} not at all"
        return f"ledger: of {self.once + self.twice + self.never:,} steps, {counts}{again}{dropped}"
