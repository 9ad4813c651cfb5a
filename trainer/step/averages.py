"""The average of the weights over the steps, which evaluations and exports use (Polyak and Juditsky 1992)."""

from __future__ import annotations

import keras
import tensorflow as tf

_WARM_UP = 10.0  # decay min(d, (1 + step) / (10 + step)), as tf.train.ExponentialMovingAverage with num_updates


class Averages(tf.Module):
    """A variable beside each weight, on the same devices.

    Attributes:
      values: the averages, in the order of `model.trainable_variables`.
    """

    def __init__(self, model: keras.Model, decay: float) -> None:
        """Makes the averages, equal to the weights; call it in the strategy's scope."""
        super().__init__()
        self._weights, self._decay = [v.value for v in model.trainable_variables], decay
        self.values = [tf.Variable(v, trainable=False, name="average") for v in self._weights]

    def reset(self) -> None:
        """Sets the averages to the weights."""
        for average, weight in zip(self.values, self._weights, strict=True):
            average.assign(weight)

    def to_weights(self) -> None:
        """Sets the weights to the averages."""
        for weight, average in zip(self._weights, self.values, strict=True):
            weight.assign(average)

    def update(self, strategy: tf.distribute.Strategy, step: tf.Tensor) -> None:
        """Adds the weights after an update, in a cross-replica context; step, int64, counts the updates so far."""
        count = tf.cast(step, tf.float32)
        decay = tf.minimum(self._decay, (1.0 + count) / (_WARM_UP + count))
        for average, weight in zip(self.values, self._weights, strict=True):
            strategy.extended.update(
                average, lambda variable, value: variable.assign_sub((1.0 - decay) * (variable - value)), args=(weight,)
            )
