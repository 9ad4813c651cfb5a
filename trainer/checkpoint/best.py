"""Ranks evaluations and keeps the best checkpoints in addition to the newest."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pipeline.commands.text import count_of
from pipeline.errors import UsageError
from trainer.checkpoint.files import CheckpointFiles, path_of
from trainer.run_folder import RunFolder

# Words in the names of metrics for which lower is better.
_LOWER = ("loss", "error", "mae", "mse", "rmse", "entropy", "perplexity", "distance", "divergence")


@dataclasses.dataclass
class Ranking:
    """A ranking of evaluations. Checkpoints store it, so that a resumed run decides like an uninterrupted one.

    Attributes:
      keep: number of best checkpoints to keep; 0 adds none to a restored ranking.
      patience: number of evaluations without improvement after which training ends; 0 for no early end.
      metric: metric to rank by; None for accuracy, or the loss if an evaluation has no accuracy.
      mode: `max`, `min`, or `auto`, which decides by the metric's name.
      data: {name of an evaluation: digest of its data set}.
      best: (step, value) pairs, best first; for equal values, the earlier step comes first.
      top: best value so far.
      stale: number of evaluations since then.
      evaluated: step of the last evaluation.
      why_reset: reason why a checkpoint's ranking was not restored: `--best_metric was accuracy, is loss`; or empty.
    """

    keep: int
    patience: int
    metric: str | None
    mode: str
    data: Mapping[str, str] = dataclasses.field(default_factory=dict)
    best: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    top: float | None = None
    stale: int = 0
    evaluated: int = 0
    why_reset: str = dataclasses.field(default="", init=False, compare=False)
    _other: dict[str, Any] | None = dataclasses.field(default=None, init=False, compare=False)  # not restored

    @property
    def steps(self) -> list[int]:
        """Steps of the best evaluations, best first."""
        return [step for step, _ in self.best]

    @property
    def ended(self) -> bool:
        """Whether training should end early."""
        return bool(self.patience) and self.stale >= self.patience

    def check(self, names: Callable[[], Collection[str]]) -> None:
        """Checks the metric's name before the first evaluation.

        Args:
          names: function that returns an evaluation's metric names; called only if needed.

        Raises:
          UsageError: evaluations do not have this metric.
        """
        if not self.evaluated and self.metric not in (None, "loss"):
            self._chosen(names())

    def add(self, step: int, loss: float, metrics: Mapping[str, float]) -> bool:
        """Adds an evaluation unless it was added before; returns whether it is among the best.

        Raises:
          UsageError: it does not have the metric.
        """
        if step != self.evaluated:
            values = {"loss": loss, **metrics}
            self.metric = self._chosen(values)
            self.evaluated = step
            self._add(step, values[self.metric])
        return step in self.steps

    def _add(self, step: int, value: float) -> None:
        is_better = not math.isnan(value) and (self.top is None or self._cost(value) < self._cost(self.top))
        self.top, self.stale = (value, 0) if is_better else (self.top, self.stale + 1)
        if self.keep and not math.isnan(value):
            ranked = sorted([*self.best, (step, value)], key=lambda one: (self._cost(one[1]), one[0]))
            self.best = ranked[: self.keep]

    def _chosen(self, names: Collection[str]) -> str:
        name = self.metric or ("accuracy" if "accuracy" in names else "loss")
        if name not in names:
            raise UsageError(f"--best_metric={name}: evaluations have {', '.join(sorted(names))}")
        return name

    def _cost(self, value: float) -> float:
        """Returns a number that is lower for a better value."""
        return value if _is_lower_better(self.metric or "", self.mode) else -value

    def state_dict(self) -> dict[str, Any]:
        """Returns the ranking as JSON; before the first evaluation, the checkpoint's ranking if it was not restored."""
        if self._other and not self.evaluated:
            return self._other
        return {name: getattr(self, name) for name in ("metric", "mode", "data", "best", "top", "stale", "evaluated")}

    def load_state_dict(self, stored: dict[str, Any] | None) -> None:
        """Restores a checkpoint's ranking unless it used another metric, mode or data set."""
        if not stored or not stored["evaluated"]:
            return
        self.why_reset = self._difference(stored)
        if self.why_reset:
            self._other = stored
            return
        self.best = [(step, value) for step, value in stored["best"]][: self.keep or None]
        self.metric, self.top = stored["metric"], stored["top"]
        self.stale, self.evaluated = stored["stale"], stored["evaluated"]

    def _difference(self, stored: dict[str, Any]) -> str:
        """Returns why the values of a stored ranking are not comparable with this one's; empty if they are."""
        metric, was = self.metric or stored["metric"], stored["metric"]
        if metric != was:
            return f"--best_metric was {was}, is {metric}"
        if _is_lower_better(metric, self.mode) != _is_lower_better(metric, stored["mode"]):
            return f"--best_mode was {stored['mode']}, is {self.mode}"
        data = stored["data"]
        if data == self.data:
            return ""
        if data.keys() != self.data.keys():
            return f"evaluations were of {', '.join(data)}, are of {', '.join(self.data)}"
        return f"evaluations are of other data called {', '.join(data)}"


def _is_lower_better(metric: str, mode: str) -> bool:
    return mode == "min" or (mode == "auto" and any(word in metric.lower() for word in _LOWER))


class BestCheckpoints:
    """Ranks evaluations and keeps the checkpoints of the best ones.

    A best checkpoint is complete, and stores the ranking that it is part of, as does the next regular one. Checkpoints
    that drop out of the ranking are only removed after that, so that a run killed at any moment resumes with all
    checkpoints that its ranking names. Other files in the folder may come from an attempt with other flags. They are
    never read; they are replaced when their step is ranked, and removed along with those that drop out.

    Attributes:
      ranking: ranking of the evaluations.
      folder: folder of the checkpoints.
    """

    def __init__(
        self,
        ranking: Ranking,
        folder: RunFolder,
        is_chief: bool,
        write: Callable[[Callable[[int, Callable[[str], object]], None]], None],
    ) -> None:
        """Removes files that a killed process left behind in the folder.

        Args:
          ranking: ranking of the evaluations.
          folder: folder of the run.
          is_chief: whether this worker writes.
          write: function that writes the state with the `add` or `write` of a folder's `CheckpointFiles`; called by all
            workers.
        """
        self.ranking, self.folder = ranking, folder.best
        self._write_with, self._is_chief, self._written = write, is_chief, 0
        self._files = CheckpointFiles(self.folder, max_to_keep=ranking.keep, steps_per_epoch=1)
        if ranking.keep and is_chief:
            self.folder.mkdir(exist_ok=True)
            self._files.tidy()

    def resume(self, step: int) -> None:
        """Rewrites the restored state if it is among the best, as its file may be lost or damaged.

        Also lists the best checkpoints by the stored ranking, even if that was not restored; removes none.
        """
        if self.ranking.keep and step in self.ranking.steps:
            self._write(step)
        self._keep([best for best, _ in self.ranking.state_dict()["best"]], upto=0)

    def is_missing(self, step: int, is_due: bool) -> bool:
        """Returns whether the restored step, at which an evaluation may be due, still needs one.

        It is missing if a signal prevented it, or if it followed the checkpoint, which therefore lacks the result.
        """
        return bool(step and (is_due or step in self._files.steps) and self.ranking.evaluated < step)

    def add(self, step: int, loss: float, metrics: Mapping[str, float]) -> None:
        """Ranks an evaluation of the state, and saves the state if it is among the best."""
        if self.ranking.add(step, loss, metrics):
            self._write(step)

    def tidy(self) -> None:
        """Removes checkpoints that are not among the best. Only call it once a checkpoint stores the ranking."""
        self._keep(self.ranking.steps)

    def _keep(self, best_first: Sequence[int], upto: int | None = None) -> None:
        if self.ranking.keep and self._is_chief:
            there = self._files.steps
            worst_first = [step for step in reversed(best_first) if step in there]
            if worst_first:  # otherwise the folder stays unchanged until one of the best is written
                self._files.keep(worst_first, upto)

    def _write(self, step: int) -> None:
        if step != self._written:
            self._write_with(self._files.write)
            self._written = step

    def why_ended(self) -> str:
        """Returns why the run ended early."""
        ranking = self.ranking
        evaluations = count_of(ranking.stale, "evaluation")
        top = "" if ranking.top is None else f" than {ranking.top:.4f}"
        return (
            f"ended early at step {ranking.evaluated}: {ranking.metric} has not been better{top} in {evaluations} "
            f"(--early_stopping={ranking.patience})"
        )

    def __str__(self) -> str:
        """Returns the best checkpoint, for the last line of a run."""
        if not (self.ranking.keep and self.ranking.best):
            return ""
        step, value = self.ranking.best[0]
        return f"best: {path_of(self.folder, step)} ({self.ranking.metric} = {value:.4f})"
