"""Models by name. A built-in model is a function of (image_shape, image_dtype, num_classes), with its defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pipeline.errors import PipelineError, UsageError, line_of, of_user
from pipeline.files.code import load_code
from trainer.config.model import ModelFlags, built_in
from trainer.models.applications import pretrained

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

__all__ = ["build", "pretrained", "takes"]


def build(flags: ModelFlags, images: tf.TensorSpec, num_classes: int) -> keras.Model:
    """Builds a model from images to logits (batch, num_classes), or a user's model, which may be compiled.

    The built-in models scale uint8 images to [0, 1]; Keras' own models have their own scaling. Keras' seed determines
    the weights.

    Args:
      flags: flags of the model: name, dropout, and initial weights.
      images: spec of the images after augmentation: uint8 or float32 (None, height, width, channels).
      num_classes: width of the logits.

    Raises:
      UsageError: the model cannot take such images, or the user's function fails.
    """
    shape = tuple(images.shape[1:])
    known = built_in(flags.model)
    if known is None:
        return _of_user(flags.model, load_code("--model", flags.model), images, num_classes)
    options: dict[str, Any] = {"dropout": flags.dropout} if known.takes_dropout else {}
    if known.sides:
        options["is_pretrained"] = flags.initialize_from is not None
    try:
        return known.build(shape, images.dtype.name, num_classes, **options)
    except ValueError as error:
        size = "x".join(map(str, shape))
        raise UsageError(f"--model={flags.model} cannot take images of {size}: {line_of(error)}") from None


def _of_user(name: str, function: Callable[..., Any], images: tf.TensorSpec, num_classes: int) -> keras.Model:
    """Calls a user's function, without arguments or with image shape and number of classes, to build the model."""
    import keras  # noqa: PLC0415

    from trainer import runtime  # noqa: PLC0415, here because it loads TensorFlow

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
        model = function(tuple(images.shape[1:]), num_classes) if required else function()
    except PipelineError:
        raise
    except Exception as error:
        runtime.raise_if_of_others(error)
        raise UsageError(f"--model={name}: the function fails: {of_user(error)}") from error
    if not isinstance(model, keras.Model):
        raise UsageError(f"--model={name}: must return a Keras model, returned {model!r}")
    if not model.built:
        raise UsageError(
            f"--model={name}: the model is not built, so it has no weights yet; give it a keras.Input, or call it once "
            f"on zeros of the images' shape (1, {', '.join(map(str, images.shape[1:]))}) before you return it"
        )
    if not model.compiled:
        _check_logits(name, model, images, num_classes)
    return model


def takes(model: keras.Model, features: Any) -> str | None:
    """Returns one line on why a model does not accept features with the given TensorSpecs; None if it does."""
    import keras  # noqa: PLC0415
    import tensorflow as tf  # noqa: PLC0415

    known = getattr(model, "input_shape", None)
    # With several inputs, `input_shape` is a tuple of shapes.
    is_shape = isinstance(known, tuple) and all(size is None or isinstance(size, int) for size in known)
    if is_shape and isinstance(features, tf.TensorSpec) and tf.TensorShape(known).is_compatible_with(features.shape):
        return None
    specs = tf.nest.map_structure(lambda spec: keras.KerasTensor(spec.shape, spec.dtype.name), features)
    try:
        model.compute_output_spec(specs)
    except Exception as error:  # layers reject shapes with errors of any kind
        return of_user(error)
    return None


def _check_logits(name: str, model: keras.Model, images: tf.TensorSpec, num_classes: int) -> None:
    """Rejects a model whose outputs are not one logit per class."""
    import keras  # noqa: PLC0415

    outputs = getattr(model, "output_shape", None)
    if outputs is None and takes(model, images) is None:  # a subclassed model, whose shapes Keras does not know
        spec = model.compute_output_spec(keras.KerasTensor(images.shape, images.dtype.name))
        outputs = tuple(spec.shape) if hasattr(spec, "shape") else type(spec).__name__
    if outputs is None:
        return  # it does not accept the images, which `trainer.step.state` reports for any model
    if outputs != (None, num_classes):
        raise UsageError(
            f"--model={name}: its outputs have the shape {outputs}; logits of {num_classes} classes need "
            f"{(None, num_classes)}; compile the model for another loss"
        )
    last = model.layers[-1] if model.layers else None
    activation = getattr(getattr(last, "activation", None), "__name__", "")
    if activation in ("softmax", "sigmoid"):
        raise UsageError(
            f"--model={name}: its last layer has the activation {activation}; leave it out, since the loss is "
            "for logits, or compile the model with a loss of probabilities"
        )
