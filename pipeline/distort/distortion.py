"""A recipe with all that it needs besides a batch, as the input applies it on the host, or a step on its device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from pipeline.distort.base import ImageStatistics, Mixed, Recipe
from pipeline.distort.batchwise import batchwise


@dataclasses.dataclass(frozen=True, eq=False)
class Distortion:
    """Distorts batches, and mixes their rows.

    Attributes:
      recipe: what it does.
      statistics: of the training images.
      num_classes: of the labels, for recipes that mix these.
      training: False: the recipe's evaluation twin, without mixing.
      keys_of: from an epoch and its rows to their keys, uint64; XLA compiles it with the recipe.
      images_of: from the images as they are given to uint8 (rows, height, width, channels); XLA compiles it, too.
    """

    recipe: Recipe
    statistics: ImageStatistics
    num_classes: int
    training: bool
    keys_of: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    images_of: Callable[[tf.Tensor], tf.Tensor]

    def __call__(
        self, images: tf.Tensor, labels: Any, epoch: tf.Tensor, rows: tf.Tensor, real: tf.Tensor
    ) -> tuple[tf.Tensor, Any]:
        """Returns the images and the labels; those of a recipe that mixes are probabilities, in evaluation, too.

        Args:
          images: for `images_of`; one batch, or several of them with one axis more.
          labels: int64 (rows,).
          epoch: int64 scalar, or (rows,).
          rows: for `keys_of`, (rows,).
          real: bool (rows,): the rows that may be mixed, if their partners are real, too.
        """
        if self.recipe.mixing:
            labels = tf.one_hot(labels, self.num_classes)
        images = (self._compiled if self.recipe.compiled else self._distorted)(images, epoch, rows)
        if self.recipe.mixing and self.training:
            images, labels = self._mixed(images, labels, epoch, rows, real)
        return images, labels

    @tf.function(jit_compile=True, autograph=False)
    def _compiled(self, images: tf.Tensor, epoch: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        return self._distorted(images, epoch, rows)

    def _distorted(self, images: tf.Tensor, epoch: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        function = self.recipe.distort if self.training else self.recipe.evaluate

        def call(images: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
            return function(images, keys, self.statistics)

        distorted: tf.Tensor = batchwise(call)(self.images_of(images), self.keys_of(epoch, rows))
        return distorted

    @tf.function(jit_compile=True, autograph=False)
    def _mixed(self, images: tf.Tensor, labels: tf.Tensor, epoch: tf.Tensor, rows: tf.Tensor, real: tf.Tensor) -> Mixed:
        assert self.recipe.mixing is not None
        mix = self.recipe.mixing.mix
        # Pairs lie side by side, in a group as in a batch, and nothing is summed over rows.
        mixed: Mixed = batchwise(lambda images, labels, keys, real: mix(images, labels, keys, epoch, real))(
            images, labels, self.keys_of(epoch, rows), real
        )
        return mixed
