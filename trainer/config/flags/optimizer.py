"""How the weights change: the optimizer, the learning rate over time, and what is done to gradients and weights."""

from __future__ import annotations

import dataclasses

from pipeline.commands.call import parse_call
from pipeline.errors import UsageError
from trainer.config.flags.checks import check_least, check_name, check_positive, check_share

# Three names for keras.optimizers.SGD, then those of Keras.
OPTIMIZERS = (
    *("sgd", "momentum", "nesterov"),
    *(
        "adadelta",
        "adafactor",
        "adagrad",
        "adam",
        "adamax",
        "adamw",
        "ftrl",
        "lamb",
        "lion",
        "muon",
        "nadam",
        "rmsprop",
    ),
)
WITH_MOMENTUM = ("momentum", "nesterov")
SCHEDULES = ("exponential", "piecewise", "cosine", "linear", "constant")
ENDING = ("cosine", "linear")  # schedules that depend on the last step
_EPOCHS = 1e9  # that no training comes to


@dataclasses.dataclass(frozen=True)
class OptimizerFlags:
    """How the weights change."""

    optimizer: str = "momentum"
    """sgd, momentum, nesterov; adam, adamw, lion, rmsprop, ... as in Keras, with arguments: 'adam(beta_2=0.95)'"""
    learning_rate: float = 0.01  # at its highest
    momentum: float = 0.9  # of --optimizer=momentum and nesterov
    schedule: str = "exponential"  # of the rate: exponential (a staircase), piecewise, cosine, linear or constant
    decay_factor: float = 0.99  # exponential, piecewise: the rate is multiplied by this at each stair
    decay_epochs: float = 1.0  # exponential: epochs of a stair
    decay_at: str = ""  # piecewise: the epochs at which a stair begins, such as 91,136.5
    end_factor: float = 0.0  # cosine, linear: the rate at the last step, as a share of --learning_rate
    warmup_epochs: float = 0.0  # the rate grows from 0 over these epochs, before any schedule
    weight_decay: float = 0.0  # decoupled, times the rate; not of biases and norms (variables of less than two axes)
    clip_norm: float | None = None  # the most that the norm of all gradients together may be, after they are summed
    ema: float | None = None
    """decay of an average of the weights, min(ema, (1 + step) / (10 + step)); evaluations use the average"""

    def __post_init__(self) -> None:
        """Checks the values, alone and together."""
        check_name("optimizer", self.optimizer.partition("(")[0].strip(), OPTIMIZERS)
        parse_call(self.optimizer, "--optimizer", "an optimizer")
        check_name("schedule", self.schedule, SCHEDULES)
        check_positive(self, "learning_rate", "decay_factor", "decay_epochs", "clip_norm")
        check_share(self, "momentum")
        check_least(self, 0, "warmup_epochs", "weight_decay", "end_factor")
        for flag in ("warmup_epochs", "decay_epochs"):
            if getattr(self, flag) >= _EPOCHS:
                raise UsageError(f"--{flag}={getattr(self, flag)}: must be below {_EPOCHS:.0e}")
        if self.ema is not None and not 0 < self.ema < 1:
            raise UsageError(f"--ema={self.ema}: must be above 0 and below 1, such as 0.999")
        if (self.schedule == "piecewise") != bool(self.stairs):
            raise UsageError(
                f"--schedule={self.schedule} with --decay_at={self.decay_at!r}: the piecewise schedule, and no other, "
                "takes the epochs at which its stairs begin, such as --decay_at=91,136"
            )

    def __str__(self) -> str:
        """The optimizer, its highest rate and how that changes: `momentum 0.05 exponential`."""
        parts = [f"{self.optimizer} {self.learning_rate:g} {self.schedule}"]
        if self.warmup_epochs:
            parts.append(f"warm-up {self.warmup_epochs:g} epochs")
        if self.weight_decay:
            parts.append(f"weight decay {self.weight_decay:g}")
        return ", ".join(parts)

    @property
    def stairs(self) -> list[float]:
        """The epochs of --decay_at, ascending."""
        try:
            found = [float(part) for part in self.decay_at.split(",")] if self.decay_at else []
        except ValueError:
            raise UsageError(
                f"--decay_at={self.decay_at}: must be numbers with commas between, such as 91,136"
            ) from None
        if found != sorted(set(found)) or not all(0 < epoch < _EPOCHS for epoch in found):
            raise UsageError(f"--decay_at={self.decay_at}: must be numbers above 0 that ascend")
        return found
