"""Evaluation on exactly the whole split."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import tensorflow as tf

from pipeline.errors import PipelineError
from pipeline.resolved import ResolvedRequest
from trainer.actions.scalars import Scalars
from trainer.step.updates import Stepper


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Accuracy and mean cross-entropy over `num_examples` examples of a split; corrupt ones were skipped."""

    split: str
    num_examples: int
    num_skipped: int
    accuracy: float
    loss: float

    def __str__(self) -> str:
        """The line that ends a run."""
        skipped = f"; {self.num_skipped} corrupt left out" if self.num_skipped else ""
        return f"{self.split} accuracy = {self.accuracy:.4f} ({self.num_examples} examples{skipped})"


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
      scalars: where the results go, too.
    """

    stepper: Stepper
    batches: Iterable[tuple[tf.Tensor, ...]]
    split: ResolvedRequest
    may_skip: int
    steps_per_loop: int
    stop: Callable[[], bool]
    scalars: Scalars

    def evaluate(self) -> Evaluation | None:
        """Returns the result, also written as scalars of the state's step; None if it was stopped.

        Raises:
          PipelineError: the weights do not sum to the split's number of examples.
        """
        order, name = self.split.order, self.split.request.split
        iterator, sums = iter(self.batches), [0.0, 0.0, 0.0]
        for begin in range(0, order.steps_per_epoch, self.steps_per_loop):
            if self.stop():
                return None
            steps = min(self.steps_per_loop, order.steps_per_epoch - begin)
            more = self.stepper.evaluate(iterator, tf.constant(steps, tf.int64))
            sums = [total + float(value) for total, value in zip(sums, more, strict=True)]
        weight, loss, correct = sums
        skipped = order.num_records - int(weight)
        if not 0 <= skipped <= self.may_skip or weight == 0:
            raise PipelineError(f"evaluation saw {weight} examples of {name!r}, which has {order.num_records}")
        result = Evaluation(name, int(weight), skipped, correct / weight, loss / weight)
        values = {f"eval/{name}/accuracy": result.accuracy, f"eval/{name}/loss": result.loss}
        self.scalars.write(self.stepper.state.step, values)
        return result
