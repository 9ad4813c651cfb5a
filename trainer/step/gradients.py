"""The gradients of some rows, as a pure function of weights and rows; and sums over all replicas."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from pipeline.batch.batches import DeviceAugmentation
from trainer.step.measures import Sums
from trainer.step.sizes import Fed
from trainer.step.state import Forward, TrainState, seeded
from trainer.step.trained import Trained
from trainer.task import LOSS


class Contribution(NamedTuple):
    """Contribution of some rows to a step; contributions are summed over all replicas, or virtual replicas.

    Attributes:
      gradients: gradients of the rows' part of the mean loss, times the loss scale; float32, one per trained variable.
      state: new values of the floating-point variables that are not trained and may change, divided by the number of
        units, so that their sum is the mean.
      sums: sums of the measure over the rows.
      penalty: the regularisation terms divided by the number of units, float32 scalar.
    """

    gradients: list[tf.Tensor]
    state: list[tf.Tensor]
    sums: Sums
    penalty: tf.Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Gradients:
    """Computes contributions as a pure function of weights and rows, so that XLA can compile it on any device.

    Attributes:
      train_state: state with the models, their measures, and their trained parts.
      units: number of replicas, or virtual replicas, whose contributions are summed.
      seed: seed of dropout.
      compiled: whether XLA compiles it.
      augment: augmentation of rows that have crossed the bus as uint8; None if the input augments.
      phase: index of the phase whose weights are trained.
      forms: contribution with its shapes, known once `flat_of` has been traced.
    """

    train_state: TrainState
    units: int
    seed: int
    compiled: bool = False
    augment: DeviceAugmentation | None = None
    phase: int = 0
    forms: dict[str, Contribution] = dataclasses.field(default_factory=dict, init=False)

    @property
    def trained(self) -> Trained:
        """Parts of the model that the phase trains."""
        return self.train_state.trained[self.phase]

    @property
    def fed(self) -> Fed:
        """Model and measure that compute the phase's steps."""
        return self.train_state.fed[self.phase]

    def of(
        self,
        unit: tf.Tensor,
        weight: tf.Tensor,
        values: Any,
        rows: tuple[Any, ...],
        step: tf.Tensor | None = None,
    ) -> Contribution:
        """Returns the contribution of a unit's rows.

        Args:
          unit: number of the unit, int64 scalar.
          weight: sum of the sample weights of the whole step, float32 scalar, at least 1.
          values: values of the variables, as returned by `TrainState.values`.
          rows: (features, labels, weights).
          step: global step before the update, int64 scalar; None for the state's.
        """
        scale = self.train_state.loss_scale()
        step = self.train_state.global_step.read_value() if step is None else step
        function = self._compiled if self.compiled else self._of
        return function(unit, weight, step, scale, values, rows)

    def flat_of(self, unit: tf.Tensor, weight: tf.Tensor, values: Any, rows: tuple[Any, ...]) -> tf.Tensor:
        """Compiled form of `of` that returns one float32 vector: replicas then send each other a single message."""
        step, scale = self.train_state.global_step.read_value(), self.train_state.loss_scale()
        flat: tf.Tensor = self._compiled_flat(unit, weight, step, scale, values, rows)
        return flat

    @tf.function(autograph=False, jit_compile=True)
    def _compiled_flat(self, *arguments: Any) -> tf.Tensor:
        self.forms["flat"] = found = self._of(*arguments)
        return tf.concat([tf.reshape(value, [-1]) for value in tf.nest.flatten(found)], axis=0)

    def parts_of(self, flat: tf.Tensor) -> Contribution:
        """Returns the contribution that `flat_of` has flattened."""
        values = tf.nest.flatten(self.forms["flat"])
        parts = tf.split(flat, [value.shape.num_elements() for value in values])
        shaped = [tf.reshape(part, value.shape) for part, value in zip(parts, values, strict=True)]
        contribution: Contribution = tf.nest.pack_sequence_as(self.forms["flat"], shaped)
        return contribution

    def losses(self, unit: tf.Tensor, values: Any, rows: tuple[Any, ...]) -> tf.Tensor:
        """Returns the loss of each row of a unit in training, without regularisation, float32 (rows,); see `of`."""
        # Compiled if the step is, as XLA draws different random numbers for dropout.
        function = self._compiled_losses if self.compiled else self._losses
        losses: tf.Tensor = function(unit, self.train_state.global_step.read_value(), values, rows)
        return losses

    @tf.function(autograph=False, jit_compile=True)
    def _compiled_losses(self, *arguments: Any) -> tf.Tensor:
        return self._losses(*arguments)

    def _losses(self, unit: tf.Tensor, step: tf.Tensor, values: Any, rows: tuple[Any, ...]) -> tf.Tensor:
        trainable, fixed = values
        rows = self.augment(*rows) if self.augment else rows
        forward = Forward(self.fed.model, trainable, seeded(fixed, self.seed, step, unit))
        with self.trained.computing():
            return self.fed.measure.row_losses(forward, *rows[:2])

    @tf.function(autograph=False, jit_compile=True)
    def _compiled(self, *arguments: Any) -> Contribution:
        return self._of(*arguments)

    def _of(
        self, unit: tf.Tensor, weight: tf.Tensor, step: tf.Tensor, scale: Any, values: Any, rows: tuple[Any, ...]
    ) -> Contribution:
        trainable, fixed = values
        rows = self.augment(*rows) if self.augment else rows
        trained = self.trained
        forward = Forward(self.fed.model, trainable, seeded(fixed, self.seed, step, unit))
        own = [trainable[index] for index in trained.weights]  # nothing is computed for other weights
        with trained.computing(), tf.GradientTape() as tape:
            tape.watch(own)
            sums = self.fed.measure.train_sums(forward, *rows)
            # The regularisation does not depend on the rows: each unit adds an equal part of it.
            penalty = tf.add_n([tf.constant(0.0), *(tf.cast(term, tf.float32) for term in forward.losses)]) / self.units
            # A sum over these rows, divided by the weight of all rows: summed over the units, the batch's mean loss.
            loss = sums[LOSS] / weight + penalty
            scaled = loss if scale is None else loss * scale
        gradients = tape.gradient(scaled, own, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]  # embeddings have sparse ones
        state = [tf.cast(forward.state[index], tf.float32) / self.units for index in trained.statistics]
        found = Contribution(gradients, state, {name: tf.stop_gradient(value) for name, value in sums.items()}, penalty)
        return apart(found)


def apart(value: Any) -> Any:
    """Returns the tensors behind a node that separates their computation from their readers.

    Grappler's arithmetic optimizer takes a common factor out of a sum of products (a weight's gradient and its decay)
    only if nothing else reads these. Without such a node, the bits of the weights would depend on summaries and key
    logs. Grappler removes Identity, but not EnsureShape.
    """
    return tf.nest.map_structure(lambda one: tf.ensure_shape(one, one.shape), value, expand_composites=True)


def all_sum(value: Any) -> Any:
    """Returns the sums of a structure of tensors over all replicas, on each of them. Call it in a replica context."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return value
    # One call for all tensors, which TensorFlow packs into few messages.
    flat = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.nest.flatten(value))
    return tf.nest.pack_sequence_as(value, flat)
