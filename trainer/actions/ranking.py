"""Which evaluations were the best, and how many since have not been better: a pure function of their results."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from pipeline.errors import UsageError

# Words in the names of metrics that are better when they are lower.
_LOWER = ("loss", "error", "mae", "mse", "rmse", "entropy", "perplexity", "distance", "divergence")


@dataclasses.dataclass
class Ranking:
    """What evaluations have come to; a checkpoint remembers it, so that a resumed run decides as an undisturbed one.

    Attributes:
      keep: how many of the best there is a place for.
      patience: evaluations without improvement after which training ends; 0: it does not.
      metric: what decides; None: accuracy, or the loss where an evaluation has no accuracy.
      mode: `max`, `min`, or `auto`: which of these, by the metric's name.
      best: (step, value), the best first; of equal ones the earlier first.
      top: the best value of all.
      stale: evaluations since then.
      evaluated: the step of the last one.
    """

    keep: int
    patience: int
    metric: str | None
    mode: str
    best: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    top: float | None = None
    stale: int = 0
    evaluated: int = 0

    @property
    def steps(self) -> list[int]:
        """The steps of the best, the best first."""
        return [step for step, _ in self.best]

    @property
    def ended(self) -> bool:
        """Whether training has to end early."""
        return bool(self.patience) and self.stale >= self.patience

    def add(self, step: int, loss: float, metrics: Mapping[str, float]) -> bool:
        """Adds an evaluation, unless it was added before; returns whether it is now among the best.

        Raises:
          UsageError: it has no such metric.
        """
        if step != self.evaluated:
            self.evaluated = step
            self._add(step, self._value({"loss": loss, **metrics}))
        return step in self.steps

    def _add(self, step: int, value: float) -> None:
        is_better = not math.isnan(value) and (self.top is None or self._cost(value) < self._cost(self.top))
        self.top, self.stale = (value, 0) if is_better else (self.top, self.stale + 1)
        if not math.isnan(value):
            ranked = sorted([*self.best, (step, value)], key=lambda one: (self._cost(one[1]), one[0]))
            self.best = ranked[: self.keep]

    def _value(self, values: Mapping[str, float]) -> float:
        name = self.metric or ("accuracy" if "accuracy" in values else "loss")
        if name not in values:
            raise UsageError(f"--best_metric={name}: evaluations have {', '.join(sorted(values))}")
        self.metric = name
        return values[name]

    def _cost(self, value: float) -> float:
        """Returns a number that is lower for a better value."""
        name = self.metric or ""
        lower = self.mode == "min" or (self.mode == "auto" and any(word in name.lower() for word in _LOWER))
        return value if lower else -value

    def stored(self) -> dict[str, Any]:
        """Returns what a checkpoint remembers."""
        return {name: getattr(self, name) for name in ("metric", "mode", "best", "top", "stale", "evaluated")}

    def restore(self, stored: dict[str, Any] | None) -> None:
        """Takes over what a checkpoint remembers, unless it ranked by something else."""
        if not stored or stored["mode"] != self.mode or self.metric not in (None, stored["metric"]):
            return
        self.best = [(step, value) for step, value in stored["best"]][: self.keep]
        self.metric, self.top = stored["metric"], stored["top"]
        self.stale, self.evaluated = stored["stale"], stored["evaluated"]
