"""The step that evaluates: sums of the measure over batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from trainer.step.gradients import all_sum
from trainer.step.measures import Sums
from trainer.step.state import TrainState
from trainer.topology import of_virtual_replicas, sum_virtual_replicas


@dataclasses.dataclass(eq=False)
class EvaluationStep:
    """The compiled function that evaluates a state on the replicas of a strategy.

    Attributes:
      strategy: strategy whose replicas compute.
      state: state created in the strategy's scope.
      virtual_replicas: number of virtual replicas over all replicas, the first axis of batches; None without them.
    """

    strategy: tf.distribute.Strategy
    state: TrainState
    virtual_replicas: int | None = None

    @tf.function(autograph=False)
    def evaluate(self, iterator: Iterator[tuple[Any, ...]], steps: tf.Tensor) -> Sums:
        """Returns the measure's sums over `steps` (int64 scalar, 1 or more) batches, float64."""
        structure: list[Sums] = []

        def add(done: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            each = self.strategy.run(self._replica_sums, next(iterator))
            structure.append(tf.nest.map_structure(lambda one: self.strategy.experimental_local_results(one)[0], each))
            # In float64: sums over a whole split would lose digits.
            values = [tf.reshape(tf.cast(v, tf.float64), [-1]) for v in tf.nest.flatten(structure[-1])]
            new = tf.concat(values, axis=0)
            return done + 1, tf.cond(done > 0, lambda: total + new, lambda: new)

        with tf.device("CPU:0"):  # the host counts, and waits for no device
            last, none = tf.cast(steps, tf.int32), (tf.constant(0), tf.zeros([0], tf.float64))
        shapes = (tf.TensorShape([]), tf.TensorShape([None]))
        _, total = tf.while_loop(lambda done, _: done < last, add, none, shapes, parallel_iterations=1)
        shapes_of = [value.shape for value in tf.nest.flatten(structure[-1])]
        parts = tf.split(total, [shape.num_elements() for shape in shapes_of])
        shaped = [tf.reshape(part, shape) for part, shape in zip(parts, shapes_of, strict=True)]
        sums: Sums = tf.nest.pack_sequence_as(structure[-1], shaped)
        return sums

    def _replica_sums(self, features: Any, labels: Any, weights: tf.Tensor) -> Sums:
        """Returns the measure's sums over all replicas' rows.

        Args:
          features: rows of this replica, (rows, ...); with virtual replicas, (virtual replicas, rows, ...).
          labels: labels, with the same axes.
          weights: sample weights, with the same axes, float32 (rows,).
        """
        trainable, fixed = self.values()

        def sums(rows: tuple[Any, ...]) -> Sums:
            return self.state.measure.evaluation_sums(self.state.evaluating(trainable, fixed), *rows)

        rows = (features, labels, weights)
        if self.virtual_replicas:
            found: Sums = sum_virtual_replicas(of_virtual_replicas(sums, rows), self.virtual_replicas)
            return found
        return all_sum(sums(rows))

    def values(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns the values of the trainable variables (their averages, if any), then of the others."""
        trainable, fixed = self.state.values()
        if self.state.averages:
            trainable = [tf.convert_to_tensor(value) for value in self.state.averages.values]
        return trainable, fixed
