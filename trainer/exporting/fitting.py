"""Brings raw images of any size to the size that the model takes, as the input does when it decodes them."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from pipeline.decode.images import Stretched, resize
from pipeline.distort.base import Crop, Recipe
from pipeline.distort.composed import cropping_of
from pipeline.request import Request


@dataclasses.dataclass(frozen=True)
class Fitting:
    """Cuts a part out of each image and stretches it.

    Attributes:
      crop: which part, and the size of the result.
      channels: of the images.
    """

    crop: Crop
    channels: int

    def fit(self, images: tf.Tensor) -> tf.Tensor:
        """Returns uint8 (n, *crop.size, channels) of uint8 (n, height, width, channels)."""
        size, shape = self.crop.size, tf.shape(images)
        top, left, height, width = tf.unstack(self.crop.box(shape[1], shape[2], tf.constant(0, tf.uint64)))
        parts = images[:, top : top + height, left : left + width, :]
        spec = tf.TensorSpec((*size, self.channels), tf.uint8)
        stretched = lambda: tf.map_fn(lambda part: resize(part, size), parts, fn_output_signature=spec)  # noqa: E731
        fitted = tf.cond(tf.logical_and(height == size[0], width == size[1]), lambda: parts, stretched)
        return tf.ensure_shape(fitted, (None, *size, self.channels))


def fitting_of(request: Request, recipe: Recipe, channels: int) -> Fitting | None:
    """Returns what an evaluation does to the size of images; None: nothing, they have the model's."""
    if cropping := cropping_of(recipe):
        return Fitting(cropping.crop(training=False), channels)
    return Fitting(Stretched(request.size), channels) if request.size else None
