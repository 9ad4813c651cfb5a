"""The best checkpoints, in a folder beside the newest."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from pipeline.commands.text import count_of
from trainer.actions.checkpoint_files import CheckpointFiles
from trainer.actions.checkpoints import Checkpoints
from trainer.actions.evaluation import Evaluation, Evaluator
from trainer.actions.ranking import Ranking
from trainer.stored.files import BEST, path_of

NAME = "ranking"  # in what checkpoints remember


class Best:
    """Ranks evaluations, and keeps the checkpoints of the best.

    A best checkpoint is a whole one, and remembers the ranking that it is part of, as does the next one in model_dir.
    One that is no longer among the best is removed only after that: whatever is killed, a run resumes with all that its
    ranking names. What else is in the folder may be of a run with other flags, from the same checkpoint: it is never
    read, is replaced where its step is ranked, and is removed with the others.

    Attributes:
      ranking: of the evaluations.
      folder: of the checkpoints.
    """

    def __init__(self, ranking: Ranking, checkpoints: Checkpoints, model_dir: str, is_chief: bool) -> None:
        self.ranking, self.folder = ranking, pathlib.Path(model_dir) / BEST
        self._checkpoints, self._is_chief, self._written = checkpoints, is_chief, 0
        self._files = CheckpointFiles(self.folder, max_to_keep=ranking.keep, steps_per_epoch=1)
        if ranking.keep and is_chief:
            self.folder.mkdir(exist_ok=True)
            self._files.tidy()

    def resume(self, step: int) -> None:
        """Writes the state that was restored where it is among the best: that file may be lost or damaged.

        Lists the best as the checkpoint remembers them, whether or not the ranking begins anew; removes none.
        """
        if self.ranking.keep and step in self.ranking.steps:
            self._write(step)
        self._keep([best for best, _ in self.ranking.stored()["best"]], upto=0)

    def is_missing(self, step: int, every: int) -> bool:
        """Returns whether the step of a checkpoint is to be evaluated before the next one.

        A signal has prevented it when it was due; or it followed the checkpoint, which does not know of it.
        """
        is_due = every and step % every == 0
        return bool(step and (is_due or step in self._files.steps) and self.ranking.evaluated < step)

    def check_metric(self, evaluator: Evaluator) -> None:
        """Checks --best_metric before the first evaluation; every worker has to call it.

        Raises:
          UsageError: evaluations have no such metric.
        """
        self.ranking.check(evaluator.names)

    def add(self, step: int, evaluation: Evaluation) -> None:
        """Ranks an evaluation of the state; saves the state where it is among the best."""
        if self.ranking.add(step, evaluation.loss, evaluation.metrics):
            self._write(step)

    def tidy(self) -> None:
        """Removes what is not among the best, once one of these is there; a checkpoint must remember the ranking."""
        self._keep(self.ranking.steps)

    def _keep(self, best_first: Sequence[int], upto: int | None = None) -> None:
        if self.ranking.keep and self._is_chief:
            there = self._files.steps
            worst_first = [step for step in reversed(best_first) if step in there]
            if worst_first:
                self._files.keep(worst_first, upto)

    def _write(self, step: int) -> None:
        if step != self._written:
            self._checkpoints.write(self._files.write)
            self._written = step

    def why_ended(self) -> str:
        """Returns the line of a run that ended early."""
        ranking = self.ranking
        evaluations = count_of(ranking.stale, "evaluation")
        top = "" if ranking.top is None else f" than {ranking.top:.4f}"
        return (
            f"ended early at step {ranking.evaluated}: {ranking.metric} has not been better{top} in {evaluations} "
            f"(--early_stopping={ranking.patience})"
        )

    def __str__(self) -> str:
        """The best one, for the last line of a run."""
        if not (self.ranking.keep and self.ranking.best):
            return ""
        step, value = self.ranking.best[0]
        return f"best: {path_of(self.folder, step)} ({self.ranking.metric} = {value:.4f})"
