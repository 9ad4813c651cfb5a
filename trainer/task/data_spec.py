"""What the rows of a run's batches are, before any is read."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from pipeline import user_function
from pipeline.decode.forms import is_pair
from pipeline.distort.base import Recipe, output_spec
from pipeline.distort.composed import cropping_of
from pipeline.distort.recipes import make_recipe
from pipeline.errors import UsageError
from pipeline.resolved import ResolvedRequest
from trainer.task.base import DataSpec


def of(training: ResolvedRequest) -> DataSpec:
    """Returns the specification of the batches of a request.

    Raises:
      UsageError: the user's `parse` does not return (features, labels).
    """
    classes = tuple(training.manifest.class_names)
    parse = training.request.parse
    if parse is not None:
        return _parsed(parse, classes)
    distort = training.request.distort
    recipe = make_recipe("none" if distort is None else str(distort), "--distort")
    images = _images(training, recipe)
    labels = tf.TensorSpec([None, len(classes)], tf.float32) if recipe.mixing else tf.TensorSpec([None], tf.int64)
    return DataSpec(tf.TensorSpec([None, *images.shape[1:]], images.dtype), labels, classes)


def _images(training: ResolvedRequest, recipe: Recipe) -> tf.TensorSpec:
    shape = training.image_shape
    if cropping := cropping_of(recipe):
        shape = (*cropping.crop(training=True).size, training.manifest.features["image"].shape[2] or 3)
    assert shape is not None
    return output_spec(recipe, shape)


def _parsed(parse: Any, classes: tuple[str, ...]) -> DataSpec:
    with tf.Graph().as_default():
        given = user_function.call("Task.parse", user_function.as_given(parse), tf.zeros([1], tf.string))
    if not is_pair(given):
        raise UsageError(f"Task.parse: must return (features, labels), returned {given!r}")
    features, labels = tf.nest.map_structure(
        lambda value: tf.TensorSpec([None, *value.shape[1:]], value.dtype), tuple(given)
    )
    return DataSpec(features, labels, classes)
