"""The optimizers by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from pipeline.commands.text import parse_call
from pipeline.errors import UsageError
from trainer.config.model import WITH_MOMENTUM, OptimizerFlags

_OWN_FLAGS = ("learning_rate", "weight_decay", "momentum", "nesterov")  # and no arguments in --optimizer


def create(flags: OptimizerFlags, precision: str = "float32") -> keras.optimizers.Optimizer:
    """Returns the optimizer; its learning rate is set before every update by whoever applies it.

    With float16 it scales the loss, and skips updates whose gradients are not finite.

    Raises:
      UsageError: the optimizer does not take these arguments.
    """
    name, arguments = parse_call(flags.optimizer, "--optimizer", "an optimizer")
    try:
        made = _create(name, arguments, flags)
    except (TypeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise UsageError(f"--optimizer={flags.optimizer}: {reason}") from None
    return keras.optimizers.LossScaleOptimizer(made) if precision == "float16" else made


def _create(name: str, arguments: dict[str, Any], flags: OptimizerFlags) -> keras.optimizers.Optimizer:
    for own in _OWN_FLAGS:
        if own in arguments:
            raise ValueError(f"{own} has a flag or a name of its own")
    given = {"learning_rate": 0.0, **arguments}
    if flags.weight_decay or name in ("adamw", "muon"):  # whose defaults in Keras are not 0
        given["weight_decay"] = flags.weight_decay
    if name == "muon":  # of the variables that it leaves to Adam
        given.setdefault("adam_weight_decay", flags.weight_decay)
    if name == "sgd" or name in WITH_MOMENTUM:
        momentum = flags.momentum if name in WITH_MOMENTUM else 0.0
        return keras.optimizers.SGD(momentum=momentum, nesterov=name == "nesterov", **given)
    classes = {known.lower(): kind for known, kind in vars(keras.optimizers).items()}
    made: keras.optimizers.Optimizer = classes[name](**given)
    return made


def build(optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]) -> None:
    """Makes the optimizer's variables; weight decay leaves out biases and norms: what has less than two axes."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if inner.weight_decay is not None:
        inner.exclude_from_weight_decay(var_list=[v for v in variables if len(v.shape) < 2])
    optimizer.build(variables)
