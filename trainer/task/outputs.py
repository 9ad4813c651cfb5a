"""The shape of a model's outputs, and what they say of classes."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from trainer.task.base import DataSpec


def shape_of(model: keras.Model, data: DataSpec) -> Any:
    """Returns the shape of a model's outputs, in their structure where there are several.

    Args:
      model: built; one of a subclass, which Keras does not know the shape of, is called with symbols.
      data: what it gets.
    """
    known = getattr(model, "output_shape", None)
    if known is not None:
        return known
    features = tf.nest.map_structure(lambda spec: keras.KerasTensor(spec.shape, spec.dtype.name), data.features)
    return tf.nest.map_structure(lambda found: tuple(found.shape), model.compute_output_spec(features))


def classes_of(model: keras.Model, data: DataSpec) -> tuple[str, ...] | None:
    """Returns the names of the classes of which the outputs have one number each; None: they are something else.

    Args:
      model: built.
      data: labels that are numbers of classes, or where rows are mixed the probabilities of all; where the classes have
        no names, the numbers are the names.
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
    """Says whether the outputs are probabilities, not logits: by the last layer, or the loss it is compiled with."""
    last = model.layers[-1] if model.layers else None
    if isinstance(last, keras.layers.Softmax) or getattr(last, "activation", None) is keras.activations.softmax:
        return True
    if not model.compiled:
        return False
    loss = keras.losses.get(model.loss)
    name = str(getattr(loss, "name", None) or getattr(loss, "__name__", ""))
    return "crossentropy" in name and not getattr(loss, "from_logits", False)
