"""Recipes that change the values of pixels, but do not move them: scale, colours, erased parts."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np

from pipeline.augmentation import RECIPES, kernels, passes
from pipeline.augmentation.base import Augmentation, ImageStatistics, Recipe, argument
from pipeline.augmentation.passes import Pass
from pipeline.errors import UsageError
from pipeline.lazily import tf
from pipeline.order import graph_hashing

GREY = (0.299, 0.587, 0.114)  # the luma of ITU-R BT.601, which Pillow and torchvision use as grey
# NTSC's Y, I and Q of red, green and blue. Hue is an angle in the plane of I and Q.
_YIQ = np.array([GREY, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312)])
_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)  # draws of color_jitter
_TO_GREY = np.tile(GREY, (3, 1))
_TURN = np.array([np.diag([1.0, 0, 0]), np.diag([0, 1.0, 1.0]), [[0, 0, 0], [0, 0, -1.0], [0, 1.0, 0]]])


@RECIPES.named("normalize")
@dataclasses.dataclass(frozen=True)
class Normalize(Recipe):
    """Normalises by the training images' mean and standard deviation, channel by channel; float32."""

    draws_nothing: ClassVar[bool] = True
    stays: ClassVar[bool] = True

    @property
    def normalizes(self) -> bool:
        return True

    def gives_floats(self, floats: bool) -> bool:
        return True

    def passes(self, image_shape: tuple[int, int, int], statistics: ImageStatistics, training: bool) -> list[Pass]:
        return [passes.normalise(statistics.mean, statistics.divisor)]

    def augment(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        return kernels.normalise(images, statistics.mean, statistics.divisor)

    evaluate = augment


@RECIPES.named("color_jitter")
@dataclasses.dataclass(frozen=True)
class ColorJitter(Augmentation):
    """Changes brightness, contrast, saturation, then hue at random; uint8, clipped once at the end.

    All four form one matrix and an offset, as in DALI's `color_twist`: hue rotates the colours in the plane of I and Q.
    (torchvision's ColorJitter rotates the hue of HSV, clips after each step, and draws the order of the steps.)

    Attributes:
      brightness: range of the factor, 1-brightness..1+brightness, for pixels.
      contrast: range of the factor, 1-contrast..1+contrast, for their distance from the image's mean grey.
      saturation: range of the factor, 1-saturation..1+saturation, for their distance from their own grey.
      hue: largest rotation of the colours, in either direction, as a fraction of a full turn.
    """

    stays: ClassVar[bool] = True

    brightness: float = argument(0.4, 0, 1)
    contrast: float = argument(0.4, 0, 1)
    saturation: float = argument(0.4, 0, 1)
    hue: float = argument(0.1, 0, 0.5)

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Raises UsageError if the images have no colours to change."""
        check_channels("color_jitter", image_shape)
        for name in ("saturation", "hue"):
            if image_shape[2] == 1 and getattr(self, name):
                raise UsageError(
                    f"augment: color_jitter({name}={getattr(self, name)}): must be 0 for images of one channel"
                )

    def passes(self, image_shape: tuple[int, int, int], statistics: ImageStatistics, training: bool) -> list[Pass]:

        def parameters(keys: tf.Tensor) -> list[tf.Tensor]:
            factors, of_mean = self._drawn(keys, image_shape[2])
            return [factors, passes.halves(of_mean)]

        return [Pass("recolour", (), parameters)] if training else []

    def augment(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        channels = images.shape[3]
        factors, of_mean = self._drawn(keys, channels)
        offset = kernels.fixed(mean_grey(images) * of_mean, kernels.SHARE_BITS)
        return kernels.mix_channels(images, factors, tf.repeat(offset[:, None], channels, axis=1))

    def _drawn(self, keys: tf.Tensor, channels: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the factors of `kernels.mix_channels`, and the factor of an image's mean grey in its offset.

        The second is float64 (rows,). Saturation and hue do not change greys, so they do not change the offset, a grey.
        """
        draws = (self.brightness, self.contrast, self.saturation)
        bright, contrast, saturation = (1.0 + part * kernels.symmetric(keys, draw) for draw, part in enumerate(draws))
        matrix = (bright * contrast)[:, None, None]
        if channels == 3:
            turned = hue_matrix(kernels.symmetric(keys, _HUE) * (2.0 * math.pi * self.hue))
            matrix = matrix * (saturation[:, None, None] * (turned - _TO_GREY) + _TO_GREY)
        return kernels.fixed(matrix, kernels.SHARE_BITS), kernels.computed(bright * (1.0 - contrast))


def check_channels(recipe: str, image_shape: tuple[int, int, int]) -> None:
    """Raises UsageError if images are neither grey nor RGB."""
    if image_shape[2] not in (1, 3):
        raise UsageError(f"augment: {recipe}: needs images of 1 or 3 channels; these have {image_shape[2]}")


def hue_matrix(angle: tf.Tensor) -> tf.Tensor:
    """Returns matrices that rotate RGB colours by an angle (rows,) in radians and keep greys: float64 (rows, 3, 3)."""
    inverse = np.linalg.inv(_YIQ)
    luma, cosine, sine = (inverse @ part @ _YIQ for part in _TURN)
    cos, sin = (wave(angle)[:, None, None] for wave in (tf.cos, tf.sin))
    return luma + cosine * cos + sine * sin


def mean_grey(images: tf.Tensor) -> tf.Tensor:
    """Returns the mean grey of each uint8 image: float64 (rows,).

    Sums are of whole numbers and are divided once, so that the mean is rounded the same on every processor.
    """
    _, height, width, channels = images.shape
    sums = tf.cast(kernels.over_pixels(images, tf.reduce_sum), tf.int64)
    if channels == 1:
        return tf.cast(sums[:, 0], tf.float64) / (height * width)
    weighted = tf.reduce_sum(sums * np.rint(np.multiply(GREY, 1000)).astype(np.int64), axis=1)
    return tf.cast(weighted, tf.float64) / (1000 * height * width)


@RECIPES.named("cutout")
@dataclasses.dataclass(frozen=True)
class Cutout(Augmentation):
    """Covers a square with the training images' mean colour, which is 0 if images are normalised.

    Its middle may be any pixel, so a part of it may lie outside. Source: DeVries and Taylor, Improved Regularization
    of Convolutional Neural Networks with Cutout (2017).

    Attributes:
      size: side of the square, pixels.
    """

    stays: ClassVar[bool] = True
    takes_floats: ClassVar[bool] = True

    size: int = 8

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Raises UsageError if the square is larger than the images."""
        self.check_bounds("size", 1, min(image_shape[:2]), image_shape)

    def passes(self, image_shape: tuple[int, int, int], statistics: ImageStatistics, training: bool) -> list[Pass]:
        numbers = (self.size, self.size, *_mean_colour(statistics))
        cover = Pass("cover", numbers, lambda keys: self._corner(image_shape[:2], keys))
        return [cover] if training else []

    def _corner(self, size: tuple[int, int], keys: tf.Tensor) -> list[tf.Tensor]:
        return [kernels.random_below(n, keys, draw) - self.size // 2 for draw, n in enumerate(size)]

    def augment(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """Returns covered images; floats, which are normalised, are covered with 0."""
        size = images.shape[1], images.shape[2]
        top, left = self._corner(size, keys)
        cover = tf.zeros((), images.dtype)
        if images.dtype == tf.uint8:
            cover = tf.constant(_mean_colour(statistics), tf.uint8)
        return tf.where(kernels.inside(top, left, self.size, self.size, size), cover, images)


def _mean_colour(statistics: ImageStatistics) -> list[int]:
    return [round(mean) for mean in statistics.mean]


@RECIPES.named("random_erasing")
@dataclasses.dataclass(frozen=True)
class RandomErasing(Augmentation):
    """Covers a rectangle of random size and shape with noise in some of the images; uint8.

    Source: Zhong et al., Random Erasing Data Augmentation (2017), RE-R, with a log-uniform aspect ratio. If it
    would be taller or wider than the image, it ends at the border.

    Attributes:
      prob: fraction of the images to change.
      min_area, max_area: bounds of the rectangle's fraction of the image's area, which is uniform between them.
      max_shape: largest height / width of the rectangle; the smallest is its inverse.
    """

    stays: ClassVar[bool] = True

    prob: float = argument(0.5, 0, 1)
    min_area: float = argument(0.02, 0, "max_area")
    max_area: float = argument(0.4, 0, 1)
    max_shape: float = argument(10 / 3, 1, 16)

    def passes(self, image_shape: tuple[int, int, int], statistics: ImageStatistics, training: bool) -> list[Pass]:

        def parameters(keys: tf.Tensor) -> list[tf.Tensor]:
            covered, top, left, tall, wide = self._box(keys, image_shape[:2])
            return [top, left, tf.where(covered, tall, 0), wide, passes.halves(_noise_key(keys))]

        return [Pass("noise", (), parameters)] if training else []

    def augment(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        size, channels = (images.shape[1], images.shape[2]), images.shape[3]
        covered, top, left, tall, wide = self._box(keys, size)
        inside = kernels.inside(top, left, tall, wide, size) & covered[:, None, None, None]
        return tf.where(inside, _noise(_noise_key(keys), (*size, channels)), images)

    def _box(self, keys: tf.Tensor, size: tuple[int, int]) -> tuple[tf.Tensor, ...]:
        """Returns which images are changed, bool (rows,), and the rectangle's top, left, height and width."""
        height, width = size
        draw = lambda number: tf.cast(graph_hashing.uniform(keys, number), tf.float64)  # noqa: E731
        area = (self.min_area + (self.max_area - self.min_area) * draw(1)) * (height * width)
        shape = tf.exp(math.log(self.max_shape) * (2.0 * draw(2) - 1.0))
        tall = tf.minimum(tf.cast(tf.round(tf.sqrt(area * shape)), tf.int32), height)
        wide = tf.minimum(tf.cast(tf.round(tf.sqrt(area / shape)), tf.int32), width)
        top = kernels.random_below(height - tall + 1, keys, 3)
        left = kernels.random_below(width - wide + 1, keys, 4)
        return graph_hashing.uniform(keys, 0) < self.prob, top, left, tall, wide


def _noise_key(keys: tf.Tensor) -> tf.Tensor:
    return graph_hashing.splitmix64(keys + tf.constant(5, tf.uint64))


def _noise(keys: tf.Tensor, shape: tuple[int, ...]) -> tf.Tensor:
    """Returns uniform noise, uint8 (rows, *shape): the bytes of splitmix64(key + i), lowest first."""
    size = math.prod(shape)
    hashes = graph_hashing.splitmix64(keys[:, None] + tf.cast(tf.range(-(-size // 8)), tf.uint64)[None, :])
    return tf.reshape(tf.reshape(tf.bitcast(hashes, tf.uint8), (keys.shape[0], -1))[:, :size], (-1, *shape))
