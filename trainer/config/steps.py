"""Flags for how long to train, and what is evaluated, saved, written and measured meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, ClassVar

from pipeline.commands.flags import check, check_all
from pipeline.errors import UsageError
from trainer.config.interval import Every, Interval, Period, period_of
from trainer.config.meaning import flag

MODES = ("auto", "max", "min")
_LOOP = 10**6  # steps: a signal waits for the end of a loop
_WITH_SERVERS = "is not supported; use --strategy=one_device or mirrored"
_INTERVAL: dict[str, Any] = {"least": 0, "parse": Interval.value_of, "metavar": "interval"}


@dataclasses.dataclass(frozen=True)
class StepFlags:
    """How long to train, and what happens every N steps."""

    shapes_training: ClassVar[bool] = False  # except the last step, if a schedule ends there

    # These bounds are beyond any training; their products fit into 64 bits.
    train_steps: int | None = flag(None, "global step to train to (or --epochs)", least=1, most=10**12)
    epochs: int | None = flag(
        None,
        "passes over the training split (neither: as many as the model's paper or tutorial)",
        least=1,
        most=10**9,
    )
    steps_per_loop: int = flag(
        20, "steps inside one tf.function; a signal waits for the end of it", least=1, most=_LOOP
    )
    log_every: Every = flag(
        100, "a line every N steps, or every '1 epoch', '0.5 epochs', 30s, 5m; 0: none", **_INTERVAL
    )
    summary_every: Every = flag(100, "scalars for TensorBoard, likewise; 0: none, not even of evaluations", **_INTERVAL)
    eval_every: Every = flag(0, "an evaluation, likewise; 0: only at the end", **_INTERVAL)
    checkpoint_every: Every = flag(1000, "a checkpoint, likewise; 0: none but the one at the end", **_INTERVAL)
    summary_secs: float = flag(0.0, "scalars also after N seconds without; 0: by --summary_every alone", least=0)
    checkpoint_secs: float = flag(
        0.0, "a checkpoint also after N seconds without; 0: by --checkpoint_every alone", least=0
    )
    log_epochs: bool | None = flag(
        None, "a line per epoch: its loss and metrics, those of its evaluation (None: unless --train_steps is given)"
    )
    max_to_keep: int = flag(5, "newest checkpoints kept, besides two that are an epoch apart", least=1)
    keep_best: int = flag(
        0, "checkpoints with the best evaluations, kept in model_dir/best; needs --eval_every", least=0
    )
    early_stopping: int = flag(0, "evaluations without a better one after which training ends; 0: it does not", least=0)
    best_metric: str | None = flag(
        None, "what makes an evaluation better (None: accuracy, or the loss if there is none)"
    )
    best_mode: str = flag(
        "auto", "max or min of it is better; auto: min of a loss or an error, by its name", known=MODES
    )

    def __post_init__(self) -> None:
        """Checks the values, alone and together."""
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
            with contextlib.suppress(ValueError):  # `check` tells
                is_time = Interval.of(every).is_time
            if seconds and is_time:
                raise UsageError(f"--{name}_every={every} and --{name}_secs={seconds:g}: give one of them")

    def period(self, name: str, steps_per_epoch: int) -> Period:
        """Returns how often it is time for a `log` line, a `summary`, an `eval`uation or a `checkpoint`, given T."""
        every, seconds = getattr(self, f"{name}_every"), getattr(self, f"{name}_secs", 0.0)
        return period_of(every, steps_per_epoch, seconds)

    @property
    def logs_epochs(self) -> bool:
        """Whether there is a line for each epoch."""
        return self.train_steps is None if self.log_epochs is None else self.log_epochs

    @property
    def ranks(self) -> bool:
        """Whether evaluations are compared."""
        return bool(self.keep_best or self.early_stopping)


@dataclasses.dataclass(frozen=True)
class OutputFlags:
    """What a run writes and measures, besides its weights."""

    shapes_training: ClassVar[bool] = False

    histogram_every: Every = flag(
        0,
        "histograms of all weights and summed gradients for TensorBoard, as --log_every says it; 0: none",
        **_INTERVAL,
    )
    activation_every: Every = flag(
        0,
        "histograms of what each layer returns, and its share of zeros, for TensorBoard, likewise; 0: none",
        parameter_server=_WITH_SERVERS,
        **_INTERVAL,
    )
    image_every: Every = flag(
        0,
        "images of a distorted batch for TensorBoard, likewise; 0: none",
        parameter_server=_WITH_SERVERS,
        **_INTERVAL,
    )
    profile: str | None = flag(
        None,
        "START:STOP, steps between which TensorFlow's profiler records; for TensorBoard",
        parameter_server="is not supported; profile a run with --strategy=one_device",
    )
    metrics_jsonl: str | None = flag(
        None, "a file that receives all scalars as one JSON object per step and line", per_machine=True
    )
    headspace: int = flag(
        0,
        "at the end: N steps with one constant batch, to compare the speed; 0: none",
        least=0,
        most=_LOOP,
        parameter_server=_WITH_SERVERS,
    )
    log_time: bool | None = flag(
        None,
        "date and time in front of each line (None: in the files and pipes of a job that trainer.launch started)",
        per_machine=True,
    )
    log_device_placement: bool = flag(False, "TensorFlow says on which device it computes each operation")

    def __post_init__(self) -> None:
        """Checks the values."""
        check_all(lambda: check(self), lambda: self.profiled)

    @property
    def profiled(self) -> tuple[int, int] | None:
        """START and STOP of --profile."""
        if self.profile is None:
            return None
        start, _, stop = self.profile.partition(":")
        if not (start.isdigit() and stop.isdigit() and 1 <= int(start) < int(stop)):
            raise UsageError(
                f"--profile={self.profile}: must be START:STOP, the steps after which it begins and ends, such as "
                "100:110; START is 1 or more, since the first step is compiled"
            )
        return int(start), int(stop)
