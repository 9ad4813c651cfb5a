"""What is trained: the model, or the task, and how it computes."""

from __future__ import annotations

import dataclasses

from pipeline.errors import UsageError
from trainer.config.flags.checks import check_name, check_share
from trainer.config.model_defaults import MODEL_DEFAULTS, WITH_DROPOUT

PRECISIONS = ("float32", "bfloat16", "float16")


def dtype_policy(precision: str) -> str:
    """Returns Keras' dtype policy of a --precision."""
    return precision if precision == "float32" else f"mixed_{precision}"


@dataclasses.dataclass(frozen=True)
class ModelFlags:
    """What is trained, and how it computes."""

    model: str = "mlp"
    """a built-in one, such as lenet, resnet20, fast_cifar; or my_package.module:function, which makes one"""
    task: str | None = None  # my_package.module:Class, a subclass of trainer.Task: model, loss and metrics of your own
    initialize_from: str | None = None  # weights to begin with: a model_dir, a checkpoint in it, or a .weights.h5 file
    dropout: float = 0.0  # share of the features before the last layer that is dropped in training (resnet20)
    label_smoothing: float = 0.0  # share of each label's probability that is spread over all classes
    eval_flip: bool = False  # evaluations and exports take the mean of the outputs for an image and its mirror image
    precision: str = "float32"  # float32, or the mixed policies: bfloat16; float16, with dynamic loss scaling
    jit_compile: bool = False  # XLA for the forward and backward pass of each replica
    allow_model_change: bool = False  # resume although the model's structure differs from the checkpoint's

    def __post_init__(self) -> None:
        """Checks the values, alone and together."""
        if ":" not in self.model:
            check_name("model", self.model, MODEL_DEFAULTS)
        if self.task is not None and ":" not in self.task:
            raise UsageError(
                f"--task={self.task}: must be a module and a class in it, as in my_package.my_module:MyTask"
            )
        check_name("precision", self.precision, PRECISIONS)
        check_share(self, "dropout", "label_smoothing")
        if self.dropout and self.model not in WITH_DROPOUT:
            raise UsageError(f"--dropout={self.dropout}: --model={self.model} has none; {', '.join(WITH_DROPOUT)} has")
