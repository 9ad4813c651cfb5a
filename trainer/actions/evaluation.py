"""Evaluation on exactly the whole split."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import tensorflow as tf

from pipeline.errors import PipelineError
from trainer.actions.output import Output
from trainer.plan import EvaluationPlan
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
      plan: of this pass.
      steps_per_loop: batches between two looks at `stop`.
      stop: whether to give up, the same on all workers.
      output: for the scalars.
    """

    stepper: Stepper
    batches: Iterable[tuple[tf.Tensor, ...]]
    plan: EvaluationPlan
    steps_per_loop: int
    stop: Callable[[], bool]
    output: Output

    def evaluate(self) -> Evaluation | None:
        """Returns the result, also written as scalars of the state's step; None if it was stopped.

        Raises:
          PipelineError: the weights do not sum to the split's number of examples.
        """
        plan, iterator, sums = self.plan, iter(self.batches), [0.0, 0.0, 0.0]
        split = plan.request.data.split
        for begin in range(0, plan.num_steps, self.steps_per_loop):
            if self.stop():
                return None
            steps = min(self.steps_per_loop, plan.num_steps - begin)
            more = self.stepper.evaluate(iterator, tf.constant(steps, tf.int64))
            sums = [total + float(value) for total, value in zip(sums, more, strict=True)]
        weight, loss, correct = sums
        skipped = plan.num_examples - int(weight)
        if not 0 <= skipped <= plan.may_skip or weight == 0:
            raise PipelineError(f"evaluation saw {weight} examples of {split!r}, which has {plan.num_examples}")
        result = Evaluation(split, int(weight), skipped, correct / weight, loss / weight)
        scalars = {"eval/accuracy": result.accuracy, "eval/loss": result.loss}
        self.output.scalars(self.stepper.state.step, scalars)
        return result
