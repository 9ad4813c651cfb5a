"""What a recipe is, and the statistics of the data that it may use."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import tensorflow as tf

from pipeline.errors import UsageError


@dataclasses.dataclass(frozen=True)
class ImageStatistics:
    """Per channel, of the training images' pixels in 0..255."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class Recipe(Protocol):
    """A distortion of a batch and its evaluation twin. Both run inside XLA with static shapes."""

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Raises UsageError where images of this (height, width, channels) cannot be distorted so."""

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """Returns the distorted batch.

        Args:
          images: uint8 (rows, height, width, channels).
          keys: uint64 (rows,), one an example, for `pipeline.uniform(keys, draw)`.
          statistics: of the training images.
        """

    def evaluate(self, images: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """Returns the batch without randomness, in the shape and range that `distort` gives."""


def check_bounds(name: str, value: float, least: float, most: float) -> None:
    """Raises UsageError where an argument is not within its bounds."""
    if not least <= value <= most:
        raise UsageError(f"distort: {name}={value}: must be in {least}..{most}")
