"""How often something happens during a training: every N steps, epochs or seconds."""

from __future__ import annotations

import dataclasses
import math
import re
from fractions import Fraction
from typing import Any, NamedTuple, Self, TypeAlias

Every: TypeAlias = int | str  # the value of a flag: a number of steps, or the text of an interval: `1 epoch`, `30s`
FORMS = "steps, epochs or a time, such as 100, '1 epoch', '0.5 epochs', 30s, 5m or 2h"
_TEXT = re.compile(r"(?P<amount>[+-]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)\s*(?P<unit>[a-z]*)", re.IGNORECASE)
_STEPS, _EPOCHS = ("", "step", "steps"), ("epoch", "epochs")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_MOST = {"epoch": 10**9, **{unit: 10**9 // seconds for unit, seconds in _SECONDS.items()}}  # 31 years, as other clocks


class Period(NamedTuple):
    """An interval in a training whose steps per epoch are known.

    Attributes:
      steps: between two times; with a fraction, the next whole step after it counts. 0: not by steps.
      seconds: since the last time; 0: not by the clock.
    """

    steps: Fraction | int = 0
    seconds: float = 0.0

    def next_after(self, step: int) -> float:
        """Returns the next step at which it is due, infinity if there is none."""
        return math.ceil((step // self.steps + 1) * self.steps) if self.steps else math.inf

    def is_due(self, step: int) -> bool:
        """Whether a step, from 1 on, is one of its steps."""
        return self.next_after(step - 1) == step


@dataclasses.dataclass(frozen=True)
class Interval:
    """What a flag such as --eval_every says.

    Attributes:
      amount: of the unit; 0: never.
      unit: `step`, `epoch`, or one of time: `s`, `m`, `h`.
    """

    amount: Fraction
    unit: str

    @classmethod
    def of(cls, given: Any) -> Self:
        """Returns the interval of a flag's value or text: 100, 1e3, `1 epoch`, `0.5 epochs`, `30s`.

        Raises:
          ValueError: it is none; the message says what it must be.
        """
        text = str(given) if type(given) in (int, float, str) else ""  # nor a bool
        found = _TEXT.fullmatch(text.strip())
        unit = found["unit"].lower() if found else ""
        if found and (unit in _STEPS or unit in _EPOCHS or unit in _SECONDS) and math.isfinite(float(found["amount"])):
            amount = Fraction(found["amount"])
            unit = "step" if unit in _STEPS else "epoch" if unit in _EPOCHS else unit
            is_known = amount.denominator == 1 if unit == "step" else 0 <= amount <= _MOST[unit]
            if is_known:
                return cls(amount, unit)
        raise ValueError(f"must be {FORMS}")

    @classmethod
    def value_of(cls, given: Any) -> Every:
        """Returns the value of a flag for what a user gives: a number of steps, or one text for each interval.

        Raises:
          ValueError: as `of`.
        """
        interval = cls.of(given)
        return int(interval.amount) if interval.unit == "step" or not interval.amount else str(interval)

    @property
    def is_time(self) -> bool:
        """Whether it is by the clock."""
        return self.unit in _SECONDS and self.amount > 0

    def period(self, steps_per_epoch: int) -> Period:
        """Returns the interval in a training of T steps per epoch."""
        if self.unit in _SECONDS:
            return Period(seconds=float(self.amount * _SECONDS[self.unit]))
        return Period(self.amount * (steps_per_epoch if self.unit == "epoch" else 1))

    def __str__(self) -> str:
        """The text of it, as --dump_config and config.yaml have it."""
        number = str(int(self.amount)) if self.amount.denominator == 1 else str(float(self.amount))
        if self.unit in _SECONDS:
            return f"{number}{self.unit}"
        return f"{number} {self.unit}" if self.amount == 1 else f"{number} {self.unit}s"


def period_of(every: Every, steps_per_epoch: int, seconds: float = 0.0) -> Period:
    """Returns the period of a flag's value.

    Args:
      every: the value.
      steps_per_epoch: T.
      seconds: after which it is due as well; 0: by `every` alone.
    """
    period = Interval.of(every).period(steps_per_epoch)
    return period._replace(seconds=seconds) if seconds else period
