"""Gradients of rows as a pure function of the weights, so that XLA can compile it on any device."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from pipeline.batch.on_device import DeviceDistortion
from trainer.step.forward import Forward, seeded
from trainer.step.state import TrainState
from trainer.task.sums import LOSS, Sums


class Computed(NamedTuple):
    """What comes of some rows, each of it to be added to what comes of the others.

    Attributes:
      gradients: per trainable variable, float32: of their part of the mean loss, times the loss scale.
      state: per floating-point variable that is not trained, its new value times `share`.
      sums: of the measure.
      penalty: the regularisation terms times `share`, float32 scalar.
    """

    gradients: list[tf.Tensor]
    state: list[tf.Tensor]
    sums: Sums
    penalty: tf.Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Gradients:
    """Computes gradients of replicas or virtual replicas.

    Attributes:
      train_state: the model and its measure.
      units: how many replicas or virtual replicas there are in all.
      seed: of dropout.
      compiled: whether XLA compiles it.
      distort: makes of rows that crossed the bus as uint8 what the model gets; None: the input has done so.
    """

    train_state: TrainState
    units: int
    seed: int
    compiled: bool = False
    distort: DeviceDistortion | None = None

    def of(
        self,
        unit: tf.Tensor,
        weight: tf.Tensor,
        values: list[Any],
        rows: tuple[Any, ...],
        step: tf.Tensor | None = None,
    ) -> Computed:
        """Returns what comes of the rows of a unit.

        Args:
          unit: its number, int64 scalar.
          weight: sum of the weights of all rows of the step, float32 scalar, at least 1.
          values: the variables, by `read`.
          rows: (features, labels, weights).
          step: whose rows they are, int64 scalar; None: that after the global step.
        """
        scale = self.train_state.loss_scale()
        step = self.train_state.global_step.read_value() if step is None else step
        function = self._compiled if self.compiled else self._of
        return function(unit, weight, step, scale, values, rows)

    def read(self) -> list[Any]:
        """Returns the values of the trainable variables and of the others, to be read once per step."""
        model = self.train_state.model
        variables = (model.trainable_variables, model.non_trainable_variables)
        return [[tf.convert_to_tensor(v.value) for v in some] for some in variables]

    def assign_state(self, new: list[tf.Tensor]) -> None:
        """Gives the floating-point variables that are not trained their new values."""
        model = self.train_state.model
        kept = [v for v in model.non_trainable_variables if tf.as_dtype(v.dtype).is_floating]
        for variable, value in zip(kept, new, strict=True):
            variable.assign(value)

    @tf.function(autograph=False, jit_compile=True)
    def _compiled(self, *arguments: Any) -> Computed:
        return self._of(*arguments)

    def _of(
        self, unit: tf.Tensor, weight: tf.Tensor, step: tf.Tensor, scale: Any, values: list[Any], rows: tuple[Any, ...]
    ) -> Computed:
        trainable, fixed = values
        rows = self.distort(*rows) if self.distort else rows
        model = self.train_state.model
        forward = Forward(model, trainable, seeded(model, fixed, self.seed, step, unit))
        with tf.GradientTape() as tape:
            tape.watch(trainable)
            sums = self.train_state.measure.train_sums(forward, *rows)
            penalty = tf.add_n([tf.constant(0.0), *(tf.cast(term, tf.float32) for term in forward.losses)]) / self.units
            loss = sums[LOSS] / weight + penalty
            scaled = loss if scale is None else loss * scale
        gradients = tape.gradient(scaled, trainable, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]  # those of embeddings are sparse
        state = [tf.cast(value, tf.float32) / self.units for value in forward.state if value.dtype.is_floating]
        return Computed(gradients, state, {name: tf.stop_gradient(value) for name, value in sums.items()}, penalty)
