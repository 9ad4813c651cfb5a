"""Rotation, scale, shear and shift of an image as one affine transform."""

from __future__ import annotations

import dataclasses
import math

import tensorflow as tf

from pipeline.distort import kernels
from pipeline.distort.base import Augmentation, ImageStatistics, check_argument
from pipeline.order import hashing_tf

_ROTATE, _SCALE, _DOWN, _RIGHT, _SHEAR = range(5)  # draws


@dataclasses.dataclass(frozen=True)
class Affine(Augmentation):
    """Rotates, scales, shears and shifts each image at once: one bilinear interpolation; uint8.

    Sheared, scaled, then rotated about the middle, then shifted, as by torchvision's RandomAffine.

    Attributes:
      rotate: degrees, uniform in +-rotate; counter-clockwise.
      scale: the image is enlarged by a factor uniform in 1-scale..1+scale.
      shift: part of the height and of the width, each uniform in +-shift.
      shear: degrees by which the vertical leans, uniform in +-shear.
      fill: what moves in, a pixel's value.
    """

    rotate: float = 15.0
    scale: float = 0.1
    shift: float = 0.1
    shear: float = 0.0
    fill: int = 0

    def __post_init__(self) -> None:
        for argument, most in (("rotate", 180), ("scale", 0.9), ("shift", 1), ("shear", 60), ("fill", 255)):
            check_argument("affine", argument, getattr(self, argument), 0, most)

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`."""
        del statistics
        height, width = images.shape[1:3]
        angle = symmetric(keys, _ROTATE) * math.radians(self.rotate)
        factor = 1.0 + symmetric(keys, _SCALE) * self.scale
        lean = tf.tan(symmetric(keys, _SHEAR) * math.radians(self.shear))
        shift = [symmetric(keys, draw) * self.shift * n for draw, n in ((_RIGHT, width), (_DOWN, height))]
        cos, sin = tf.cos(angle) / factor, tf.sin(angle) / factor
        # From a place in the result back to the image: the shift, the rotation and the shear taken back.
        matrix = [[cos - lean * sin, -sin - lean * cos], [sin, cos]]
        return kernels.transform(images, about_the_middle(matrix, shift, (height, width)), self.fill)


def symmetric(keys: tf.Tensor, draw: int) -> tf.Tensor:
    """Returns float64 of the shape of `keys`, uniform in -1..1."""
    return tf.cast(hashing_tf.uniform(keys, draw), tf.float64) * 2.0 - 1.0


def about_the_middle(matrix: list[list[tf.Tensor]], shift: list[tf.Tensor], size: tuple[int, int]) -> tf.Tensor:
    """Returns the map from (x, y, 1) of the result to (x, y) of the image, as `kernels.transform` takes it.

    Args:
      matrix: float64 (rows,) each, 2x2: about the middle of the image.
      shift: of the result, pixels to the right and down.
      size: (height, width).
    """
    middle = (size[1] - 1) / 2, (size[0] - 1) / 2
    lines = []
    for i, (a, b) in enumerate(matrix):
        rest = middle[i] - a * (middle[0] + shift[0]) - b * (middle[1] + shift[1])
        lines.append(tf.stack([a, b, rest], axis=-1))
    return tf.stack(lines, axis=1)
