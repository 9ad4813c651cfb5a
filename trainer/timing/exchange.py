"""How long the replicas take to add up the gradients of a step, measured apart from the steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from trainer.step.train_step import all_sum

_REPEATS, _ROUNDS = 3, 3  # in a loop, and loops of which the fastest counts


def seconds(strategy: tf.distribute.Strategy, variables: Sequence[Any], dtype: tf.DType) -> float:
    """Returns the seconds of one sum over all replicas; every worker has to call it.

    Args:
      strategy: whose replicas add up.
      variables: the weights, of whose shapes the gradients are.
      dtype: of what is sent: float32; int64 with virtual replicas.
    """

    def made(number: tf.Tensor) -> list[tf.Tensor]:
        """Returns what is not known beforehand: TensorFlow adds up constants only once."""
        more = tf.cast(number, tf.float32)
        return [tf.cast(tf.cast(variable.value, tf.float32) + more, dtype) for variable in variables]

    both, alone = _seconds(strategy, lambda number: all_sum(made(number))), _seconds(strategy, made)
    return max(0.0, both - alone)


def _seconds(strategy: tf.distribute.Strategy, compute: Callable[[tf.Tensor], list[tf.Tensor]]) -> float:
    """Returns the seconds of a computation on all replicas, traced and compiled before."""

    def replica(number: tf.Tensor) -> tf.Tensor:
        return tf.add_n([tf.cast(tf.reduce_max(value), tf.float32) for value in compute(number)])  # all of it is used

    @tf.function(autograph=False)
    def loop() -> tf.Tensor:
        def one(done: tf.Tensor, before: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return done + 1, before + strategy.experimental_local_results(strategy.run(replica, (done,)))[0]

        start = (tf.constant(0), tf.constant(0.0))
        total: tf.Tensor = tf.while_loop(lambda done, _: done < _REPEATS, one, start, parallel_iterations=1)[1]
        return total

    loop().numpy()
    fastest = float("inf")
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        loop().numpy()
        fastest = min(fastest, time.perf_counter() - began)
    return fastest / _REPEATS
