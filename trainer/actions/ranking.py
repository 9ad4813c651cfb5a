"""Which evaluations were the best, and how many since have not been better: a pure function of their results."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pipeline.errors import UsageError

# Words in the names of metrics that are better when they are lower.
_LOWER = ("loss", "error", "mae", "mse", "rmse", "entropy", "perplexity", "distance", "divergence")


@dataclasses.dataclass
class Ranking:
    """What evaluations have come to; a checkpoint remembers it, so that a resumed run decides as an undisturbed one.

    Attributes:
      keep: how many of the best there is a place for; 0: those that are restored stay as they are.
      patience: evaluations without improvement after which training ends; 0: it does not.
      metric: what decides; None: accuracy, or the loss where an evaluation has no accuracy.
      mode: `max`, `min`, or `auto`: which of these, by the metric's name.
      data: the digest of each data set that is evaluated, by the name of its evaluation; None: not known.
      best: (step, value), the best first; of equal ones the earlier first.
      top: the best value of all.
      stale: evaluations since then.
      evaluated: the step of the last one.
      anew: why the ranking of a checkpoint was not taken over: `--best_metric was accuracy, is loss`; else empty.
    """

    keep: int
    patience: int
    metric: str | None
    mode: str
    data: Mapping[str, str] | None = None
    best: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    top: float | None = None
    stale: int = 0
    evaluated: int = 0
    anew: str = dataclasses.field(default="", init=False, compare=False)
    _other: dict[str, Any] | None = dataclasses.field(default=None, init=False, compare=False)  # was not taken over

    @property
    def steps(self) -> list[int]:
        """The steps of the best, the best first."""
        return [step for step, _ in self.best]

    @property
    def ended(self) -> bool:
        """Whether training has to end early."""
        return bool(self.patience) and self.stale >= self.patience

    def check(self, names: Callable[[], Collection[str]]) -> None:
        """Checks the metric's name before the first evaluation.

        Args:
          names: returns those that evaluations have; not called where the name is known to be one of them.

        Raises:
          UsageError: evaluations have no such metric.
        """
        if not self.evaluated and self.metric not in (None, "loss"):
            self._chosen(names())

    def add(self, step: int, loss: float, metrics: Mapping[str, float]) -> bool:
        """Adds an evaluation, unless it was added before; returns whether it is now among the best.

        Raises:
          UsageError: it has no such metric.
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

    def stored(self) -> dict[str, Any]:
        """Returns what a checkpoint remembers: until there is an evaluation, what was not taken over."""
        if self._other and not self.evaluated:
            return self._other
        return {name: getattr(self, name) for name in ("metric", "mode", "data", "best", "top", "stale", "evaluated")}

    def restore(self, stored: dict[str, Any] | None) -> None:
        """Takes over what a checkpoint remembers, unless it ranked by something else."""
        if not stored or not stored["evaluated"]:
            return
        self.anew = self._difference(stored)
        if self.anew:
            self._other = stored
            return
        self.best = [(step, value) for step, value in stored["best"]][: self.keep or None]
        self.metric, self.top = stored["metric"], stored["top"]
        self.stale, self.evaluated = stored["stale"], stored["evaluated"]

    def _difference(self, stored: dict[str, Any]) -> str:
        """Returns in what a ranking differs whose values this one cannot be compared with; empty if in nothing."""
        metric, was = self.metric or stored["metric"], stored["metric"]
        if metric != was:
            return f"--best_metric was {was}, is {metric}"
        if _is_lower_better(metric, self.mode) != _is_lower_better(metric, stored["mode"]):
            return f"--best_mode was {stored['mode']}, is {self.mode}"
        data = stored.get("data") or self.data  # earlier versions stored none
        if self.data is None or data is None or data == self.data:
            return ""
        if data.keys() != self.data.keys():
            return f"evaluations were of {', '.join(data)}, are of {', '.join(self.data)}"
        return f"evaluations are of other data called {', '.join(data)}"


def _is_lower_better(metric: str, mode: str) -> bool:
    return mode == "min" or (mode == "auto" and any(word in metric.lower() for word in _LOWER))
