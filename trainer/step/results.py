"""What an inner loop gives, and what it may be asked to tell of its last update."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import tensorflow as tf

from trainer.task.sums import LOSS

NORM, HISTOGRAMS, IMAGES = "norm", "histograms", "images"  # what a loop may be asked for
TOTAL_LOSS, REGULARIZATION = "total_loss", "regularization"
AVERAGED = (TOTAL_LOSS, LOSS, REGULARIZATION)  # those of the values that have a moving average


class LoopResult(NamedTuple):
    """Where an inner loop ended.

    Attributes:
      step: global step after the last update, int64 scalar.
      values: of the last update, float32 (values,), named by `Stepper.value_names`.
      finite: bool scalar; False: the loop ended early, since the last update's loss, or a weight after it, is NaN or
        infinite (a NaN can pass through ReLU as 0 and show in the gradient only).
      waited: seconds that the updates waited for their batches, float64 scalar.
      averages: moving averages over the updates, float32 (AVERAGED,).
      epoch: sums over the updates of this epoch so far, float64, see `details.added_up`; none before the first.
      means: what follows from these sums, float64 (values,), named as `values`: means over the epoch's real rows.
      norm: of the last update's summed gradients, float32 scalar; 0 unless it was wanted.
      histograms: of the weights after the last update, then of its summed gradients, float32 (2 * variables,
        details.COLUMNS); none unless they were wanted.
      images: the first of the last batch, on the first local replica; none unless they were wanted.
    """

    step: tf.Tensor
    values: tf.Tensor
    finite: tf.Tensor
    waited: tf.Tensor
    averages: tf.Tensor
    epoch: tf.Tensor
    means: tf.Tensor
    norm: tf.Tensor
    histograms: tf.Tensor
    images: tf.Tensor


class Wanted(NamedTuple):
    """What the last update of a loop is to tell, bool scalars."""

    norm: tf.Tensor
    histograms: tf.Tensor
    images: tf.Tensor

    @classmethod
    def of(cls, names: Collection[str] = ()) -> Wanted:
        """Returns the flags of which the names are given."""
        return cls(*(tf.constant(name in names) for name in cls._fields))
