"""The same step on any number of replicas, to the bit: virtual replicas, and sums that do not depend on their order.

The idea is that of VirtualFlow (Or, Zhang, Freedman, MLSys 2022) and EasyScale (Li et al., SC 2023): virtual replica v
always has rows [vG/V, (v+1)G/V) of the batch, and replica r runs V/R of them one after another. All begin with the same
weights and moving statistics. BatchNorm normalises over a virtual replica's rows ("ghost batch norm", Hoffer et al.
2017), and dropout draws from a hash of (seed, step, v).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainer.step.apply import Update
from trainer.step.gradients import Gradients
from trainer.step.replicas import StepResult, all_sum, evaluation_sums
from trainer.step.state import TrainState
from trainer.task.sums import Sums
from trainer.topology import sum_gradients


@dataclasses.dataclass(frozen=True, eq=False)
class VirtualReplicas:
    """A `ReplicaStep` whose results do not depend on how many replicas share the virtual ones.

    Attributes:
      state: what is trained.
      compute: the gradients; its units are the virtual replicas.
      update_weights: applies them.
    """

    state: TrainState
    compute: Gradients
    update_weights: Update

    def update(self, features: Any, labels: Any, weights: tf.Tensor) -> StepResult:
        """See `ReplicaStep.update`; all arguments have one more axis at first, the replica's virtual ones."""
        weight = tf.maximum(all_sum(tf.reduce_sum(weights)), 1.0)  # a sum of zeros and ones is exact
        here = weights.shape[0]
        first = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int64) * here
        values = self.compute.read()
        rows = (first + tf.range(here, dtype=tf.int64), features, labels, weights)
        gradients, state, sums, penalty = self._summed(
            lambda batch: tuple(self.compute.of(batch[0], weight, values, batch[1:])), rows
        )
        self.compute.assign_state(state)
        return StepResult(sums, penalty, self.update_weights.apply(gradients))

    def sums(self, features: Any, labels: Any, weights: tf.Tensor) -> Sums:
        """See `ReplicaStep.sums`; arguments as of `update`."""
        return self._summed(lambda rows: evaluation_sums(self.state, self.compute, *rows), (features, labels, weights))

    def _summed(self, function: Callable[[tuple[Any, ...]], Any], rows: tuple[Any, ...]) -> Any:
        """Returns the sum of what a function gives for each virtual replica, in its structure; one at a time.

        That bounds the memory to the activations of one of them.
        """
        structure: list[Any] = []  # of what the function gives, known once it is traced

        def flat(batch: tuple[Any, ...]) -> list[tf.Tensor]:
            given = function(batch)
            structure.append(given)
            return tf.nest.flatten(given)

        stacked = _mapped(flat, rows)
        return tf.nest.pack_sequence_as(structure[0], sum_gradients(stacked, self.compute.units))


def _mapped(function: Callable[..., list[tf.Tensor]], rows: tuple[Any, ...]) -> list[tf.Tensor]:
    """Returns a function's results for each virtual replica, stacked."""
    traced = tf.function(function, autograph=False)  # once, here and in the loop
    of_one = traced.get_concrete_function(tf.nest.map_structure(lambda part: _spec(part.shape[1:], part.dtype), rows))
    specs = [_spec(value.shape, value.dtype) for value in of_one.structured_outputs]
    stacked: list[tf.Tensor] = tf.map_fn(traced, rows, fn_output_signature=specs, parallel_iterations=1)
    return stacked


def _spec(shape: tf.TensorShape, dtype: tf.DType) -> tf.TensorSpec:
    return tf.TensorSpec(shape, dtype)
