"""Learning rates as functions of the global step: warm-up, then a staircase, a cosine, a line, or no change."""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf

from trainer.config.model import OptimizerFlags

Schedule = Callable[[tf.Tensor], tf.Tensor]  # global step (int64 scalar) -> rate of the next update (float32 scalar)


def create(flags: OptimizerFlags, steps_per_epoch: int, last_step: int) -> Schedule:
    """Returns the schedule that the flags name.

    With r = learning_rate, s = global step, w = steps of warm-up, and p = (s - w) / (last_step - w) in [0, 1]:
    exponential r * decay_factor^floor(s / stair); piecewise r * decay_factor^(stairs before s); cosine
    r * (e + (1 - e) * (1 + cos(pi * p)) / 2), e = end_factor (Loshchilov and Hutter 2017, "SGDR", without restarts);
    linear r * (e + (1 - e) * (1 - p)). Below w all are multiplied by (s + 1) / w (Goyal et al. 2017, 2.2).

    Args:
      flags: of the optimizer.
      steps_per_epoch: T; epochs of flags become steps by it, rounded down.
      last_step: at which training ends, and cosine and linear with it.
    """
    warmup = int(flags.warmup_epochs * steps_per_epoch)
    shape = _shape(flags, steps_per_epoch, warmup, last_step)

    def rate(step: tf.Tensor) -> tf.Tensor:
        number = tf.cast(step, tf.float64)
        share = shape(number)
        if warmup:
            share *= tf.clip_by_value((number + 1) / warmup, 0.0, 1.0)
        return tf.cast(flags.learning_rate * share, tf.float32)

    return rate


def _shape(flags: OptimizerFlags, steps_per_epoch: int, warmup: int, last_step: int) -> Schedule:
    """Returns the rate without warm-up as a share of the highest: of a step, float64 scalars."""
    factor, end = tf.constant(flags.decay_factor, tf.float64), flags.end_factor
    if flags.schedule == "exponential":
        stair = max(1, int(flags.decay_epochs * steps_per_epoch))
        return lambda step: factor ** tf.floor(step / stair)
    if flags.schedule == "piecewise":
        stairs = tf.constant([int(epoch * steps_per_epoch) for epoch in flags.stairs], tf.float64)
        return lambda step: factor ** tf.reduce_sum(tf.cast(step >= stairs, tf.float64))

    def progress(step: tf.Tensor) -> tf.Tensor:
        return tf.clip_by_value((step - warmup) / max(1, last_step - warmup), 0.0, 1.0)

    if flags.schedule == "cosine":
        return lambda step: end + (1 - end) * (1 + tf.cos(math.pi * progress(step))) / 2
    if flags.schedule == "linear":
        return lambda step: end + (1 - end) * (1 - progress(step))
    return tf.ones_like
