"""One update and one evaluation batch on all replicas, and loops of them inside one tf.function.

Loss and accuracy are sum(w * x) / sum(w) over all replicas. Keras optimizers SUM the gradients of the replicas, so each
replica's loss is its part of that sum over the sum of all weights, plus 1 / R of the regularisation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from trainer.state import TrainState

FINITE = -1  # the bad step of a loop that had none


class LoopResult(NamedTuple):
    """Of an inner loop.

    Attributes:
      loss: of the last update, regularisation included, float32 scalar.
      accuracy: of the last batch, before the update, float32 scalar.
      bad_step: global step of the update at which the loop ended because its loss, or a weight after it, is not finite
        (a NaN can pass through ReLU as 0 and show in the gradient only), or FINITE; int64 scalar.
    """

    loss: tf.Tensor
    accuracy: tf.Tensor
    bad_step: tf.Tensor


class Made(NamedTuple):
    """One update and what it was made on.

    Attributes:
      result: of a loop of this update.
      keys: of the rows of each local replica, string (rows,).
      weights: of the same rows, float32 (rows,).
    """

    result: LoopResult
    keys: tuple[tf.Tensor, ...]
    weights: tuple[tf.Tensor, ...]


class EvaluationSums(NamedTuple):
    """Over batches, float64 scalars: of the weights, of weight * cross-entropy and of weight * correct."""

    weight: tf.Tensor
    loss: tf.Tensor
    correct: tf.Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Stepper:
    """The compiled loops over a model on a strategy.

    Attributes:
      strategy: whose replicas compute.
      state: created in the strategy's scope.
      schedule: global step -> learning rate, which the optimizer is given before each update.
    """

    strategy: tf.distribute.Strategy
    state: TrainState
    schedule: Callable[[tf.Tensor], tf.Tensor]

    @tf.function
    def train(self, iterator: Iterator[tuple[tf.Tensor, ...]], steps: tf.Tensor) -> LoopResult:
        """Makes `steps` (int64 scalar) updates, or fewer where one is bad."""
        loss, accuracy = tf.constant(0.0), tf.constant(0.0)
        bad_step = tf.constant(FINITE, tf.int64)
        for _ in tf.range(steps):
            loss, accuracy = self._update(next(iterator))
            if not (tf.math.is_finite(loss) and self.state.has_finite_weights()):
                bad_step = self.state.global_step.read_value()
                break
        return LoopResult(loss, accuracy, bad_step)

    @tf.function
    def train_one(self, iterator: Iterator[tuple[Any, ...]]) -> Made:
        """Makes one update with a batch whose first component has `image` and `key`, and returns its keys and weights.

        They stay in host memory: there are no strings on a GPU.
        """
        features, labels, weights = next(iterator)
        loss, accuracy = self._update((features["image"], labels, weights))
        good = tf.logical_and(tf.math.is_finite(loss), self.state.has_finite_weights())
        bad_step = tf.where(good, tf.constant(FINITE, tf.int64), self.state.global_step.read_value())
        local = self.strategy.experimental_local_results
        return Made(LoopResult(loss, accuracy, bad_step), local(features["key"]), local(weights))

    @tf.function
    def evaluate(self, iterator: Iterator[tuple[tf.Tensor, ...]], steps: tf.Tensor) -> EvaluationSums:
        """Returns the sums over `steps` (int64 scalar) batches."""
        sums = tf.zeros(3, tf.float64)
        for _ in tf.range(steps):
            sums += tf.cast(self._first(self.strategy.run(self._replica_sums, next(iterator))), tf.float64)
        return EvaluationSums(sums[0], sums[1], sums[2])

    def _update(self, batch: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, tf.Tensor]:
        self.state.optimizer.learning_rate = self.schedule(self.state.global_step.read_value())
        loss, accuracy = self.strategy.run(self._replica_update, batch)
        self.state.global_step.assign_add(1)
        return self._first(loss), self._first(accuracy)

    def _replica_update(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        variables = self.state.model.trainable_variables
        with tf.GradientTape() as tape:
            sums = _weighted_sums(self.state.model(images, training=True), labels, weights)
            total = _all_sum(tf.stop_gradient(sums))
            penalty = tf.add_n([tf.constant(0.0), *self.state.model.losses])
            weight = tf.maximum(total[0], 1.0)  # 0 where all rows of the step are corrupt records that are skipped
            loss = sums[1] / weight + penalty / self.strategy.num_replicas_in_sync
        self.state.optimizer.apply(tape.gradient(loss, variables), variables)
        return total[1] / weight + penalty, total[2] / weight

    def _replica_sums(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        return _all_sum(_weighted_sums(self.state.model(images, training=False), labels, weights))

    def _first(self, value: tf.Tensor) -> tf.Tensor:
        """Returns a value that is the same on all replicas."""
        return self.strategy.experimental_local_results(value)[0]


def _weighted_sums(logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns this replica's sums of w, w * cross-entropy and w * correct, float32 (3,)."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    correct = tf.cast(tf.equal(tf.argmax(logits, axis=-1), labels), tf.float32)
    return tf.stack([tf.reduce_sum(weights), tf.reduce_sum(weights * losses), tf.reduce_sum(weights * correct)])


def _all_sum(value: tf.Tensor) -> tf.Tensor:
    """Returns the sum over all replicas, on each of them."""
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)
