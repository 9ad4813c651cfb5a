"""Updates and evaluation batches on all replicas, in loops inside one tf.function."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from trainer.step.optimizers import Schedule
from trainer.step.replicas import ReplicaStep
from trainer.step.state import TrainState


class LoopResult(NamedTuple):
    """Where an inner loop ended, as scalars.

    Attributes:
      step: global step after the last update, int64.
      loss: of the last update, regularisation included, float32.
      accuracy: on the last batch, before the update, float32.
      finite: bool; False: the loop ended early, since the last update's loss, or a weight after it, is NaN or infinite
        (a NaN can pass through ReLU as 0 and show in the gradient only).
    """

    step: tf.Tensor
    loss: tf.Tensor
    accuracy: tf.Tensor
    finite: tf.Tensor


class EvaluationSums(NamedTuple):
    """Sums over batches, float64 scalars: of the weights, of weight * cross-entropy and of weight * correct."""

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
      replicas: what each replica does in a step.
    """

    strategy: tf.distribute.Strategy
    state: TrainState
    schedule: Schedule
    replicas: ReplicaStep

    @tf.function(autograph=False)
    def train(self, iterator: Iterator[tuple[tf.Tensor, ...]], steps: tf.Tensor) -> LoopResult:
        """Makes `steps` (int64 scalar) updates, or fewer where one is not finite."""
        result = LoopResult(self.state.global_step.read_value(), tf.constant(0.0), tf.constant(0.0), tf.constant(True))
        _, result = tf.while_loop(
            lambda done, result: (done < steps) & result.finite,
            lambda done, _: (done + 1, self._update(next(iterator))),
            (tf.constant(0, tf.int64), result),
        )
        return result

    @tf.function(autograph=False)
    def train_one(self, iterator: Iterator[tuple[Any, ...]]) -> tuple[LoopResult, Any, Any]:
        """Makes one update with a batch whose first component has `image` and `key`.

        Returns:
          The result, the keys of each local replica's rows, string (rows,), and their weights, float32 (rows,): both in
          host memory, since GPUs have no strings.
        """
        features, labels, weights = next(iterator)
        result = self._update((features["image"], labels, weights))
        local = self.strategy.experimental_local_results
        return result, local(features["key"]), local(weights)

    @tf.function(autograph=False)
    def evaluate(self, iterator: Iterator[tuple[tf.Tensor, ...]], steps: tf.Tensor) -> EvaluationSums:
        """Returns the sums over `steps` (int64 scalar) batches."""
        _, sums = tf.while_loop(
            lambda done, _: done < steps,
            lambda done, sums: (done + 1, sums + tf.cast(self._batch_sums(next(iterator)), tf.float64)),
            (tf.constant(0, tf.int64), tf.zeros(3, tf.float64)),
        )
        return EvaluationSums(sums[0], sums[1], sums[2])

    def _update(self, batch: tuple[tf.Tensor, ...]) -> LoopResult:
        self.state.optimizer.learning_rate = self.schedule(self.state.global_step.read_value())
        loss, accuracy = (self._first(value) for value in self.strategy.run(self.replicas.update, batch))
        self.state.global_step.assign_add(1)
        finite = tf.logical_and(tf.math.is_finite(loss), self.state.has_finite_weights())
        return LoopResult(self.state.global_step.read_value(), loss, accuracy, finite)

    def _batch_sums(self, batch: tuple[tf.Tensor, ...]) -> tf.Tensor:
        return self._first(self.strategy.run(self.replicas.sums, batch))

    def _first(self, value: tf.Tensor) -> tf.Tensor:
        """Returns a value that is the same on all replicas."""
        return self.strategy.experimental_local_results(value)[0]
