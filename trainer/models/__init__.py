"""The models by name. A model is a module with `build(image_shape, image_dtype, num_classes)`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from pipeline.errors import UsageError
from trainer.config.model_defaults import WITH_DROPOUT

if TYPE_CHECKING:
    import keras


def build(
    name: str, image_shape: tuple[int, int, int], image_dtype: str, num_classes: int, seed: int, dropout: float = 0.0
) -> keras.Model:
    """Returns a model from images to logits (batch, num_classes), float32.

    uint8 images are scaled to [0, 1] inside the model. The same arguments give the same weights.

    Args:
      name: one of `trainer.config.model_defaults.MODEL_DEFAULTS`.
      image_shape: (height, width, channels) after distortion.
      image_dtype: `uint8` or `float32`.
      num_classes: width of the logits.
      seed: of the initial weights.
      dropout: of a model that has any.

    Raises:
      UsageError: the model cannot take images of this shape.
    """
    import keras  # noqa: PLC0415  # seconds; callers that only read this module's documentation do not pay them

    keras.utils.set_random_seed(seed)
    try:
        model: keras.Model = importlib.import_module(f"trainer.models.{name}").build(
            image_shape, image_dtype, num_classes, **({"dropout": dropout} if name in WITH_DROPOUT else {})
        )
    except ValueError as error:
        shape = "x".join(map(str, image_shape))
        raise UsageError(f"--model={name} cannot take images of {shape}: {str(error).splitlines()[0]}") from None
    return model
