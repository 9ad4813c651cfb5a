"""A task that is deliberately slow on one worker of a job with parameter servers."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from trainer import Task

WORKER, SECONDS = "STRAGGLER", "STRAGGLER_SECONDS"  # in the chief's environment


class Slowed(Task):
    """Image classification in which each step takes longer on the worker named by the environment."""

    def train_step(self, model: Any, features: Any, labels: Any) -> Any:
        """See `Task.train_step`."""
        with tf.control_dependencies(pause()):
            return super().train_step(model, tf.identity(features), labels)


def pause() -> list[tf.Tensor]:
    """Returns a tensor that takes some seconds on the worker named by the environment, if there is one."""
    if WORKER not in os.environ:
        return []
    index = tf.distribute.coordinator.experimental_get_current_worker_index()
    is_slow = tf.equal(tf.cast(index, tf.int64), int(os.environ[WORKER]))
    end = tf.timestamp() + tf.where(is_slow, tf.constant(float(os.environ[SECONDS]), tf.float64), 0.0)
    return list(tf.while_loop(lambda now: now < end, lambda now: [_later(now)], [tf.timestamp()]))


def _later(before: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([before]):
        return tf.timestamp()
