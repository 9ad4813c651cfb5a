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
