"""What a worker does with a batch: weights from the parameter servers, gradients, and what is sent back."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from pipeline.batch.batches import DeviceDistortion
from trainer.config import TrainConfig
from trainer.parameter_server import numbered
from trainer.parameter_server.transfer import Transfer
from trainer.step.state import TrainState
from trainer.step.train_step import Contribution, Gradients, clipped
from trainer.task.base import WEIGHT


class Sent(NamedTuple):
    """What goes to the parameter servers, for each of them and type in one tensor.

    Attributes:
      gradients: of the mean loss of the rows.
      changes: of what is not trained, such as moving statistics.
    """

    gradients: list[tf.Tensor]
    changes: list[tf.Tensor]


class Compute:
    """Computes gradients on workers, and applies them on parameter servers.

    Attributes:
      trainable, kept: moves the weights, and the floating-point variables that are not trained.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        state: TrainState,
        config: TrainConfig,
        distort: DeviceDistortion | None = None,
    ) -> None:
        model = state.model
        self._strategy, self._state = strategy, state
        self._gradients = Gradients(state, 1, config.order.seed, config.model.jit_compile, distort)
        self._clip_norm = config.optimizer.clip_norm
        self.trainable = Transfer([v.value for v in model.trainable_variables])
        self._fixed = Transfer([v.value for v in model.non_trainable_variables])
        self.kept = Transfer(
            [v.value for v in model.non_trainable_variables if v.dtype.startswith(("float", "bfloat"))]
        )

    def of(self, step: tf.Tensor, share: tf.Tensor, batch: tuple[Any, ...]) -> tuple[Contribution, Sent]:
        """Returns what comes of the rows of a share of a step, and what of it is to be sent."""
        values = [self.trainable.pull(), self._fixed.pull()]
        weight = tf.maximum(tf.reduce_sum(batch[-1]), 1.0)
        computed = self._gradients.of(share, weight, values, batch, step)
        old = [value for value in values[1] if value.dtype.is_floating]
        changes = [new - tf.cast(was, tf.float32) for new, was in zip(computed.state, old, strict=True)]
        return computed, Sent(self.trainable.flattened(computed.gradients), self.kept.flattened(changes))

    def apply(self, step: tf.Tensor, sent: Sent) -> tf.Tensor:
        """Changes the weights by the gradient of a step; returns a tensor whose operation ends when that is done."""
        return self._apply(step, sent)

    @tf.function(autograph=False)
    def _apply(self, step: tf.Tensor, sent: Sent) -> tf.Tensor:
        state = self._state
        gradients = self.trainable.push(clipped(sent.gradients, self._clip_norm))
        rate = state.schedule(step) if state.schedule else None

        def in_replica() -> None:
            with numbered.at(state.optimizer, step, rate):
                state.optimizer.apply(gradients, state.model.trainable_variables)

        self._strategy.run(in_replica)
        for variable, change in zip(self.kept.variables, self.kept.push(sent.changes), strict=True):
            variable.assign_add(change)
        if state.averages:
            state.averages.update(self._strategy, step + 1)
        return tf.constant(True)


def norm_of(sent: Sent) -> tf.Tensor:
    """Returns the norm of all gradients together."""
    norm: tf.Tensor = tf.linalg.global_norm(sent.gradients)
    return norm


def is_finite(computed: Contribution, norm: tf.Tensor) -> tf.Tensor:
    """Returns whether losses and gradients are finite, bool scalar."""
    total = tf.add_n([computed.penalty, *(tf.reduce_sum(v) for name, v in computed.sums.items() if name != WEIGHT)])
    return tf.math.is_finite(total) & tf.math.is_finite(norm)
