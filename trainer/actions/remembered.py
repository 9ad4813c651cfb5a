"""What a checkpoint remembers besides variables, as JSON: a checkpoint that lacks it can be resumed, too."""

from __future__ import annotations

import math
from typing import Any, Protocol

from trainer.step.updates import Stepper


class Remembered(Protocol):
    """Part of a run's state."""

    def stored(self) -> Any:
        """Returns what can be written as JSON, the same on every worker."""

    def restore(self, stored: Any) -> None:
        """Takes over what was stored; None: the checkpoint has nothing of this part."""


class LossAverages:
    """The moving averages of a stepper."""

    def __init__(self, stepper: Stepper) -> None:
        self._averages = stepper.averages

    def stored(self) -> list[float | None]:
        """Returns the averages, exactly: a float32 is a float64."""
        return [None if math.isnan(value) else value for value in self._averages.numpy().tolist()]

    def restore(self, stored: list[float | None] | None) -> None:
        """See `Remembered.restore`."""
        if stored is not None:
            self._averages.assign([math.nan if value is None else value for value in stored])


class EpochSums:
    """The sums of a stepper over the epoch so far, from which its means follow."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper

    def stored(self) -> dict[str, Any]:
        """Returns the sums, exactly, and of how many steps an epoch was."""
        sums = self._stepper.epoch.numpy().tolist()
        return {"steps_per_epoch": self._stepper.steps_per_epoch, "sums": sums}

    def restore(self, stored: dict[str, Any] | None) -> None:
        """See `Remembered.restore`; sums over an epoch of other steps are dropped."""
        if stored is not None and stored["steps_per_epoch"] == self._stepper.steps_per_epoch:
            self._stepper.epoch.assign(stored["sums"])

    @property
    def steps(self) -> int:
        """How many steps they are of."""
        sums = self._stepper.epoch.numpy()
        return int(sums[0]) if len(sums) else 0
