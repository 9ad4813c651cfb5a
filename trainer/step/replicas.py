"""What a replica computes in a step: its gradients, applied as the sum over all replicas, and the sums of the metrics.

Loss and accuracy are sum(w * x) / sum(w) over all replicas. Keras optimizers SUM the gradients of the replicas, so each
replica's loss is its part of that sum over the sum of all weights, plus 1 / R of the regularisation.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import tensorflow as tf

from trainer.step.state import TrainState


class ReplicaStep(Protocol):
    """The part of a step that `strategy.run` runs; results are equal on all replicas."""

    def update(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Makes one update; returns the loss, regularisation included, and the accuracy before it, float32."""

    def sums(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """Returns the sums of w, w * cross-entropy and w * correct over all rows of a batch, float32 (3,)."""


@dataclasses.dataclass(frozen=True, eq=False)
class Replicas:
    """Each replica takes its rows at once, and what it computes is added as floating-point numbers.

    Attributes:
      state: what is trained.
    """

    state: TrainState

    def update(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """See `ReplicaStep.update`; images (rows, height, width, channels), labels and weights (rows,)."""
        variables = self.state.model.trainable_variables
        with tf.GradientTape() as tape:
            sums = weighted_sums(self.state.model(images, training=True), labels, weights)
            total = all_sum(tf.stop_gradient(sums))
            penalty = tf.add_n([tf.constant(0.0), *self.state.model.losses])
            weight = tf.maximum(total[0], 1.0)  # 0 where all rows of the step are skipped corrupt records
            replicas = tf.distribute.get_replica_context().num_replicas_in_sync
            loss = sums[1] / weight + penalty / replicas
        self.state.optimizer.apply(tape.gradient(loss, variables), variables)
        return total[1] / weight + penalty, total[2] / weight

    def sums(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """See `ReplicaStep.sums`."""
        return all_sum(weighted_sums(self.state.model(images, training=False), labels, weights))


def weighted_sums(logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns the sums of w, w * cross-entropy and w * correct over rows, float32 (3,)."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    correct = tf.cast(tf.equal(tf.argmax(logits, axis=-1), labels), tf.float32)
    return tf.stack([tf.reduce_sum(weights), tf.reduce_sum(weights * losses), tf.reduce_sum(weights * correct)])


def all_sum(value: tf.Tensor) -> tf.Tensor:
    """Returns the sum over all replicas, on each of them."""
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)
