"""Flags for how long a run trains, and how often it does something: every N steps, epochs or seconds."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

from pipeline.commands.flags import check, check_all
from pipeline.errors import UsageError, name_of
from trainer.config.meaning import flag

Every: TypeAlias = int | str  # value of a flag: a number of steps, or an interval as text: `1 epoch`, `30s`
FORMS = "steps, epochs or a time, such as 100, '1 epoch', '0.5 epochs', 30s, 5m or 2h"
_TEXT = re.compile(r"(?P<amount>[+-]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)\s*(?P<unit>[a-z]*)", re.IGNORECASE)
_STEPS, _EPOCHS = ("", "step", "steps"), ("epoch", "epochs")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_MOST = {"epoch": 10**9, **{unit: 10**9 // seconds for unit, seconds in _SECONDS.items()}}  # 31 years, as for clocks


class Period(NamedTuple):
    """How often something is due, once the number of steps per epoch is known.

    Attributes:
      steps: number of steps in between; a fraction is rounded up to the next whole step. 0 if steps do not matter.
      seconds: seconds since the last time; 0 if the clock does not matter.
      soonest: shortest wait of a clock that slows down: each wait is as long as the training so far, from `soonest` up
        to `seconds`. 0 if each wait is `seconds`.
    """

    steps: Fraction | int = 0
    seconds: float = 0.0
    soonest: float = 0.0

    def next_after(self, step: int) -> float:
        """Returns the next step at which it is due; infinity if there is none."""
        return math.ceil((step // self.steps + 1) * self.steps) if self.steps else math.inf

    def is_due(self, step: int) -> bool:
        """Whether it is due at a step, counted from 1."""
        return self.next_after(step - 1) == step

    def wait_after(self, seconds: float) -> float:
        """Returns the seconds until it is due by the clock again, after it was done this many seconds into training."""
        return min(self.seconds, max(self.soonest, seconds)) if self.soonest else self.seconds


@dataclasses.dataclass(frozen=True)
class Interval:
    """The interval given by a flag such as --eval_every.

    Attributes:
      amount: number of units; 0 for never.
      unit: `step`, `epoch`, or a unit of time: `s`, `m`, `h`.
    """

    amount: Fraction
    unit: str

    @classmethod
    def of(cls, given: Any) -> Self:
        """Parses a flag's value or text: 100, 1e3, `1 epoch`, `0.5 epochs`, `30s`.

        Raises:
          ValueError: it is not an interval; the message shows valid forms.
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
        """Normalises what a user gives to a flag's value: a number of steps, or the same text for equal intervals.

        Raises:
          ValueError: as for `of`.
        """
        interval = cls.of(given)
        return int(interval.amount) if interval.unit == "step" or not interval.amount else str(interval)

    @property
    def is_time(self) -> bool:
        """Whether the interval is in units of time."""
        return self.unit in _SECONDS and self.amount > 0

    def period(self, steps_per_epoch: int) -> Period:
        """Returns the interval as a period, given T steps per epoch."""
        if self.unit in _SECONDS:
            return Period(seconds=float(self.amount * _SECONDS[self.unit]))
        return Period(self.amount * (steps_per_epoch if self.unit == "epoch" else 1))

    def __str__(self) -> str:
        """The interval as in --dump_config and config.yaml."""
        number = str(int(self.amount)) if self.amount.denominator == 1 else str(float(self.amount))
        if self.unit in _SECONDS:
            return f"{number}{self.unit}"
        return f"{number} {self.unit}" if self.amount == 1 else f"{number} {self.unit}s"


def period_of(every: Every, steps_per_epoch: int, seconds: float = 0.0, soonest: float = 0.0) -> Period:
    """Returns the period of a flag's value.

    Args:
      every: value of the flag.
      steps_per_epoch: T.
      seconds: time after which it is due as well; 0 for `every` alone.
      soonest: shortest wait by this clock; see `Period`.
    """
    period = Interval.of(every).period(steps_per_epoch)
    return period._replace(seconds=seconds, soonest=soonest) if seconds else period


MODES = ("auto", "max", "min")
# With these, a run that is killed in its first minutes loses a minute or half of its work, and later at most five
# minutes. A long run pays with three saves in its first five minutes, which even a large model can afford.
CHECKPOINT_SECS, FIRST_CHECKPOINT_SECS = 300.0, 60.0
_LOOP = 10**6  # steps; a signal waits for the end of a loop
_WITH_SERVERS = "is not supported; use --strategy=one_device or mirrored"
_INTERVAL: dict[str, Any] = {"least": 0, "parse": Interval.value_of, "metavar": "interval"}


@dataclasses.dataclass(frozen=True)
class StepFlags:
    """How long to train, and what to do every N steps."""

    shapes_training: ClassVar[bool] = False  # except for the last step, if a schedule ends there

    # These bounds are beyond any training; their products fit into 64 bits.
    train_steps: int | None = flag(None, "global step to train to (or --epochs)", least=1, most=10**12, ends=True)
    epochs: int | None = flag(
        None,
        "passes over the training split (without it and --train_steps: as many as the model's paper or tutorial)",
        least=1,
        most=10**9,
        ends=True,
        first=True,
    )
    steps_per_loop: int = flag(20, "steps per call of a tf.function; a signal waits for its end", least=1, most=_LOOP)
    log_every: Every = flag(
        100, "a line every N steps, or every '1 epoch', '0.5 epochs', 30s, 5m; 0: none", **_INTERVAL
    )
    summary_every: Every = flag(100, "scalars for TensorBoard, likewise; 0: none, evaluations included", **_INTERVAL)
    eval_every: Every = flag(0, "an evaluation, likewise; 0: only at the end", replay=0, **_INTERVAL)
    checkpoint_every: Every = flag(1000, "a checkpoint, likewise; 0: only at the end", **_INTERVAL)
    summary_secs: float = flag(0.0, "scalars also after N seconds without any; 0: by --summary_every alone", least=0)
    checkpoint_secs: float | None = flag(
        None,
        "a checkpoint also after N seconds without one; 0: by --checkpoint_every alone (None: after 60 in the first "
        "minutes, then after 300, unless --checkpoint_every is 0 or a time)",
        least=0,
    )
    log_epochs: bool | None = flag(
        None, "a line per epoch with its loss and metrics, and its evaluation (None: unless --train_steps is given)"
    )
    max_to_keep: int = flag(5, "newest checkpoints to keep, besides two that are an epoch apart", least=1)
    keep_best: int = flag(
        0, "checkpoints with the best evaluations, kept in model_dir/best; needs --eval_every", least=0, replay=0
    )
    early_stopping: int = flag(
        0, "evaluations without improvement after which training ends; 0: never", least=0, replay=0
    )
    best_metric: str | None = flag(
        None, "metric to rank evaluations by (None: accuracy, or the loss if there is none)", needs="ranks"
    )
    best_mode: str = flag(
        "auto", "which is better, max or min; auto: min for a loss or an error, by its name", known=MODES, needs="ranks"
    )

    def __post_init__(self) -> None:
        check_all(lambda: check(self), self._check_ranked, self._check_length, self._check_clocks)

    def _check_ranked(self) -> None:
        if self.ranks and not self.eval_every:
            flag = f"--keep_best={self.keep_best}" if self.keep_best else f"--early_stopping={self.early_stopping}"
            raise UsageError(f"{flag}: needs evaluations to compare; give --eval_every=STEPS, or '1 epoch'")

    def _check_length(self) -> None:
        if self.train_steps is not None and self.epochs is not None:
            raise UsageError(f"--train_steps={self.train_steps} and --epochs={self.epochs}: give one of them")

    def _check_clocks(self) -> None:
        for name in ("summary", "checkpoint"):
            every, seconds = getattr(self, f"{name}_every"), getattr(self, f"{name}_secs")
            is_time = False
            with contextlib.suppress(ValueError):  # `check` reports it
                is_time = Interval.of(every).is_time
            if seconds and is_time:
                raise UsageError(f"--{name}_every={every} and --{name}_secs={seconds:g}: give one of them")

    def period(self, name: str, steps_per_epoch: int) -> Period:
        """Returns the period of `log` lines, `summary` scalars, `eval`uations or `checkpoint`s, given T."""
        every, seconds, soonest = getattr(self, f"{name}_every"), getattr(self, f"{name}_secs", 0.0), 0.0
        if seconds is None:  # --checkpoint_secs was not given
            interval = Interval.of(every)
            is_clocked = interval.amount > 0 and not interval.is_time
            seconds, soonest = (CHECKPOINT_SECS, FIRST_CHECKPOINT_SECS) if is_clocked else (0.0, 0.0)
        return period_of(every, steps_per_epoch, seconds, soonest)

    @property
    def when_saved(self) -> str:
        """Text on when checkpoints are saved: `every 1000 steps, at least every 300 s (the first after 60 s)`."""
        every, period = Interval.of(self.checkpoint_every), self.period("checkpoint", 1)
        said = [f"every {every}"] if every.amount and not every.is_time else []
        if period.seconds:
            soon = f" (the first after {period.soonest:g} s)" if period.soonest else ""
            said.append(f"{'at least ' if said else ''}every {period.seconds:g} s{soon}")
        return ", ".join([*said, "and at the end" if said else "at the end alone"])

    @property
    def logs_epochs(self) -> bool:
        """Whether a line is printed for each epoch."""
        return self.train_steps is None if self.log_epochs is None else self.log_epochs

    @property
    def ranks(self) -> bool:
        """Whether evaluations are ranked."""
        return bool(self.keep_best or self.early_stopping)


@dataclasses.dataclass(frozen=True)
class OutputFlags:
    """What a run writes and measures in addition to its weights."""

    shapes_training: ClassVar[bool] = False

    histogram_every: Every = flag(
        0,
        "histograms of all weights and summed gradients for TensorBoard, at intervals as in --log_every; 0: none",
        draws=True,
        **_INTERVAL,
    )
    activation_every: Every = flag(
        0,
        "histograms of each layer's outputs, and their share of zeros, for TensorBoard, likewise; 0: none",
        draws=True,
        parameter_server=_WITH_SERVERS,
        **_INTERVAL,
    )
    image_every: Every = flag(
        0,
        "images of an augmented batch for TensorBoard, likewise; 0: none",
        draws=True,
        parameter_server=_WITH_SERVERS,
        **_INTERVAL,
    )
    profile: str | None = flag(
        None,
        "START:STOP, steps between which TensorFlow's profiler records; for TensorBoard",
        replay=None,
        parameter_server="is not supported; profile a run with --strategy=one_device",
    )
    metrics_jsonl: str | None = flag(
        None, "a file that receives all scalars as one JSON object per step and line", writes="file", replay=None
    )
    headspace: int = flag(
        0,
        "at the end: N steps with one constant batch, to compare the speed; 0: none",
        least=0,
        most=_LOOP,
        replay=0,
        parameter_server=_WITH_SERVERS,
    )
    log_time: bool | None = flag(
        None,
        f"date and time in front of each line (None: in the files and pipes of a job that {name_of('trainer.launch')} "
        "started)",
        per_machine=True,
    )
    log_device_placement: bool = flag(False, "TensorFlow logs the device of each operation")

    def __post_init__(self) -> None:
        check_all(lambda: check(self), lambda: self.profiled)

    @property
    def profiled(self) -> tuple[int, int] | None:
        """START and STOP in --profile."""
        if self.profile is None:
            return None
        start, _, stop = self.profile.partition(":")
        if not (start.isdigit() and stop.isdigit() and 1 <= int(start) < int(stop)):
            raise UsageError(
                f"--profile={self.profile}: must be START:STOP, the steps after which it begins and ends, such as "
                "100:110; START is 1 or more, since the first step is compiled"
            )
        return int(start), int(stop)
