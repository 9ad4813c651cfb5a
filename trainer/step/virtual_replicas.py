"""The same step on any number of replicas, to the bit: virtual replicas, and sums that do not depend on their order.

The idea is that of VirtualFlow (Or, Zhang, Freedman, MLSys 2022) and EasyScale (Li et al., SC 2023): virtual replica v
always has rows [vG/V, (v+1)G/V) of the batch, and replica r runs V/R of them one after another. All begin with the same
weights and moving statistics. BatchNorm normalises over a virtual replica's rows ("ghost batch norm", Hoffer et al.
2017), and dropout draws from a hash of (seed, step, v).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from pipeline.order import hashing_tf
from pipeline.order.hashing import Domain
from trainer.step.replicas import all_sum, weighted_sums
from trainer.step.state import TrainState
from trainer.topology import sum_gradients, without_all_reduce

_HALF = 32  # bits of a key in each of the two numbers of a Keras seed


@dataclasses.dataclass(frozen=True, eq=False)
class VirtualReplicas:
    """A `ReplicaStep` whose results do not depend on how many replicas share the virtual ones.

    Attributes:
      state: what is trained.
      count: V.
      seed: of dropout.
    """

    state: TrainState
    count: int
    seed: int

    def __post_init__(self) -> None:
        """Has the optimizer take gradients as they are, instead of adding those of all replicas once more."""
        without_all_reduce(self.state.optimizer)

    def update(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """See `ReplicaStep.update`; all arguments have one more axis at first, the replica's virtual ones."""
        model, optimizer = self.state.model, self.state.optimizer
        trainable = [tf.convert_to_tensor(v.value) for v in model.trainable_variables]
        fixed = [tf.convert_to_tensor(v.value) for v in model.non_trainable_variables]
        averaged = [i for i, value in enumerate(fixed) if value.dtype.is_floating]
        weight = tf.maximum(all_sum(tf.reduce_sum(weights)), 1.0)  # a sum of zeros and ones is exact
        first = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int64) * images.shape[0]

        def gradients_of(batch: tuple[tf.Tensor, ...]) -> list[tf.Tensor]:
            number, *rows = batch
            with tf.GradientTape() as tape:
                tape.watch(trainable)
                logits, changed, losses = model.stateless_call(
                    trainable, self._seeded(fixed, first + number), rows[0], training=True, return_losses=True
                )
                sums = weighted_sums(logits, *rows[1:])
                penalty = tf.add_n([tf.constant(0.0), *losses]) / self.count
                loss = sums[1] / weight + penalty
            gradients = tape.gradient(loss, trainable, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            return [*gradients, *(changed[i] / self.count for i in averaged), sums[1], sums[2], penalty]

        shapes = [value.shape for value in (*trainable, *(fixed[i] for i in averaged))]
        numbers = tf.range(images.shape[0], dtype=tf.int64)
        stacked = self._one_by_one(gradients_of, (numbers, images, labels, weights), [*shapes, (), (), ()])
        *sums, loss, correct, penalty = sum_gradients(stacked, self.count)
        optimizer.apply(sums[: len(trainable)], model.trainable_variables)
        for i, value in zip(averaged, sums[len(trainable) :], strict=True):
            model.non_trainable_variables[i].assign(value)
        return loss / weight + penalty, correct / weight

    def sums(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """See `ReplicaStep.sums`; arguments as of `update`."""

        def sums_of(rows: tuple[tf.Tensor, ...]) -> list[tf.Tensor]:
            return tf.unstack(weighted_sums(self.state.model(rows[0], training=False), *rows[1:]))

        stacked = self._one_by_one(sums_of, (images, labels, weights), [(), (), ()])
        return tf.stack(sum_gradients(stacked, self.count))

    def _one_by_one(self, function: Any, rows: tuple[tf.Tensor, ...], shapes: list[Any]) -> list[tf.Tensor]:
        """Returns the results for each virtual replica, stacked; one at a time, which bounds the memory."""
        if rows[0].shape[0] == 1:
            return [value[None] for value in function(tuple(part[0] for part in rows))]
        specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
        stacked: list[tf.Tensor] = tf.map_fn(function, rows, fn_output_signature=specs, parallel_iterations=1)
        return stacked

    def _seeded(self, fixed: list[tf.Tensor], number: tf.Tensor) -> list[tf.Tensor]:
        """Returns the state that is not trained, with the seeds of a virtual replica at this step."""

        def seeded(index: int, value: tf.Tensor) -> tf.Tensor:
            if value.dtype.is_floating:
                return value
            key = hashing_tf.derive_key(Domain.MODEL, self.seed, index, self.state.global_step.read_value(), number)
            low = tf.bitwise.bitwise_and(key, tf.constant((1 << _HALF) - 1, tf.uint64))
            return tf.cast(tf.stack([tf.bitwise.right_shift(key, tf.constant(_HALF, tf.uint64)), low]), value.dtype)

        return [seeded(index, value) for index, value in enumerate(fixed)]
