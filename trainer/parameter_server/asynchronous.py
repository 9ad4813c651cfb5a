"""Asynchronous training: a worker makes blocks of steps by itself, each with the weights as it finds them."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from trainer.parameter_server.columns import ColumnBatches
from trainer.parameter_server.compute import Compute, is_finite, norm_of
from trainer.parameter_server.ledger import Ledger
from trainer.parameter_server.rows import Rows
from trainer.step.state import TrainState


class Made(NamedTuple):
    """What a worker tells of a block.

    Attributes:
      steps: that it made, int64 (n,); others had been applied already.
      rows: of each step, string (n,), see `Rows`.
      finite: bool; False: the last of them had a loss or gradient that is NaN or infinite.
      waited: seconds that it took to make the batches.
      seconds: that the block took.
      worker: that made it.
      global_step: updates so far, of all workers.
    """

    steps: Any
    rows: Any
    finite: Any
    waited: Any
    seconds: Any
    worker: Any
    global_step: Any


@dataclasses.dataclass(eq=False)
class Asynchronous:
    """The graph of a block, to be run by workers.

    Attributes:
      state: on the parameter servers.
      batches: made of a worker's columns.
      compute: gradients, and their application.
      ledger: of the steps.
      rows: packs what a step came to.
    """

    state: TrainState
    batches: ColumnBatches
    compute: Compute
    ledger: Ledger
    rows: Rows

    @tf.function(autograph=False)
    def block(self, columns: Any, first: tf.Tensor, count: tf.Tensor) -> Made:
        """Makes the steps from `first` on that have not been applied yet, `count` of them at most, all of one epoch."""
        began = tf.timestamp()
        content, worker = next(columns)
        steps = self.ledger.missing(first, count)
        batch_of = self.batches.of_epoch(content, first)

        def one(i: tf.Tensor, finite: tf.Tensor, waited: tf.Tensor, rows: tf.TensorArray) -> tuple[Any, ...]:
            found, row, seconds = self._step(steps[i], batch_of, finite)
            with tf.control_dependencies([found]):
                return tf.identity(i + 1), found, waited + seconds, rows.write(i, row)

        texts = tf.TensorArray(tf.string, tf.size(steps), element_shape=[])
        made, finite, waited, texts = tf.while_loop(
            lambda i, finite, *rest: (i < tf.size(steps)) & finite,
            one,
            (tf.constant(0), tf.constant(True), tf.constant(0.0, tf.float64), texts),
            parallel_iterations=1,
        )
        with tf.control_dependencies([made]):
            total, seconds = self.state.global_step.read_value(), tf.timestamp() - began
        return Made(steps[:made], texts.stack()[:made], finite, waited, seconds, worker, total)

    def _step(self, step: tf.Tensor, batch_of: Any, before: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Makes a step; returns whether it is finite, its row, and the seconds that its batch took."""
        share = tf.constant(0, tf.int64)
        with tf.control_dependencies([before]):  # the step before has ended
            began = tf.timestamp()
        with tf.control_dependencies([began]):
            batch = batch_of(step, share)
        with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
            seconds = tf.timestamp() - began
        computed, sent = self.compute.of(step, share, batch)
        norm = norm_of(sent)
        with tf.control_dependencies([*sent.gradients, *sent.changes]):
            begun = self.ledger.begin(step)
        with tf.control_dependencies([begun]):
            applied = self.compute.apply(step, sent)
        with tf.control_dependencies([applied.op]):
            ended = [self.ledger.applied(step), self.state.global_step.assign_add(1, read_value=False)]
        with tf.control_dependencies([op for op in ended if op is not None]):
            finite = tf.identity(is_finite(computed, norm))
        return finite, self.rows.packed(computed.sums, computed.penalty, norm), seconds
