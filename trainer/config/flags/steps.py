"""How long to train, and what happens every so many steps."""

from __future__ import annotations

import dataclasses

from pipeline.errors import UsageError
from trainer.config.flags.checks import check_least, check_name

MODES = ("auto", "max", "min")


@dataclasses.dataclass(frozen=True)
class StepFlags:
    """How long to train, and what happens every so many steps."""

    train_steps: int | None = None  # global step to train to (or --epochs)
    epochs: int | None = None  # passes over the training split (neither: as many as the model's paper or tutorial)
    steps_per_loop: int = 20  # steps inside one tf.function; a signal waits for the end of it
    log_every: int = 100  # steps between lines; 0: none
    summary_every: int = 100  # steps between scalars for TensorBoard; 0: none, not even of evaluations
    eval_every: int = 0  # steps between evaluations; 0: only at the end
    checkpoint_every: int = 1000  # steps between checkpoints; 0: none but the one at the end
    summary_secs: float = 0.0  # also scalars after so many seconds without; 0: by steps alone
    checkpoint_secs: float = 0.0  # also a checkpoint after so many seconds without; 0: by steps alone
    max_to_keep: int = 5  # newest checkpoints kept, besides two that are an epoch apart
    keep_best: int = 0  # checkpoints with the best evaluations, kept in model_dir/best; needs --eval_every
    early_stopping: int = 0  # evaluations without a better one after which training ends; 0: it does not
    best_metric: str | None = None  # what makes an evaluation better (None: accuracy, or the loss if there is none)
    best_mode: str = "auto"  # max or min of it is better; auto: min of a loss or an error, by its name

    def __post_init__(self) -> None:
        """Checks the values, alone and together."""
        check_least(self, 1, "train_steps", "epochs", "steps_per_loop", "max_to_keep")
        check_least(self, 0, "log_every", "summary_every", "eval_every", "checkpoint_every")
        check_least(self, 0, "summary_secs", "checkpoint_secs")
        check_least(self, 0, "keep_best", "early_stopping")
        check_name("best_mode", self.best_mode, MODES)
        if self.ranks and not self.eval_every:
            flag = f"--keep_best={self.keep_best}" if self.keep_best else f"--early_stopping={self.early_stopping}"
            raise UsageError(f"{flag}: needs evaluations to compare; give --eval_every=STEPS")
        if self.train_steps is not None and self.epochs is not None:
            raise UsageError(f"--train_steps={self.train_steps} and --epochs={self.epochs}: give one of them")

    @property
    def ranks(self) -> bool:
        """Whether evaluations are compared."""
        return bool(self.keep_best or self.early_stopping)
