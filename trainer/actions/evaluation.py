"""Evaluation on exactly the whole split, of each source."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from pipeline.errors import PipelineError
from pipeline.resolved import ResolvedRequest
from trainer.step.train_step import TrainStep
from trainer.task.base import LOSS, WEIGHT, Evaluation, Measure


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """Evaluates the state of a stepper.

    Attributes:
      stepper: with the model.
      batches: by name, one pass over the split of each source, padded with weight 0.
      splits: by name, what is read in these passes.
      may_skip: how many examples of each may be left out because their records are corrupt.
      steps_per_loop: batches between two looks at `stop`.
      stop: whether to give up, the same on all workers.
      write: where the results go, too: a global step and values by tag.
    """

    stepper: TrainStep
    batches: Mapping[str, Iterable[tuple[Any, ...]]]
    splits: Mapping[str, ResolvedRequest]
    may_skip: int
    steps_per_loop: int
    stop: Callable[[], bool]
    write: Callable[[int, dict[str, float]], None]

    def evaluate(self) -> Evaluation | None:
        """Returns the result, also written as values of the state's step; None if it was stopped.

        Raises:
          PipelineError: the weights do not sum to the split's number of examples.
        """
        state, totals = self.stepper.state, dict[str, Mapping[str, tf.Tensor]]()
        for name, split in self.splits.items():
            sums = self._sums(self.batches[name], split.order.steps_per_epoch)
            if sums is None:
                return None
            totals[name] = sums
        result = result_of(self.splits, totals, state.measure, self.may_skip, averaged=state.averages is not None)
        self.write(state.step, result.scalars())
        return result

    def names(self) -> list[str]:
        """Returns the names of the loss and the metrics, as one batch has them."""
        name = next(iter(self.splits))
        sums = self.stepper.evaluate(iter(self.batches[name]), tf.constant(1, tf.int64))
        return list(self.stepper.state.measure.results(sums))

    def _sums(self, batches: Iterable[tuple[Any, ...]], all_steps: int) -> Mapping[str, tf.Tensor] | None:
        iterator, totals = iter(batches), dict[str, tf.Tensor]()
        for begin in range(0, all_steps, self.steps_per_loop):
            if self.stop():
                return None
            steps = min(self.steps_per_loop, all_steps - begin)
            totals = added(totals, self.stepper.evaluate(iterator, tf.constant(steps, tf.int64)))
        return totals


def added(totals: Mapping[str, tf.Tensor], sums: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns the totals, float64, with further sums; the first ones are added to nothing."""
    return {name: tf.cast(value, tf.float64) + totals.get(name, 0.0) for name, value in sums.items()}


def result_of(
    splits: Mapping[str, ResolvedRequest],
    totals: Mapping[str, Mapping[str, tf.Tensor]],
    measure: Measure,
    may_skip: int,
    averaged: bool,
) -> Evaluation:
    """Returns the means that follow from the measure's sums over whole splits: over all their examples, and of each.

    Args:
      splits: by name, what was read.
      totals: by name, float64.
      measure: whose sums they are.
      may_skip: how many examples of a split may be left out because their records are corrupt.
      averaged: whether the weights were the average over the steps.

    Raises:
      PipelineError: the weights do not sum to a split's number of examples.
    """
    parts = []
    for name, split in splits.items():
        count, weight = split.order.num_records, float(totals[name][WEIGHT])
        if not 0 <= count - int(weight) <= may_skip or weight == 0:
            raise PipelineError(f"evaluation saw {weight} examples of {name!r}, which has {count}")
        parts.append(_means(name, count, totals[name], measure, averaged))
    if len(parts) == 1:
        return parts[0]
    pooled: dict[str, tf.Tensor] = {}
    for sums in totals.values():
        pooled = added(pooled, sums)
    count, text = sum(split.order.num_records for split in splits.values()), next(iter(splits.values())).request.split
    return dataclasses.replace(_means(text, count, pooled, measure, averaged), parts=tuple(parts))


def _means(name: str, count: int, sums: Mapping[str, tf.Tensor], measure: Measure, averaged: bool) -> Evaluation:
    values, weight = {key: float(value) for key, value in measure.results(sums).items()}, int(float(sums[WEIGHT]))
    return Evaluation(name, weight, count - weight, values.pop(LOSS), values, averaged)
