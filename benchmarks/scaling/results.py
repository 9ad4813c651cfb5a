"""Measurements of how training scales."""

from __future__ import annotations

import dataclasses

from benchmarks.scaling.step_model import Parts


@dataclasses.dataclass(frozen=True)
class Point:
    """A measured job.

    Attributes:
      strategy: strategy: synchronous, asynchronous, or mirrored on GPUs.
      workers: number of workers or GPUs.
      link: rate of the link in Mbit/s; None on one machine.
      rate: rate in examples per second.
      predicted: rate predicted by the model; None if the model is derived from this run.
      loss: mean loss over the epoch so far, at the end, after the same number of steps as the others; over a slow link,
        perhaps fewer.
      busy: share of the time in which steps did not wait for input; None if not measured.
      gpu_use: GPU utilisation according to nvidia-smi, as a share; None without GPUs.
    """

    strategy: str
    workers: int
    link: int | None
    rate: float
    predicted: float | None
    loss: float
    busy: float | None = None
    gpu_use: float | None = None

    @property
    def error(self) -> float | None:
        """The model's error as a share of the measured rate."""
        return None if self.predicted is None else self.predicted / self.rate - 1

    def __str__(self) -> str:
        """One line."""
        where = "one machine" if self.link is None else f"{self.link:,} Mbit/s"
        text = f"{self.strategy}, {self.workers} on {where}: {self.rate:,.0f} img/s, loss {self.loss:.2f}"
        if self.predicted is not None:
            text += f"; the model says {self.predicted:,.0f} ({self.error:+.0%})"
        if self.busy is not None:
            text += f"; busy {self.busy:.0%}"
        return text if self.gpu_use is None else f"{text}; GPU use {self.gpu_use:.0%}"


@dataclasses.dataclass(frozen=True)
class Scaling:
    """The results of a model: the parts of its step, None with GPUs; and all jobs."""

    model: str
    parts: Parts | None
    points: tuple[Point, ...]
