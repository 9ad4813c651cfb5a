"""The optimizers by name, and the tutorials' learning-rate schedule as a function of the global step."""

from __future__ import annotations

import dataclasses

import keras
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class StaircaseDecay:
    """initial * factor ^ floor(step / steps): tf.train.exponential_decay with staircase=True.

    Attributes:
      initial: the rate at step 0.
      factor: by which it changes.
      steps: how often.
    """

    initial: float
    factor: float
    steps: int

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the rate of the update that leads from `step` (int64 scalar) to step + 1, float32 scalar."""
        stairs = tf.cast(step // self.steps, tf.float32)
        return self.initial * tf.pow(tf.constant(self.factor, tf.float32), stairs)


def create(name: str, momentum: float) -> keras.optimizers.Optimizer:
    """Returns an optimizer; its learning rate is set before every step by whoever applies it.

    Args:
      name: one of `trainer.config.OPTIMIZERS`.
      momentum: used by `momentum` only.
    """
    if name == "adam":
        return keras.optimizers.Adam(learning_rate=0.0)
    return keras.optimizers.SGD(learning_rate=0.0, momentum=momentum if name == "momentum" else 0.0)
