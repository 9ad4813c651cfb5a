"""Sums over rows, from which means follow: additive, so that replicas and batches may be summed in any order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import tensorflow as tf

from pipeline.errors import UsageError
from trainer.task.base import Model, Task

WEIGHT, LOSS = "weight", "loss"
Sums = dict[str, tf.Tensor]  # by name, float32: `weight` (), `loss` (), and what the metrics need


class Measure(Protocol):
    """What a replica computes of its rows, and what follows from the sums over all rows."""

    def train_sums(self, model: Model, features: Any, labels: Any, weights: tf.Tensor) -> Sums:
        """Returns the sums over a replica's rows, with gradients of `loss`; weights are float32 (rows,)."""

    def evaluation_sums(self, model: Model, features: Any, labels: Any, weights: tf.Tensor) -> Sums:
        """Returns the sums over rows in an evaluation."""

    def results(self, sums: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the mean `loss`, then the metrics, float32 scalars, of the sums over all rows."""


class RowMeasure:
    """Weighted means of what a task computes of each row."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def train_sums(self, model: Model, features: Any, labels: Any, weights: tf.Tensor) -> Sums:
        """See `Measure.train_sums`."""
        return self._sums("train_step", self._task.train_step(model, features, labels), weights)

    def evaluation_sums(self, model: Model, features: Any, labels: Any, weights: tf.Tensor) -> Sums:
        """See `Measure.evaluation_sums`."""
        return self._sums("evaluate", self._task.evaluate(model, features, labels), weights)

    def results(self, sums: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """See `Measure.results`."""
        weight = tf.maximum(sums[WEIGHT], 1.0)  # 0 where all rows of a step are skipped corrupt records
        return {name: value / weight for name, value in sums.items() if name != WEIGHT}

    def _sums(self, method: str, given: Any, weights: tf.Tensor) -> Sums:
        values = _checked(f"{type(self._task).__name__}.{method}", given, weights.shape[0])
        return {
            WEIGHT: tf.reduce_sum(weights),
            **{name: tf.reduce_sum(weights * tf.cast(rows, tf.float32)) for name, rows in values.items()},
        }


def _checked(method: str, given: Any, rows: int) -> dict[str, tf.Tensor]:
    """Returns losses and metrics by name.

    Raises:
      UsageError: they are not (losses, {name: metric}), with one number for each row.
    """
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict)):
        raise UsageError(f"{method}: must return losses (rows,) and a dict of metrics (rows,); returned {given!r}")
    losses, metrics = given
    if {WEIGHT, LOSS} & set(metrics):
        raise UsageError(f"{method}: a metric is called weight or loss, which are the trainer's own names")
    values = {LOSS: losses, **metrics}
    for name, value in values.items():
        if not tf.is_tensor(value) or not value.shape.is_compatible_with([rows]):
            got = f"shape {tuple(value.shape)}" if tf.is_tensor(value) else repr(value)
            raise UsageError(
                f"{method}: {name} must have one number for each of {rows} rows, shape ({rows},); got {got}"
            )
    return values
