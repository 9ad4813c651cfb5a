"""The user's own function as a recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import tensorflow as tf

from pipeline.distort.base import ImageStatistics, Recipe


@dataclasses.dataclass(frozen=True)
class UserDistorted(Recipe):
    """Calls `function(images, keys)` in training and in evaluation; not compiled, as it may use any op."""

    compiled: ClassVar[bool] = False

    function: Callable[[tf.Tensor, tf.Tensor], Any]

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """See `Recipe.distort`."""
        del statistics
        return self.function(images, keys)

    evaluate = distort
