"""Optimizers by name, the learning rate as a function of the global step, and the average of the weights."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline.commands.text import parse_call
from pipeline.errors import PipelineError, UsageError, line_of
from trainer.config.model import WITH_MOMENTUM, OptimizerFlags
from trainer.topology import without_all_reduce

Schedule = Callable[[tf.Tensor], tf.Tensor]  # global step (int64 scalar) -> rate of the next update (float32 scalar)

_OWN_FLAGS = ("learning_rate", "weight_decay", "momentum", "nesterov")  # which --optimizer takes no arguments for
# Methods of Keras' optimizers that update all copies of the variables under a strategy.
_OF_ALL_COPIES = (
    "_apply_weight_decay",
    "_backend_update_step",
    "_overwrite_model_variables_with_average_value",
    "_backend_increment_gradient_accumulators",
)
_WARM_UP = 10.0  # decay min(d, (1 + step) / (10 + step)), as in tf.train.ExponentialMovingAverage with num_updates


def create(flags: OptimizerFlags, precision: str = "float32") -> keras.optimizers.Optimizer:
    """Returns the optimizer; the caller sets its learning rate before every update.

    With float16 it scales the loss, and skips updates whose gradients are not finite.

    Raises:
      UsageError: the optimizer does not take these arguments.
    """
    name, arguments = parse_call(flags.optimizer, "--optimizer", "an optimizer")
    try:
        made = _create(name, arguments, flags)
    except (TypeError, ValueError) as error:
        raise UsageError(f"--optimizer={flags.optimizer}: {line_of(error)}") from None
    return keras.optimizers.LossScaleOptimizer(made) if precision == "float16" else made


def _create(name: str, arguments: dict[str, Any], flags: OptimizerFlags) -> keras.optimizers.Optimizer:
    for own in _OWN_FLAGS:
        if own in arguments:
            raise ValueError(f"{own} has a flag or a name of its own")
    given = {"learning_rate": 0.0, **arguments}
    if flags.weight_decay or name in ("adamw", "muon"):  # in Keras their defaults are not 0
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
    """Makes the optimizer's variables, and lets it take gradients that have already been summed over the replicas."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if inner.weight_decay is not None:  # not on biases and norms, which have less than two axes
        inner.exclude_from_weight_decay(var_list=[v for v in variables if len(v.shape) < 2])
    optimizer.build(variables)
    without_all_reduce(inner)


def of_one_copy(optimizer: keras.optimizers.Optimizer) -> None:
    """Lets the optimizer update one copy of the variables: that of the update context in which it is applied.

    Under a strategy Keras' optimizers leave the replica and update all copies variable by variable, which cannot be
    compiled. Keras' own methods for backends without strategies update what they are given.

    Raises:
      PipelineError: this release of Keras does it in another way.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if inner is not optimizer:
        optimizer.__dict__["_tf_apply"] = optimizer._common_apply
    for_strategies = next((kind for kind in type(inner).__mro__ if "_distributed_tf_update_step" in vars(kind)), None)
    for name in _OF_ALL_COPIES:
        kinds = [kind for kind in type(inner).__mro__ if name in vars(kind)]
        if for_strategies not in kinds[:-1]:
            raise PipelineError(f"Keras {keras.__version__}: its optimizers have no {name}; use another release")
        if kinds[0] is for_strategies:  # and not an optimizer's own
            inner.__dict__[name] = types.MethodType(vars(kinds[1])[name], inner)


def schedule(flags: OptimizerFlags, steps_per_epoch: int, last_step: int) -> Schedule:
    """Returns the learning rate as the flags describe it: warm-up, then a staircase, a curve, a line, or a constant.

    With r = learning_rate, s = global step, w = steps of warm-up, and p = (s - w) / (last_step - w) in [0, 1]:
    exponential r * decay_factor^floor(s / stair), without the floor unless it is a staircase; piecewise
    r * decay_factor^(stairs before s); cosine r * (e + (1 - e) * (1 + cos(pi * p)) / 2), e = end_factor (Loshchilov and
    Hutter 2017, "SGDR", without restarts); linear r * (e + (1 - e) * (1 - p)). Below w all are multiplied by
    (s + 1) / w (Goyal et al. 2017, 2.2).

    Args:
      flags: of the optimizer.
      steps_per_epoch: T; turns epochs in flags into steps, rounded down.
      last_step: at which training ends, and with it cosine and linear.
    """
    warmup = int(flags.warmup_epochs * steps_per_epoch)
    shape = _shape(flags, steps_per_epoch, warmup, last_step)

    def rate(step: tf.Tensor) -> tf.Tensor:
        number = tf.cast(step, tf.float64)
        share = shape(number)
        if warmup:
            share *= tf.clip_by_value((number + 1) / warmup, 0.0, 1.0)
        return tf.cast(flags.learning_rate * share, tf.float32)

    return rate


def _shape(flags: OptimizerFlags, steps_per_epoch: int, warmup: int, last_step: int) -> Schedule:
    """Returns step -> share of the highest rate, without warm-up; float64 scalars."""
    factor, end = tf.constant(flags.decay_factor, tf.float64), flags.end_factor
    if flags.schedule == "exponential":
        stair = max(1, int(flags.decay_epochs * steps_per_epoch))
        if not flags.decay_staircase:
            return lambda step: factor ** (step / stair)
        return lambda step: factor ** tf.floor(step / stair)
    if flags.schedule == "piecewise":
        stairs = tf.constant([int(epoch * steps_per_epoch) for epoch in flags.stairs], tf.float64)
        return lambda step: factor ** tf.reduce_sum(tf.cast(step >= stairs, tf.float64))

    def progress(step: tf.Tensor) -> tf.Tensor:
        return tf.clip_by_value((step - warmup) / max(1, last_step - warmup), 0.0, 1.0)

    if flags.schedule == "cosine":
        return lambda step: end + (1 - end) * (1 + tf.cos(math.pi * progress(step))) / 2
    if flags.schedule == "linear":
        return lambda step: end + (1 - end) * (1 - progress(step))
    return tf.ones_like


class Averages(tf.Module):
    """Moving average of each weight, on the weight's devices, for evaluations and exports (Polyak and Juditsky 1992).

    Attributes:
      values: the averages, in the order of `model.trainable_variables`.
    """

    def __init__(self, model: keras.Model, decay: float) -> None:
        """Makes the averages, equal to the weights. Call it in the strategy's scope."""
        super().__init__()
        self._weights, self._decay = [v.value for v in model.trainable_variables], decay
        self.values = [tf.Variable(v, trainable=False, name="average") for v in self._weights]

    def reset(self) -> None:
        """Sets the averages to the weights."""
        for average, weight in zip(self.values, self._weights, strict=True):
            average.assign(weight)

    def to_weights(self) -> None:
        """Sets the weights to the averages."""
        for weight, average in zip(self._weights, self.values, strict=True):
            weight.assign(average)

    def update(self, step: tf.Tensor, strategy: tf.distribute.Strategy | None = None) -> None:
        """Averages in the weights after an update.

        Args:
          step: number of the update, int64 scalar.
          strategy: the strategy of parameter servers, which update their own variables; None: the variables of the
            context are updated.
        """
        count = tf.cast(step, tf.float32)
        # The decay grows with the updates: otherwise early averages would mostly be the first, random weights.
        decay = tf.minimum(self._decay, (1.0 + count) / (_WARM_UP + count))
        for average, weight in zip(self.values, self._weights, strict=True):
            if strategy:
                strategy.extended.update(average, _move, args=(weight, decay))
            else:
                _move(average, weight, decay)


def _move(average: tf.Variable, weight: Any, decay: tf.Tensor) -> None:
    average.assign_sub((1.0 - decay) * (average - weight))
