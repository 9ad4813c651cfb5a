"""Evaluation on exactly the whole split, of each source."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from pipeline.resolved import ResolvedRequest
from trainer.step.train_step import TrainStep
from trainer.task.base import Evaluation
from trainer.task.evaluation import added, result_of


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
