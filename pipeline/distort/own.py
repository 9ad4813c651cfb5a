"""The user's own function as a recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import tensorflow as tf

from pipeline.distort.base import ImageStatistics

UserDistort = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Own:
    """Calls `function(images, keys)` in training and in evaluation; not compiled, as it may use any op."""

    compiled: ClassVar[bool] = False

    function: UserDistort

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Any image will do."""

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`."""
        del statistics
        return self.function(images, keys)

    evaluate = distort
