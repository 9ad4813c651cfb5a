"""The augmented inputs of TensorFlow's CIFAR-10 tutorial.

Source: tensorflow/models, tutorials/image/cifar10/cifar10_input.py: random_crop to 24x24, random_flip_left_right,
random_brightness(max_delta=63), random_contrast(0.2, 1.8), per_image_standardization; for evaluation
resize_image_with_crop_or_pad to 24x24 and per_image_standardization.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from pipeline.augmentation import RECIPES, kernels, moves
from pipeline.augmentation.base import ImageStatistics, argument
from pipeline.augmentation.geometry import CropFirst
from pipeline.augmentation.moves import Move
from pipeline.lazily import tf, xla
from pipeline.order import graph_hashing

_EXACT = 1 << 24  # float32 represents all whole numbers below it
_TOP, _LEFT, _FLIP, _BRIGHTNESS, _CONTRAST = range(5)  # draws; changing them changes a seed's images


@RECIPES.named("cifar10_tutorial")
@dataclasses.dataclass(frozen=True)
class Cifar10Tutorial(CropFirst):
    """Random crop, flip, brightness, contrast, standardisation; float32 (rows, crop, crop, channels).

    Attributes:
      crop: height and width of the result, pixels.
      flip: whether to mirror half of the images.
      brightness: a number uniform in +-brightness is added to an image; `standardize` cancels it.
      contrast_low, contrast_high: an image's distance from its channel means is multiplied by a number in this range.
      standardize: whether to give each image mean 0 and standard deviation 1; if not, pixels stay on the scale 0..255.
    """

    sets_size: ClassVar[bool] = True

    crop: int = 24
    flip: bool = True
    brightness: float = argument(63.0, 0, 255)
    contrast_low: float = argument(0.2, 0, "contrast_high")
    contrast_high: float = argument(1.8, 0, 255)
    standardize: bool = True

    def gives_floats(self, floats: bool) -> bool:
        return True

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Raises UsageError if the crop is larger than the images."""
        self.check_bounds("crop", 1, min(image_shape[:2]), image_shape)

    def crop_size(self, image_shape: tuple[int, int, int]) -> tuple[int, int]:
        return self.crop, self.crop

    def corners(self, image_shape: tuple[int, int, int], keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        height, width, _ = image_shape
        top = kernels.random_below(height - self.crop + 1, keys, _TOP)
        return top, kernels.random_below(width - self.crop + 1, keys, _LEFT)

    def moves(self, size: tuple[int, int], training: bool) -> list[Move]:
        result = (self.crop, self.crop)
        if not training:
            top, left = ((n - self.crop) // 2 for n in size)
            return [moves.crop(0, result, lambda keys: (tf.fill(tf.shape(keys), top), tf.fill(tf.shape(keys), left)))]
        flips = [moves.flip(result, self._is_flipped)] if self.flip else []
        return [*(super().moves(size, training) or ()), *flips]

    def _is_flipped(self, keys: tf.Tensor) -> tf.Tensor:
        return graph_hashing.uniform(keys, _FLIP) < 0.5

    def augment_crops(self, crops: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        rows, height, width, channels = crops.shape
        lanes = tf.reshape(crops, (rows, height, width * channels))
        brightness = (graph_hashing.uniform(keys, _BRIGHTNESS) * 2.0 - 1.0) * self.brightness
        spread = self.contrast_high - self.contrast_low
        contrast = graph_hashing.uniform(keys, _CONTRAST) * spread + self.contrast_low
        scale, means, shift = self._colour(lanes, contrast, brightness, channels)
        if self.flip:  # after the sums, which do not depend on the flip, so that XLA computes it once
            lanes = kernels.flip(lanes, self._is_flipped(keys), channels)
        return _apply(lanes, scale, means, shift, channels)

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """Returns the central crops, standardised."""
        rows, _, _, channels = images.shape
        lanes = kernels.central_crop(images, self.crop, self.crop)
        return _apply(lanes, *self._colour(lanes, tf.ones(rows), tf.zeros(rows), channels), channels)

    def _colour(
        self, lanes: tf.Tensor, contrast: tf.Tensor, brightness: tf.Tensor, channels: int
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Folds contrast, brightness and standardisation into `(x - means) * scale + shift`; returns these three.

        With channel means m, their mean M, contrast c and brightness b, the tutorial's image is c (x - m) + m + b. Its
        mean is M + b, its variance c^2 mean((x - m)^2) + mean((m - M)^2), so b cancels in the standardised image. Sums
        of pixels and of their squares are whole numbers, which are exact in any order.

        Returns:
          scale (rows,); means and shift (rows, width * channels).
        """
        _, height, width = lanes.shape
        count = height * width // channels
        totals, squares = _sums(lanes, channels)
        means = totals / count
        if not self.standardize:
            mean_lanes = _to_lanes(means, width)
            return contrast, mean_lanes, mean_lanes + brightness[:, None]
        within = tf.reduce_mean(squares - totals * means, axis=1) / count
        offset = means - tf.reduce_mean(means, axis=1, keepdims=True)
        variance = tf.square(tf.cast(contrast, tf.float64)) * within + tf.reduce_mean(tf.square(offset), axis=1)
        # tf.image.per_image_standardization: adjusted_stddev = max(stddev, 1 / sqrt(number of values)).
        inverse = 1.0 / tf.maximum(tf.sqrt(variance), (height * width) ** -0.5)
        scale = contrast * tf.cast(inverse, tf.float32)
        return scale, _to_lanes(means, width), _to_lanes(offset * inverse[:, None], width)


def _sums(lanes: tf.Tensor, channels: int) -> list[tf.Tensor]:
    """Returns each channel's sum of pixels and sum of their squares over rows of lanes: float64 (rows, channels)."""
    rows, height, width = lanes.shape
    values = tf.cast(lanes, tf.float32 if height * 255**2 < _EXACT else tf.float64)
    # The barrier keeps XLA from merging the sums over rows and over lanes into one scalar loop, 5 times slower.
    sums = xla.optimization_barrier(*kernels.sums_of_lines(values, tf.square(values)))
    per_channel = (tf.reshape(tf.cast(each, tf.float64), (rows, width // channels, channels)) for each in sums)
    return [tf.reduce_sum(each, axis=1) for each in per_channel]


def _to_lanes(values: tf.Tensor, width: int) -> tf.Tensor:
    """Repeats numbers per channel, float64 (rows, channels), for all lanes: float32 (rows, width * channels)."""
    (lanes,) = xla.optimization_barrier(tf.tile(tf.cast(values, tf.float32), [1, width // values.shape[1]]))
    return lanes


def _apply(lanes: tf.Tensor, scale: tf.Tensor, means: tf.Tensor, shift: tf.Tensor, channels: int) -> tf.Tensor:
    centred = tf.cast(lanes, tf.float32) - means[:, None, :]
    return kernels.to_images(centred * scale[:, None, None] + shift[:, None, :], channels)
