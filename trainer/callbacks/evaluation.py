"""The evaluations of a run, every --eval_every and at the end: printed, ranked and passed to the callbacks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from pipeline.resolved import ResolvedRequest
from trainer.callbacks.base import Callback, Phase
from trainer.callbacks.terminal import Output
from trainer.checkpoint.best import BestCheckpoints
from trainer.config.steps import Period
from trainer.loop import Action, Progress
from trainer.step.evaluation import EvaluationStep
from trainer.step.measures import added, result_of
from trainer.task import Evaluation


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """Evaluates the state of an `EvaluationStep`.

    Attributes:
      stepper: evaluation step, which has the state.
      batches: {name: one pass over a source's split, padded with weight 0}.
      splits: {name: split that the pass reads}.
      may_skip: largest number of examples of a split that may be left out because their records are corrupt.
      steps_per_loop: number of batches per loop.
      stop: function called before each loop that returns whether to give up, the same on all workers.
    """

    stepper: EvaluationStep
    batches: Mapping[str, Iterable[tuple[Any, ...]]]
    splits: Mapping[str, ResolvedRequest]
    may_skip: int
    steps_per_loop: int
    stop: Callable[[], bool]

    def evaluate(self) -> Evaluation | None:
        """Returns the result; None if it was stopped.

        Raises:
          PipelineError: the weights do not sum to the split's number of examples.
        """
        state, totals = self.stepper.state, dict[str, Mapping[str, tf.Tensor]]()
        for name, split in self.splits.items():
            sums = self._sums(self.batches[name], split.order.steps_per_epoch)
            if sums is None:
                return None
            totals[name] = sums
        return result_of(self.splits, totals, state.measure, self.may_skip, averaged=state.averages is not None)

    def names(self) -> list[str]:
        """Returns the names of the loss and the metrics, from one batch."""
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


class Evaluations(Callback):
    """Evaluates at regular steps and at the end, prints and ranks the results, and notifies the other callbacks.

    Args:
      evaluator: evaluator of the state.
      best: ranking that keeps the best states; None not to rank results.
      output: output for the lines.
      period: period of the evaluations, besides the one at the end.
      last_step: step at which training ends.
      tell: callback that gets each evaluation before it is ranked.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        best: BestCheckpoints | None,
        output: Output,
        period: Period,
        last_step: int,
        tell: Callback,
    ) -> None:
        self._evaluator, self._best, self._output, self._tell = evaluator, best, output, tell
        self._period, self._last_step = period, last_step
        self._latest: tuple[int, Evaluation] | None = None

    def actions(self) -> list[Action]:
        return [Action(self._period, self.during, pauses=True)]

    def is_due(self, step: int) -> bool:
        """Returns whether a step will be evaluated, not counting evaluations by the clock."""
        return self._period.is_due(step) or step == self._last_step

    def during(self, progress: Progress) -> None:
        """Evaluates between two steps; the evaluation of the last step is left to `at_end`."""
        if progress.step != self._last_step:
            self._evaluate(progress.step)

    def before(self, start: int) -> bool:
        """Makes up for an evaluation missing from the restored checkpoint, if evaluations are ranked.

        Returns:
          Whether the run may continue; False if a signal stopped the evaluation.

        Raises:
          UsageError: evaluations lack the metric to rank them by.
        """
        if self._best is None:
            return True
        self._best.ranking.check(self._evaluator.names)
        return not self._best.is_missing(start, self._period.is_due(start)) or self._evaluate(start)

    def at_end(self, step: int) -> Evaluation | None:
        """Returns the evaluation of the final state; None if it was stopped."""
        ended_early = self._latest is not None and self._latest[0] == step
        result = self._latest[1] if self._latest and ended_early else self._made(step)
        if result:
            for line in result.lines:
                self._output.line(line)
        return result

    def _evaluate(self, step: int) -> bool:
        result = self._made(step)
        if result:
            for line in result.lines:
                self._output.line(f"step {step}, {line}")
        return result is not None

    def _made(self, step: int) -> Evaluation | None:
        self._tell.on_phase(Phase("evaluating"))
        result = self._evaluator.evaluate()
        if result:
            self._tell.on_evaluation(step, result)
            self._latest = step, result
            if self._best:
                self._best.add(step, result.loss, result.metrics)
        return result
