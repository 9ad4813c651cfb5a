"""Brightness, contrast, saturation and hue."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import tensorflow as tf

from pipeline.distort import kernels
from pipeline.distort.affine import symmetric
from pipeline.distort.base import Augmentation, ImageStatistics, check_argument
from pipeline.errors import UsageError

GREY = (0.299, 0.587, 0.114)  # the luma of ITU-R BT.601, as Pillow's and torchvision's grey
# NTSC's Y, I and Q of red, green and blue: hue is an angle in the plane of I and Q.
_YIQ = np.array([GREY, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312)])
_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)  # draws


@dataclasses.dataclass(frozen=True)
class ColorJitter(Augmentation):
    """Random brightness, contrast, saturation, then hue; uint8, clipped once at the end.

    The four are one matrix and an offset, as in DALI's `color_twist`: hue turns the colours in the plane of I and Q.
    (torchvision's ColorJitter turns the hue of HSV, clips after each step and draws their order.)

    Attributes:
      brightness: pixels are multiplied by a number in 1-brightness..1+brightness.
      contrast: so is their distance from the image's mean grey.
      saturation: so is their distance from their own grey.
      hue: the colours are turned by up to this part of a full turn, to either side.
    """

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1

    def __post_init__(self) -> None:
        for argument, most in (("brightness", 1), ("contrast", 1), ("saturation", 1), ("hue", 0.5)):
            check_argument("color_jitter", argument, getattr(self, argument), 0, most)

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Raises UsageError where the images have no colours to change."""
        check_channels("color_jitter", image_shape)
        for argument in ("saturation", "hue"):
            if image_shape[2] == 1 and getattr(self, argument):
                raise UsageError(
                    f"distort: color_jitter({argument}={getattr(self, argument)}): must be 0 for images of one channel"
                )

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`."""
        del statistics
        channels = images.shape[3]
        draws = (self.brightness, self.contrast, self.saturation)
        bright, contrast, saturation = (1.0 + part * symmetric(keys, draw) for draw, part in enumerate(draws))
        # Grey stays what it is where saturation and hue change; so does the offset, which is grey.
        offset = mean_grey(images) * bright * (1.0 - contrast)
        matrix = (bright * contrast)[:, None, None]
        if channels == 3:
            turned = hue_matrix(symmetric(keys, _HUE) * (2.0 * math.pi * self.hue))
            matrix = matrix * (saturation[:, None, None] * (turned - _TO_GREY) + _TO_GREY)
        return kernels.mix_channels(images, matrix, tf.repeat(offset[:, None], channels, axis=1))


_TO_GREY = np.tile(GREY, (3, 1))


def check_channels(recipe: str, image_shape: tuple[int, int, int]) -> None:
    """Raises UsageError where images are neither grey nor RGB."""
    if image_shape[2] not in (1, 3):
        raise UsageError(f"distort: {recipe}: needs images of 1 or 3 channels; these have {image_shape[2]}")


def hue_matrix(angle: tf.Tensor) -> tf.Tensor:
    """Returns float64 (rows, 3, 3): turns RGB colours by an angle (rows,), in radians; greys stay as they are."""
    inverse = np.linalg.inv(_YIQ)
    luma, cosine, sine = (inverse @ part @ _YIQ for part in _TURN)
    cos, sin = (wave(angle)[:, None, None] for wave in (tf.cos, tf.sin))
    return luma + cosine * cos + sine * sin


_TURN = np.array([np.diag([1.0, 0, 0]), np.diag([0, 1.0, 1.0]), [[0, 0, 0], [0, 0, -1.0], [0, 1.0, 0]]])


def mean_grey(images: tf.Tensor) -> tf.Tensor:
    """Returns the mean over each image's pixels of their grey, float64 (rows,), of uint8 images."""
    _, height, width, channels = images.shape
    sums = kernels.over_pixels(images, tf.reduce_sum)
    parts = tf.constant(GREY if channels == 3 else (1.0,), tf.float64)
    return tf.reduce_sum(tf.cast(sums, tf.float64) * parts, axis=1) / (height * width)
