"""Optimizers by name, and how they are applied to a strategy's copies of the variables."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline.commands.text import parse_call
from pipeline.errors import PipelineError, UsageError, line_of
from pipeline.order.views import Intervals
from trainer.config.model import WITH_MOMENTUM, OptimizerFlags
from trainer.step import trained
from trainer.topology import without_all_reduce

_OWN_FLAGS = ("learning_rate", "weight_decay", "momentum", "nesterov")  # arguments that have flags of their own
# Methods of Keras' optimizers that update all copies of the variables under a strategy.
_OF_ALL_COPIES = (
    "_apply_weight_decay",
    "_backend_update_step",
    "_overwrite_model_variables_with_average_value",
    "_backend_increment_gradient_accumulators",
)


def create(flags: OptimizerFlags, precision: str = "float32") -> keras.optimizers.Optimizer:
    """Returns the optimizer; the caller sets its learning rate before every update.

    With float16 it scales the loss, and skips updates whose gradients are not finite.

    Raises:
      UsageError: the optimizer does not have these arguments.
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
    if name == "muon":  # for variables that it leaves to Adam
        given.setdefault("adam_weight_decay", flags.weight_decay)
    if name == "sgd" or name in WITH_MOMENTUM:
        momentum = flags.momentum if name in WITH_MOMENTUM else 0.0
        return keras.optimizers.SGD(momentum=momentum, nesterov=name == "nesterov", **given)
    classes = {known.lower(): kind for known, kind in vars(keras.optimizers).items()}
    made: keras.optimizers.Optimizer = classes[name](**given)
    return made


def build(optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]) -> None:
    """Creates the optimizer's variables, and makes it accept gradients that are already summed over the replicas."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if inner.weight_decay is not None:  # not on biases and norms, which have less than two axes
        inner.exclude_from_weight_decay(var_list=[v for v in variables if len(v.shape) < 2])
    optimizer.build(variables)
    without_all_reduce(inner)


def apply(
    optimizer: keras.optimizers.Optimizer,
    gradients: Sequence[tf.Tensor],
    variables: Sequence[keras.Variable],
    updates: Sequence[Intervals | None],
    step: tf.Tensor,
    compiled: bool,
) -> None:
    """Updates one copy of some variables, with each one's own count of updates.

    Keras' optimizers count their updates, and correct for bias by that, as Adam does (Kingma and Ba 2015, 3). A weight
    that thaws has slots of zero: with the count of all updates its first ones would be many times too small.

    Args:
      optimizer: built optimizer, with slots for all variables.
      gradients: gradient of each variable.
      variables: trained variables.
      updates: (first, end) of the steps that have updated each of them; None for all steps, as the optimizer counts.
      step: global step before this update, int64 scalar.
      compiled: whether XLA compiles the update, and so makes few kernels of Keras' operations.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    faster = {"update_step": functools.partial(_momentum_in_one_kernel, inner)}
    with _with(inner, **(faster if _fits_one_kernel(inner) and not compiled else {})):
        groups: dict[Intervals | None, list[int]] = {None: []}
        for index, of_variable in enumerate(updates):
            groups.setdefault(of_variable, []).append(index)
        if len(groups) == 1:
            optimizer.apply(gradients, variables)
            return
        update, counted = inner.apply, inner._iterations

        def apply_each(gradients: Sequence[tf.Tensor], trainable_variables: Sequence[keras.Variable]) -> None:
            for of_group, members in groups.items():
                if members:
                    vars(inner)["_iterations"] = (
                        counted if of_group is None else Count(trained.count_of(of_group, step))
                    )
                    update([gradients[i] for i in members], [trainable_variables[i] for i in members])
            if not groups[None]:
                counted.assign_add(1)

        try:
            with _with(inner, apply=apply_each):  # with float16 it is called by what scales the loss
                optimizer.apply(gradients, variables)
        finally:
            vars(inner)["_iterations"] = counted


def _fits_one_kernel(optimizer: keras.optimizers.Optimizer) -> bool:
    """Returns whether one kernel gives the same bits as Keras' operations.

    Where Keras itself scales a gradient, Grappler multiplies the scale by the learning rate before the gradient.
    """
    scales = optimizer.clipnorm or optimizer.global_clipnorm or optimizer.gradient_accumulation_steps
    return type(optimizer) is keras.optimizers.SGD and bool(optimizer.momentum) and not scales


def _momentum_in_one_kernel(
    optimizer: keras.optimizers.SGD, gradient: tf.Tensor, variable: keras.Variable, learning_rate: tf.Tensor
) -> None:
    """Does what Keras' `SGD.update_step` does with six kernels; on CPUs to the bit."""
    if variable.dtype != "float32":  # for bfloat16 GPUs have no kernel
        type(optimizer).update_step(optimizer, gradient, variable, learning_rate)
        return
    slot = optimizer.momentums[optimizer._get_variable_index(variable)]
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=variable.value.handle,
        accum=slot.value.handle,
        lr=tf.cast(learning_rate, tf.float32),
        grad=tf.cast(gradient, tf.float32),
        momentum=optimizer.momentum,
        use_nesterov=optimizer.nesterov,
    )


@contextlib.contextmanager
def _with(optimizer: keras.optimizers.Optimizer, **methods: Callable[..., Any]) -> Iterator[None]:
    """Context in which an optimizer has other methods than those of its class."""
    vars(optimizer).update(methods)
    try:
        yield
    finally:
        for name in methods:
            del vars(optimizer)[name]


class Count:
    """A number of updates, known from the step, that replaces an optimizer's variable."""

    def __init__(self, value: tf.Tensor) -> None:
        self._value = value

    def __add__(self, other: int) -> tf.Tensor:
        return self._value + other

    def assign_add(self, value: int) -> None:
        """Changes nothing: the next update has another step."""


def of_one_copy(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes the optimizer update one copy of the variables: the one of the update context in which it is applied.

    Under a strategy Keras' optimizers leave the replica and update all copies variable by variable, which cannot be
    compiled. Keras' own methods for backends without strategies update what they are given.

    Raises:
      PipelineError: this release of Keras works differently.
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
