"""Evaluation on exactly the whole split."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from pipeline.errors import PipelineError
from pipeline.resolved import ResolvedRequest
from trainer.step.updates import Stepper
from trainer.task.sums import LOSS, WEIGHT, Measure


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Means over the examples of a split.

    Attributes:
      split: its name.
      num_examples: of which it is the mean: all but corrupt ones that were skipped.
      num_skipped: of these.
      loss: without regularisation.
      metrics: by name, such as `accuracy`.
      averaged: whether the weights were the average over the steps.
    """

    split: str
    num_examples: int
    num_skipped: int
    loss: float
    metrics: dict[str, float]
    averaged: bool = False

    def scalars(self) -> dict[str, float]:
        """Returns the means by their tags for TensorBoard."""
        return {f"eval/{self.split}/{name}": value for name, value in {LOSS: self.loss, **self.metrics}.items()}

    @property
    def accuracy(self) -> float:
        """The metric of classification."""
        return self.metrics["accuracy"]

    def __str__(self) -> str:
        """The line that ends a run."""
        values = ", ".join(f"{name} = {value:.4f}" for name, value in (self.metrics or {"loss": self.loss}).items())
        skipped = f"; {self.num_skipped} corrupt left out" if self.num_skipped else ""
        averaged = "; averaged weights" if self.averaged else ""
        return f"{self.split} {values} ({self.num_examples} examples{skipped}{averaged})"


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """Evaluates the state of a stepper.

    Attributes:
      stepper: with the model.
      batches: one pass over the split, padded with weight 0.
      split: what is read in this pass.
      may_skip: how many examples may be left out because their records are corrupt.
      steps_per_loop: batches between two looks at `stop`.
      stop: whether to give up, the same on all workers.
      write: where the results go, too: a global step and values by tag.
    """

    stepper: Stepper
    batches: Iterable[tuple[Any, ...]]
    split: ResolvedRequest
    may_skip: int
    steps_per_loop: int
    stop: Callable[[], bool]
    write: Callable[[int, dict[str, float]], None]

    def evaluate(self) -> Evaluation | None:
        """Returns the result, also written as values of the state's step; None if it was stopped.

        Raises:
          PipelineError: the weights do not sum to the split's number of examples.
        """
        order, state = self.split.order, self.stepper.state
        iterator, totals = iter(self.batches), dict[str, tf.Tensor]()
        for begin in range(0, order.steps_per_epoch, self.steps_per_loop):
            if self.stop():
                return None
            steps = min(self.steps_per_loop, order.steps_per_epoch - begin)
            sums = self.stepper.evaluate(iterator, tf.constant(steps, tf.int64))
            totals = {key: value + totals.get(key, 0.0) for key, value in sums.items()}
        result = result_of(self.split, totals, state.measure, self.may_skip, averaged=state.averages is not None)
        self.write(state.step, result.scalars())
        return result


def result_of(
    split: ResolvedRequest, totals: Mapping[str, tf.Tensor], measure: Measure, may_skip: int, averaged: bool
) -> Evaluation:
    """Returns the means that follow from the measure's sums over a whole split.

    Args:
      split: what was read.
      totals: float64.
      measure: whose sums they are.
      may_skip: how many examples may be left out because their records are corrupt.
      averaged: whether the weights were the average over the steps.

    Raises:
      PipelineError: the weights do not sum to the split's number of examples.
    """
    order, name, weight = split.order, split.request.split, float(totals[WEIGHT])
    skipped = order.num_records - int(weight)
    if not 0 <= skipped <= may_skip or weight == 0:
        raise PipelineError(f"evaluation saw {weight} examples of {name!r}, which has {order.num_records}")
    values = {key: float(value) for key, value in measure.results(totals).items()}
    return Evaluation(name, int(weight), skipped, values.pop(LOSS), values, averaged)
