"""A worker's part of a step: it pulls weights from the parameter servers, computes gradients, and sends them back."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from pipeline.batch.batches import DeviceDistortion
from pipeline.errors import PipelineError, UsageError
from pipeline.order.views import Intervals
from trainer.config import TrainConfig
from trainer.config.interval import Period
from trainer.step.state import TrainState
from trainer.step.train_step import COLUMNS, Contribution, Gradients, clipped, histogram, is_skipped
from trainer.task.base import WEIGHT

_COUNT, _RATE = "_iterations", "_learning_rate"  # of Keras' optimizers; public nowhere as what can be set
_OWN_STATE = {"nadam": "multiplies a variable once per step", "lossscaleoptimizer": "keeps a loss scale"}


class Transfer:
    """Moves values between variables on parameter servers and the worker that runs a graph.

    All values of one server and type travel as one tensor, so that each server is asked once.

    Attributes:
      variables: on the servers.
      groups: indices of the variables of each server and type.
    """

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        self.variables = list(variables)
        self.groups: dict[tuple[str, tf.DType], list[int]] = collections.defaultdict(list)
        for index, variable in enumerate(self.variables):
            self.groups[variable.device, variable.dtype].append(index)

    def sizes(self, group: tuple[str, tf.DType]) -> list[int]:
        """Returns the number of values of each variable of a group."""
        return [self.variables[index].shape.num_elements() for index in self.groups[group]]

    def pull(self) -> list[tf.Tensor]:
        """Returns the values of all variables, here."""
        found: list[tf.Tensor] = [None] * len(self.variables)
        for group, indices in self.groups.items():
            with tf.device(group[0]):
                flat = tf.concat([tf.reshape(self.variables[i].read_value(), [-1]) for i in indices], axis=0)
            self._put(group, tf.identity(flat), found)
        return found

    def flattened(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the values for each group's variables in one tensor."""
        return [
            tf.concat([tf.reshape(tf.cast(values[i], group[1]), [-1]) for i in indices], axis=0)
            for group, indices in self.groups.items()
        ]

    def push(self, flat: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns values for all variables, each where its variable is.

        Args:
          flat: of `flattened`.
        """
        found: list[tf.Tensor] = [None] * len(self.variables)
        for group, values in zip(self.groups, flat, strict=True):
            with tf.device(group[0]):
                self._put(group, tf.identity(values), found)
        return found

    def _put(self, group: tuple[str, tf.DType], flat: tf.Tensor, found: list[tf.Tensor]) -> None:
        parts = tf.split(flat, self.sizes(group))
        for index, part in zip(self.groups[group], parts, strict=True):
            found[index] = tf.reshape(part, self.variables[index].shape)


class Sent(NamedTuple):
    """What a worker sends: one tensor for each parameter server and type.

    Attributes:
      gradients: of the mean loss of the rows.
      changes: of variables that are not trained, such as moving statistics.
    """

    gradients: list[tf.Tensor]
    changes: list[tf.Tensor]


class Compute:
    """Computes gradients on workers, and applies them on parameter servers.

    Attributes:
      state: on the parameter servers.
      trainable: moves the weights.
      kept: moves the floating-point variables that are not trained.
      graph: of a step, once it has been traced.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        state: TrainState,
        config: TrainConfig,
        distort: DeviceDistortion | None = None,
        shown: Period = Period(),  # noqa: B008, it is immutable
        skip_steps: Intervals = (),
    ) -> None:
        """Makes variables beside those of the state.

        Args:
          strategy: of the parameter servers.
          state: created in its scope.
          config: of the run.
          distort: distorts rows on the worker's device; None: the input distorts.
          shown: the steps whose gradients `histograms` shows, besides the first.
          skip_steps: (first, end) of global steps that change nothing but the number of the step.
        """
        model = state.model
        self._strategy, self.state, self.graph = strategy, state, None
        self._gradients = Gradients(state, 1, config.order.seed, config.model.jit_compile, distort)
        self._clip_norm = config.optimizer.clip_norm
        self.trainable = Transfer([v.value for v in model.trainable_variables])
        self._fixed = Transfer([v.value for v in model.non_trainable_variables])
        self.kept = Transfer(
            [v.value for v in model.non_trainable_variables if v.dtype.startswith(("float", "bfloat"))]
        )
        self._shown_every, self._skip_steps = Fraction(shown.steps), skip_steps
        with strategy.scope():
            rows = tf.zeros([len(self.trainable.variables), COLUMNS])
            self._shown = tf.Variable(rows, trainable=False, name="histograms") if shown.steps else None

    def of(self, step: tf.Tensor, share: tf.Tensor, batch: tuple[Any, ...]) -> tuple[Contribution, Sent]:
        """Returns the contribution of a share's rows to a step, and what to send of it."""
        self.graph = tf.compat.v1.get_default_graph()
        values = [self.trainable.pull(), self._fixed.pull()]
        weight = tf.maximum(tf.reduce_sum(batch[-1]), 1.0)
        with tf.name_scope("worker"):
            computed = self._gradients.of(share, weight, values, batch, step)
        old = [value for value in values[1] if value.dtype.is_floating]
        changes = [new - tf.cast(was, tf.float32) for new, was in zip(computed.state, old, strict=True)]
        sent = Sent(self.trainable.flattened(computed.gradients), self.kept.flattened(changes))
        if not self._skip_steps:
            return computed, sent
        skipped = is_skipped(step, self._skip_steps)  # of which not even the regularisation counts
        zeroed = lambda value: tf.where(skipped, tf.zeros_like(value), value)  # noqa: E731
        return tf.nest.map_structure(zeroed, computed), tf.nest.map_structure(zeroed, sent)

    @tf.function(autograph=False)
    def apply(self, step: tf.Tensor, sent: Sent) -> tf.Tensor:
        """Changes the weights by the gradient of a step; returns a tensor whose operation ends when that is done.

        A skipped step changes none: by a gradient of 0, momentum and decay would still move them.
        """
        if self._shown is not None:
            tf.cond(self._is_shown(step + 1), lambda: self._show(sent), lambda: tf.constant(False))
        if not self._skip_steps:
            return self._update(step, sent)
        skipped = is_skipped(step, self._skip_steps)
        return tf.cond(skipped, lambda: tf.constant(False), lambda: self._update(step, sent))

    def _update(self, step: tf.Tensor, sent: Sent) -> tf.Tensor:
        state = self.state
        gradients = self.trainable.push(clipped(sent.gradients, self._clip_norm))
        rate = state.schedule(step) if state.schedule else None

        def in_replica() -> None:
            with numbered(state.optimizer, step, rate):
                state.optimizer.apply(gradients, state.model.trainable_variables)

        self._strategy.run(in_replica)
        for variable, change in zip(self.kept.variables, self.kept.push(sent.changes), strict=True):
            variable.assign_add(change)
        if state.averages:
            state.averages.update(self._strategy, step + 1)
        return tf.constant(True)

    def _is_shown(self, step: tf.Tensor) -> tf.Tensor:
        """Returns whether a step, from 1 on, is shown, bool scalar: as `Period.is_due` says it, and the first."""
        amount, parts = self._shown_every.as_integer_ratio()
        return tf.equal(step, 1) | tf.not_equal(step * parts // amount, (step - 1) * parts // amount)

    def _show(self, sent: Sent) -> tf.Tensor:
        assert self._shown is not None
        self._shown.assign(tf.stack([histogram(gradient) for gradient in self.trainable.push(sent.gradients)]))
        return tf.constant(True)

    @tf.function(autograph=False)
    def histograms(self) -> tf.Tensor:
        """Returns what `LoopResult.histograms` has, of the weights now and of the last gradient that is shown."""
        assert self._shown is not None
        of_weights = [histogram(variable.read_value()) for variable in self.trainable.variables]
        return tf.concat([tf.stack(of_weights), self._shown.read_value()], axis=0)


def norm_of(sent: Sent) -> tf.Tensor:
    """Returns the norm of all gradients together."""
    norm: tf.Tensor = tf.linalg.global_norm(sent.gradients)
    return norm


def is_finite(computed: Contribution, norm: tf.Tensor) -> tf.Tensor:
    """Returns whether losses and gradients are finite, bool scalar."""
    total = tf.add_n([computed.penalty, *(tf.reduce_sum(v) for name, v in computed.sums.items() if name != WEIGHT)])
    return tf.math.is_finite(total) & tf.math.is_finite(norm)


class _Given:
    """Stands in for the variable that counts updates."""

    def __init__(self, count: tf.Tensor) -> None:
        self.value = count

    def __add__(self, more: int) -> tf.Tensor:
        return self.value + more

    def assign_add(self, value: int) -> None:
        """Does nothing: the chief sets the count when it saves."""


def check_optimizer(optimizer: keras.optimizers.Optimizer, flag: str) -> None:
    """Raises UsageError if several workers cannot apply gradients with an optimizer."""
    name = optimizer.name
    if why := _OWN_STATE.get(type(optimizer).__name__.lower()):
        raise UsageError(f"{flag}: with --strategy=parameter_server, {name} {why}, which workers would do at once")
    if optimizer.use_ema or optimizer.gradient_accumulation_steps:
        option = "use_ema; use --ema" if optimizer.use_ema else "gradient_accumulation_steps"
        raise UsageError(f"{flag}: with --strategy=parameter_server, {name} cannot have {option}")
    if not {_COUNT, _RATE} <= set(optimizer.__dict__):
        raise PipelineError(f"Keras {keras.__version__}: its optimizers have no {_COUNT}; use another release")


@contextlib.contextmanager
def numbered(optimizer: keras.optimizers.Optimizer, updates: tf.Tensor, rate: tf.Tensor | None) -> Iterator[None]:
    """Context in which an optimizer is traced as if it had made `updates` updates before.

    Keras' own count is wrong here. `assign_add` of it is exact by itself, but each optimizer reads it at another moment
    than it adds, so bias corrections and schedules would drift (70 of 100 updates were counted with two workers).

    Args:
      optimizer: built.
      updates: int64 scalar.
      rate: the learning rate, float32 scalar; None: the optimizer's own, or its schedule's at this count.
    """
    before: dict[str, Any] = {name: optimizer.__dict__[name] for name in (_COUNT, _RATE)}
    optimizer.__dict__[_COUNT] = _Given(updates)
    if rate is not None:
        optimizer.__dict__[_RATE] = rate
    elif isinstance(before[_RATE], keras.optimizers.schedules.LearningRateSchedule):
        optimizer.__dict__[_RATE] = before[_RATE](updates)
    try:
        yield
    finally:
        optimizer.__dict__.update(before)
