"""The optimizers by name, and the tutorials' learning-rate schedule as a function of the global step."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from trainer.config.flags import LearningFlags

Schedule = Callable[[tf.Tensor], tf.Tensor]  # global step (int64 scalar) -> rate of the next update (float32 scalar)


def schedule(flags: LearningFlags, decay_steps: int) -> Schedule:
    """Returns the staircase learning_rate * decay_factor ^ floor(step / decay_steps)."""
    decay: Schedule = keras.optimizers.schedules.ExponentialDecay(
        flags.learning_rate, decay_steps, flags.decay_factor, staircase=True
    )
    return decay


def create(flags: LearningFlags) -> keras.optimizers.Optimizer:
    """Returns the optimizer; its learning rate is set before every update by whoever applies it."""
    if flags.optimizer == "adam":
        return keras.optimizers.Adam(learning_rate=0.0)
    return keras.optimizers.SGD(learning_rate=0.0, momentum=flags.momentum if flags.optimizer == "momentum" else 0.0)
