"""The shapes of a run's batches, before any is read, and whether a model's outputs are classes."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from pipeline import user_function
from pipeline.decode import is_pair
from pipeline.distort.base import Recipe, output_spec
from pipeline.distort.composed import cropping_of
from pipeline.distort.recipes import make_recipe
from pipeline.errors import UsageError
from pipeline.resolved import ResolvedRequest
from trainer.task.base import DataSpec


def of(training: ResolvedRequest) -> DataSpec:
    """Returns the shapes and dtypes of a request's batches.

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


def shape_of(model: keras.Model, data: DataSpec) -> Any:
    """Returns the shape of a model's outputs; a structure of shapes if there are several.

    Args:
      model: built. A subclassed one, whose output shape Keras does not know, is called with symbolic features.
      data: its features.
    """
    known = getattr(model, "output_shape", None)
    if known is not None:
        return known
    features = tf.nest.map_structure(lambda spec: keras.KerasTensor(spec.shape, spec.dtype.name), data.features)
    return tf.nest.map_structure(lambda found: tuple(found.shape), model.compute_output_spec(features))


def classes_of(model: keras.Model, data: DataSpec) -> tuple[str, ...] | None:
    """Returns the class names if the outputs are one number per class, else None.

    Args:
      model: built.
      data: its labels are class numbers, or probabilities of all classes if rows are mixed. Classes without names are
        called by their numbers.
    """
    shape, labels = shape_of(model, data), data.labels
    if not isinstance(labels, tf.TensorSpec):
        return None
    numbers = labels.dtype.is_integer and labels.shape.rank == 1
    mixed = labels.dtype.is_floating and labels.shape.as_list() == [None, len(data.class_names) or -1]
    if not (numbers or mixed) or not isinstance(shape, tuple) or len(shape) != 2 or not isinstance(shape[1], int):
        return None
    names = data.class_names or tuple(map(str, range(shape[1])))
    return names if 2 <= shape[1] == len(names) else None


def gives_probabilities(model: keras.Model) -> bool:
    """Returns whether the outputs are probabilities, not logits, judging by the last layer or the compiled loss."""
    last = model.layers[-1] if model.layers else None
    if isinstance(last, keras.layers.Softmax) or getattr(last, "activation", None) is keras.activations.softmax:
        return True
    if not model.compiled:
        return False
    loss = keras.losses.get(model.loss)
    name = str(getattr(loss, "name", None) or getattr(loss, "__name__", ""))
    return "crossentropy" in name and not getattr(loss, "from_logits", False)
