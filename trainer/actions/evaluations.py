"""The evaluations of a run: when they are made, and what follows from them."""

from __future__ import annotations

from trainer.actions.evaluation import Evaluator
from trainer.actions.output import Output
from trainer.checkpoint.best import BestCheckpoints
from trainer.loop import Progress
from trainer.task.base import Evaluation


class Evaluations:
    """Evaluates every so often, and at the end."""

    def __init__(self, evaluator: Evaluator, best: BestCheckpoints | None, output: Output, last_step: int) -> None:
        self._evaluator, self._best, self._output, self._last_step = evaluator, best, output, last_step
        self._latest: tuple[int, Evaluation] | None = None

    def during(self, progress: Progress) -> None:
        """Evaluates between two steps; the evaluation of the last step is left to `at_end`."""
        if progress.step != self._last_step:
            self._evaluate(progress.step)

    def before(self, start: int, every: int) -> bool:
        """Makes up for an evaluation that the checkpoint to resume from does not know of, where they are ranked.

        Returns:
          Whether the run may go on: False if a signal has ended this one, too.

        Raises:
          UsageError: evaluations lack the metric to rank them by.
        """
        if self._best is None:
            return True
        self._best.ranking.check(self._evaluator.names)
        return not self._best.is_missing(start, every) or self._evaluate(start)

    def at_end(self, step: int) -> Evaluation | None:
        """Returns the evaluation of the last state; None if it was stopped."""
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
        self._output.live.phase("evaluating")
        result = self._evaluator.evaluate()
        if result:
            self._latest = step, result
            if self._best:
                self._best.add(step, result.loss, result.metrics)
        return result
