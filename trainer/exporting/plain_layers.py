"""A model without our own layers, in whose place are Keras' operations: its file loads without our code."""

from __future__ import annotations

import functools
from typing import Any

import keras
from keras import ops

from trainer.models.layers import LocalResponseNorm, ScalePixels


def plain(model: keras.Model) -> keras.Model:
    """Returns a model that computes the same with the same variables; a user's, of its own layers, as it is."""
    if not any(isinstance(layer, ScalePixels | LocalResponseNorm) for layer in model.layers):
        return model
    if not isinstance(model, keras.Sequential):
        return keras.models.clone_model(model, clone_function=lambda layer: layer, call_function=_call)
    outputs = inputs = keras.Input(model.input_shape[1:], dtype=model.inputs[0].dtype)
    for layer in model.layers:
        outputs = _call(layer, outputs)
    return keras.Model(inputs, outputs, name=model.name)


def _call(layer: keras.layers.Layer, *arguments: Any, **options: Any) -> Any:
    if isinstance(layer, ScalePixels):
        return _scaled(*arguments)
    if isinstance(layer, LocalResponseNorm):
        return _normalised(*arguments)
    return layer(*arguments, **options)


def _scaled(images: keras.KerasTensor) -> keras.KerasTensor:
    return ops.divide(ops.cast(images, "float32"), 255.0) if images.dtype == "uint8" else images


def _normalised(activations: keras.KerasTensor) -> keras.KerasTensor:
    """Returns what `LocalResponseNorm` gives: x / (1 + sum of 9 neighbours' squares * 0.001 / 9)^0.75."""
    channels = activations.shape[-1]
    squares = ops.pad(ops.square(activations), [[0, 0], [0, 0], [0, 0], [4, 4]])
    neighbours = [squares[..., i : i + channels] for i in range(9)]
    total = functools.reduce(ops.add, neighbours)
    return ops.divide(activations, ops.power(ops.add(ops.multiply(total, 0.001 / 9.0), 1.0), 0.75))
