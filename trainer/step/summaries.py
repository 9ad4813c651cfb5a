"""TensorBoard summaries of an update, computed from its outcome: norms, histograms, activations, images."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline.batch.batches import DeviceAugmentation

NORM, HISTOGRAMS, ACTIVATIONS, IMAGES = "norm", "histograms", "activations", "images"
BUCKETS = 30  # buckets per histogram, as in TensorBoard's own
COLUMNS = 4 + BUCKETS
_MOST_IMAGES = 8  # number of images shown per step
_CHANNELS = (1, 3, 4)  # numbers of channels that can be shown as an image


@dataclasses.dataclass(frozen=True, eq=False)
class Summaries:
    """Compiled functions of a model after an update. They are not part of the update, whose bits they never change.

    Attributes:
      model: model with the weights after the update.
      augment: augmentation of rows that have crossed the bus as uint8; None if the input augments.
      virtual: whether batches have virtual replicas as their first axis.
      trained: indices of the trained variables in `model.trainable_variables`.
    """

    model: keras.Model
    augment: DeviceAugmentation | None
    virtual: bool
    trained: Sequence[int]

    def of(self, wanted: frozenset[str], gradients: list[tf.Tensor], rows: tuple[Any, ...]) -> dict[str, Any]:
        """Returns the wanted summaries by their names in `LoopResult`.

        Args:
          wanted: names of summaries.
          gradients: summed gradients of the update before clipping, one per trained variable.
          rows: (features, labels, weights) of the first local replica.
        """
        made = {
            NORM: lambda: _norm(gradients),
            HISTOGRAMS: lambda: self._histograms(gradients),
            ACTIVATIONS: lambda: self._activations(rows),
            IMAGES: lambda: self._images(rows),
        }
        return {name: make() for name, make in made.items() if name in wanted}

    @tf.function(autograph=False)
    def _histograms(self, gradients: list[tf.Tensor]) -> tf.Tensor:
        variables = [variable.value for variable in self.model.trainable_variables]
        found = [histogram(tf.convert_to_tensor(one)) for one in (*variables, *gradients)]
        of_gradients = dict(zip(self.trained, found[len(variables) :], strict=True))
        none = tf.zeros([COLUMNS])  # counts nothing
        return tf.stack([*found[: len(variables)], *(of_gradients.get(i, none) for i in range(len(variables)))])

    @functools.cached_property
    def _outputs_of_layers(self) -> keras.Model:
        return keras.Model(self.model.inputs, list(outputs_of_layers(self.model).values()))

    @tf.function(autograph=False)
    def _activations(self, rows: tuple[Any, ...]) -> tuple[tf.Tensor, tf.Tensor]:
        outputs = self._outputs_of_layers(self._features(rows), training=False)
        values = [tf.cast(one, tf.float32) for one in outputs]
        return tf.stack([histogram(one) for one in values]), tf.stack([tf.math.zero_fraction(one) for one in values])

    @tf.function(autograph=False)
    def _images(self, rows: tuple[Any, ...]) -> tf.Tensor:
        return self._features(rows)[:_MOST_IMAGES]

    def _features(self, rows: tuple[Any, ...]) -> Any:
        """Returns the features of real rows as the model gets them; with virtual replicas, the first one's."""
        first = tf.nest.map_structure(lambda part: part[0], rows) if self.virtual else rows
        features, _, weights = self.augment(*first) if self.augment else first
        return tf.nest.map_structure(lambda part: tf.boolean_mask(part, weights > 0), features)


def are_images(features: Any) -> bool:
    """Returns whether a TensorSpec has the shape of images: (rows, height, width, channels)."""
    if not isinstance(features, tf.TensorSpec):
        return False
    return features.shape.rank == 4 and features.shape[-1] in _CHANNELS


def outputs_of_layers(model: keras.Model) -> dict[str, Any]:
    """Returns {layer: output} of the layers that a functional model calls once; empty for other models."""
    found = {}
    for layer in model.layers:
        if not isinstance(layer, keras.layers.InputLayer):
            with contextlib.suppress(AttributeError, ValueError):  # called by nothing, or several times
                found[layer.name] = layer.output
    return found


@tf.function(autograph=False)
def _norm(gradients: list[tf.Tensor]) -> tf.Tensor:
    return tf.linalg.global_norm(gradients)


def histogram(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a row of `LoopResult.histograms`."""
    values = tf.reshape(tf.cast(tensor, tf.float32), [-1])
    least, greatest = tf.reduce_min(values), tf.reduce_max(values)
    span = tf.where(greatest > least, greatest - least, 1.0)
    place = tf.cast(tf.minimum((values - least) / span * BUCKETS, BUCKETS - 1), tf.int32)
    counts = tf.math.bincount(tf.maximum(place, 0), minlength=BUCKETS, maxlength=BUCKETS, dtype=tf.float32)
    statistics = [least, greatest, tf.reduce_sum(values), tf.reduce_sum(values * values)]
    return tf.ensure_shape(tf.concat([tf.stack(statistics), counts], axis=0), [COLUMNS])
