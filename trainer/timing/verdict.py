"""The verdict on a run: what bounds its speed, by how much, and what may help."""

from __future__ import annotations

import dataclasses

from trainer.config import TrainConfig
from trainer.loop import Progress
from trainer.timing.advice import Facts, advice
from trainer.timing.shares import Times

_LEAST_SECONDS = 5.0  # of steps, for a verdict that nobody has asked for


class Verdict:
    """Follows the steps of a run; costs nothing until it is asked."""

    def __init__(self, config: TrainConfig, facts: Facts) -> None:
        self._config, self._facts = config, facts
        self._progress: Progress | None = None

    def watch(self, progress: Progress) -> None:
        """Takes note of an inner loop."""
        self._progress = progress

    @property
    def is_worth_telling(self) -> bool:
        """Whether the run was long enough to be judged at its end."""
        return self._reason() is None and self._times().seconds >= _LEAST_SECONDS

    def text(self, exchange: float | None = None, constant: float | None = None) -> str:
        """Returns the verdict in one line; see `Times` for what may have been measured besides."""
        if reason := self._reason():
            return f"no verdict: {reason}"
        times = dataclasses.replace(self._times(), constant=constant)
        if self._facts.replicas > 1:
            times = dataclasses.replace(times, exchange=exchange)
        return f"{times}; may help: {', '.join(advice(times, self._config, self._facts))}"

    def _reason(self) -> str | None:
        """Returns why there is nothing to judge by."""
        if self._config.run.log_keys:
            return "with --log_keys, waiting for input is not measured"
        if self._progress is None or self._progress.steps < 2:
            return "there was no step but the first, which is compiled"
        return None

    def _times(self) -> Times:
        assert self._progress is not None
        steps, seconds = self._progress.since(None)
        waited = self._progress.waited_since(None)
        return Times(self._config.order.global_batch_size, steps, seconds, waited, exchange=0.0)
