"""Synchronous training: a worker computes the gradient of a share of a step, and leaves it on the parameter servers.

The chief applies the mean of those that it chooses, so that a gradient is applied as a whole or not at all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from trainer.parameter_server.columns import ColumnBatches
from trainer.parameter_server.compute import Compute, Sent, is_finite, norm_of
from trainer.parameter_server.ledger import Ledger
from trainer.parameter_server.rows import Rows
from trainer.parameter_server.transfer import Transfer
from trainer.step.state import TrainState
from trainer.task.base import WEIGHT


class Share(NamedTuple):
    """What a worker tells of a share.

    Attributes:
      version: the global step of the weights.
      weight: of its rows, together.
      row: see `Rows`, string scalar.
      finite: whether loss and gradient are.
      waited: seconds that it took to make the batch.
      seconds: that it took in all.
      worker: that computed it.
    """

    version: Any
    weight: Any
    row: Any
    finite: Any
    waited: Any
    seconds: Any
    worker: Any


class Synchronous:
    """The graphs of a share, run by workers, and of an update, run by the chief.

    Attributes:
      batches: of shares.
      rows: packs what a share came to.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        state: TrainState,
        batches: ColumnBatches,
        compute: Compute,
        ledger: Ledger,
        rows: Rows,
        places: int,
    ) -> None:
        """Makes room on the parameter servers for as many gradients as are computed at once: `places`."""
        self.batches, self.rows = batches, rows
        self._strategy, self._state, self._compute, self._ledger = strategy, state, compute, ledger
        self._gradients = self._room(compute.trainable, places)
        self._changes = self._room(compute.kept, places)

    def _room(self, transfer: Transfer, places: int) -> list[tf.Variable]:
        """Returns a variable of (places, values) beside the variables of each group."""
        room = []
        for group, indices in transfer.groups.items():
            beside = transfer.variables[indices[0]]
            zeros = tf.zeros([places, sum(transfer.sizes(group))], group[1])
            with self._strategy.scope(), self._strategy.extended.colocate_vars_with(beside):
                room.append(tf.Variable(zeros, trainable=False, name="gradients"))
        return room

    @tf.function(autograph=False)
    def share(self, columns: Any, step: tf.Tensor, number: tf.Tensor, place: tf.Tensor) -> Share:
        """Computes the gradient of a share of a step with the weights as they are now, and puts it in a place."""
        began = tf.timestamp()
        content, worker = next(columns)
        version = self._state.global_step.read_value()
        with tf.control_dependencies([version]):  # weights are of this version, or newer
            batch = self.batches.of_epoch(content, step)(step, number)
        with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
            waited = tf.timestamp() - began
            computed, sent = self._compute.of(step, number, batch)
        kept = [
            tf.raw_ops.ResourceScatterUpdate(resource=room.handle, indices=place, updates=values)
            for room, values in zip([*self._gradients, *self._changes], [*sent.gradients, *sent.changes], strict=True)
        ]
        norm = norm_of(sent)
        with tf.control_dependencies(kept):
            seconds = tf.timestamp() - began
        row = self.rows.packed(computed.sums, computed.penalty, norm)
        return Share(version, computed.sums[WEIGHT], row, is_finite(computed, norm), waited, seconds, worker)

    @tf.function(autograph=False)
    def update(self, step: tf.Tensor, places: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """Applies the weighted mean of the gradients in some places; returns its norm.

        Args:
          step: whose update it is, int64 scalar.
          places: int32 (M,).
          weights: of the rows of each, float32 (M,).
        """
        parts = weights / tf.maximum(tf.reduce_sum(weights), 1.0)
        sent = Sent([_mean(room, places, parts) for room in self._gradients], [])
        equal = tf.ones_like(weights) / tf.cast(tf.size(weights), tf.float32)
        sent = sent._replace(changes=[_mean(room, places, equal) for room in self._changes])
        norm = norm_of(sent)
        with tf.control_dependencies([self._ledger.begin(step)]):
            applied = self._compute.apply(step, sent)
        with tf.control_dependencies([applied.op]):
            marked = self._ledger.applied(step)
        with tf.control_dependencies([marked]):
            counted = self._state.global_step.assign(step + 1, read_value=False)
        with tf.control_dependencies([counted] if counted is not None else []):
            return tf.identity(norm)


def _mean(room: tf.Variable, places: tf.Tensor, parts: tf.Tensor) -> tf.Tensor:
    with tf.device(room.device):
        chosen = room.sparse_read(places)
        mean: tf.Tensor = tf.linalg.matvec(chosen, tf.cast(parts, chosen.dtype), transpose_a=True)
        return mean
