"""What a replica computes in a step: its part of the gradients and of the sums, added up over all replicas.

Loss and metrics are sum(w * x) / sum(w) over all rows. Each replica's loss is its part of that sum over the sum of all
weights, plus 1 / R of the regularisation, so that the sum of all gradients is that of the mean loss.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from trainer.step.apply import Update
from trainer.step.forward import Forward
from trainer.step.gradients import Gradients
from trainer.step.state import TrainState
from trainer.task.sums import Sums


class StepResult(NamedTuple):
    """What a step gives, equal on all replicas.

    Attributes:
      sums: of the measure over all rows of the batch, before the update.
      penalty: the regularisation, float32 scalar.
      gradients: per trainable variable, summed, before they are clipped.
    """

    sums: Sums
    penalty: tf.Tensor
    gradients: list[tf.Tensor]


class ReplicaStep(Protocol):
    """The part of a step that `strategy.run` runs."""

    def update(self, features: Any, labels: Any, weights: tf.Tensor) -> StepResult:
        """Makes one update."""

    def sums(self, features: Any, labels: Any, weights: tf.Tensor) -> Sums:
        """Returns the measure's sums over all rows of an evaluation batch."""


@dataclasses.dataclass(frozen=True, eq=False)
class Replicas:
    """Each replica takes its rows at once, and what it computes is added as floating-point numbers.

    Attributes:
      state: what is trained.
      compute: the gradients; its units are the replicas.
      update_weights: applies them.
    """

    state: TrainState
    compute: Gradients
    update_weights: Update

    def update(self, features: Any, labels: Any, weights: tf.Tensor) -> StepResult:
        """See `ReplicaStep.update`; features (rows, ...), labels and weights (rows,)."""
        unit = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int64)
        weight = tf.maximum(all_sum(tf.reduce_sum(weights)), 1.0)  # 0 where all rows are skipped corrupt records
        computed = self.compute.of(unit, weight, self.compute.read(), (features, labels, weights))
        gradients, state, sums, penalty = all_sum(tuple(computed))
        self.compute.assign_state(state)
        return StepResult(sums, penalty, self.update_weights.apply(gradients))

    def sums(self, features: Any, labels: Any, weights: tf.Tensor) -> Sums:
        """See `ReplicaStep.sums`."""
        return all_sum(evaluation_sums(self.state, self.compute, features, labels, weights))


def evaluation_sums(state: TrainState, compute: Gradients, features: Any, labels: Any, weights: tf.Tensor) -> Sums:
    """Returns the sums over a replica's rows, with the average of the weights where there is one."""
    trainable, fixed = compute.read()
    if state.averages:
        trainable = [tf.convert_to_tensor(value) for value in state.averages.values]
    forward = Forward(state.model, trainable, fixed, state.eval_flip)
    return state.measure.evaluation_sums(forward, features, labels, weights)


def all_sum(value: Any) -> Any:
    """Returns the sum over all replicas, on each of them, of a tensor or of each in a structure."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return value
    flat = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.nest.flatten(value))
    return tf.nest.pack_sequence_as(value, flat)
