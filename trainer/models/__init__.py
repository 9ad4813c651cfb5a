"""The models by name. A built-in one is a module with `build(image_shape, image_dtype, num_classes)`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pipeline.errors import PipelineError, UsageError, of_user
from trainer.cluster import failures
from trainer.config.flags.model import ModelFlags
from trainer.config.loading import load
from trainer.config.model_defaults import WITH_DROPOUT

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


def build(flags: ModelFlags, images: tf.TensorSpec, num_classes: int) -> keras.Model:
    """Returns a model from images to logits (batch, num_classes), or a user's model, which may be compiled.

    uint8 images are scaled to [0, 1] inside the built-in models. The seed of Keras gives the weights.

    Args:
      flags: the model, and its dropout.
      images: uint8 or float32 (None, height, width, channels), after distortion.
      num_classes: width of the logits.

    Raises:
      UsageError: the model cannot take such images, or the user's function fails.
    """
    shape = tuple(images.shape[1:])
    if ":" in flags.model:
        return _of_user(flags.model, load("--model", flags.model), shape, num_classes)
    options = {"dropout": flags.dropout} if flags.model in WITH_DROPOUT else {}
    try:
        model: keras.Model = importlib.import_module(f"trainer.models.{flags.model}").build(
            shape, images.dtype.name, num_classes, **options
        )
    except ValueError as error:
        size, reason = "x".join(map(str, shape)), str(error).splitlines()[0]
        raise UsageError(f"--model={flags.model} cannot take images of {size}: {reason}") from None
    return model


def _of_user(name: str, function: Callable[..., Any], shape: tuple[int, ...], num_classes: int) -> keras.Model:
    """Returns what a user's function gives: called without arguments, or with the shape and the number of classes."""
    import keras  # noqa: PLC0415

    if not callable(function):
        raise UsageError(f"--model={name}: must be a function that returns a Keras model; it is {function!r}")
    required = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    required = [p for p in required if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(required) not in (0, 2):
        raise UsageError(
            f"--model={name}: must take no arguments, or the images' shape and the number of classes; it takes "
            f"{', '.join(p.name for p in required)}"
        )
    try:
        model = function(shape, num_classes) if required else function()
    except PipelineError:
        raise
    except Exception as error:
        failures.raise_if_lost(error)
        raise UsageError(f"--model={name}: the function fails: {of_user(error)}") from error
    if not isinstance(model, keras.Model):
        raise UsageError(f"--model={name}: must return a Keras model, returned {model!r}")
    if not model.compiled:
        _check_logits(name, model, num_classes)
    return model


def _check_logits(name: str, model: keras.Model, num_classes: int) -> None:
    """Refuses a model that the cross-entropy of logits would not train."""
    outputs = getattr(model, "output_shape", None)
    if outputs != (None, num_classes):
        raise UsageError(
            f"--model={name}: its outputs have the shape {outputs}; logits of {num_classes} classes need "
            f"{(None, num_classes)}; compile the model for another loss"
        )
    activation = getattr(getattr(model.layers[-1], "activation", None), "__name__", "")
    if activation in ("softmax", "sigmoid"):
        raise UsageError(
            f"--model={name}: its last layer has the activation {activation}; leave it out, since the loss is "
            "that of logits, or compile the model with a loss of probabilities"
        )
