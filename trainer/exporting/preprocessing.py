"""The preprocessing of an evaluation, in Keras' own operations, so that an exported model loads without our code."""

from __future__ import annotations

import functools
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from pipeline.distort.base import Augmentation, ImageStatistics, Recipe, Undistorted
from pipeline.distort.cifar10_tutorial import Cifar10Tutorial
from pipeline.distort.composed import Composed
from pipeline.distort.geometry import CroppingRecipe, PadCropFlip, Resize, Shift
from pipeline.distort.kernels import BETWEEN_BITS, WEIGHT_BITS, whole_weights
from pipeline.distort.pixels import Normalize
from pipeline.errors import UsageError

_LEAST_STD = 1e-3  # of a channel that never varies, as in `pipeline.distort.kernels.normalise`


@functools.singledispatch
def preprocess(recipe: Recipe, images: keras.KerasTensor, statistics: ImageStatistics) -> keras.KerasTensor:
    """Returns what `recipe.evaluate` gives for a batch of any size.

    Args:
      recipe: a named one.
      images: uint8 (None, height, width, channels), static except for the number of rows.
      statistics: of the training images.

    Raises:
      UsageError: the recipe is a user's function.
    """
    raise UsageError(f"--distort: {type(recipe).__name__} cannot be exported; only named recipes can")


@preprocess.register
def _composed(recipe: Composed, images: keras.KerasTensor, statistics: ImageStatistics) -> keras.KerasTensor:
    return functools.reduce(lambda given, one: preprocess(one, given, statistics), recipe.recipes, images)


@preprocess.register
def _augmentation(recipe: Augmentation, images: keras.KerasTensor, statistics: ImageStatistics) -> keras.KerasTensor:
    del recipe, statistics
    return images


@preprocess.register
def _normalize(recipe: Normalize, images: keras.KerasTensor, statistics: ImageStatistics) -> keras.KerasTensor:
    del recipe
    return _normalised(images, statistics)


@preprocess.register
def _resize(recipe: Resize, images: keras.KerasTensor, statistics: ImageStatistics) -> keras.KerasTensor:
    del statistics
    _, height, width, _ = images.shape
    down, across = (whole_weights(*sizes) for sizes in ((height, recipe.height), (width, recipe.width)))
    tall = ops.round(ops.einsum("oh,bhwc->bowc", down, _floats(images)) * 2.0 ** (BETWEEN_BITS - WEIGHT_BITS))
    wide = ops.round(ops.einsum("pw,bowc->bopc", across, tall) * 2.0 ** -(BETWEEN_BITS + WEIGHT_BITS))
    return ops.cast(wide, "uint8")


@preprocess.register
def _undistorted(recipe: Undistorted, images: keras.KerasTensor, statistics: ImageStatistics) -> keras.KerasTensor:
    del recipe, statistics
    return images


@preprocess.register
def _shift(recipe: Shift, images: keras.KerasTensor, statistics: ImageStatistics) -> keras.KerasTensor:
    del recipe, statistics
    return ops.divide(_floats(images), 255.0)


@preprocess.register
def _pad_crop_flip(recipe: PadCropFlip, images: keras.KerasTensor, statistics: ImageStatistics) -> keras.KerasTensor:
    return _normalised(images, statistics) if recipe.normalize else images


@preprocess.register
def _cropping(recipe: CroppingRecipe, images: keras.KerasTensor, statistics: ImageStatistics) -> keras.KerasTensor:
    return _normalised(images, statistics) if recipe.normalize else images


@preprocess.register
def _cifar10_tutorial(
    recipe: Cifar10Tutorial, images: keras.KerasTensor, statistics: ImageStatistics
) -> keras.KerasTensor:
    del statistics
    _, height, width, channels = images.shape
    top, left, side = (height - recipe.crop) // 2, (width - recipe.crop) // 2, recipe.crop
    pixels = _floats(images[:, top : top + side, left : left + side, :])
    if not recipe.standardize:
        return pixels
    each_image: Callable[[keras.KerasTensor], keras.KerasTensor] = functools.partial(
        ops.mean, axis=(1, 2, 3), keepdims=True
    )
    centred = ops.subtract(pixels, each_image(pixels))
    deviation = ops.sqrt(each_image(ops.square(centred)))
    # tf.image.per_image_standardization: adjusted_stddev = max(stddev, 1 / sqrt(number of values)).
    return ops.divide(centred, ops.maximum(deviation, (side * side * channels) ** -0.5))


def _floats(images: keras.KerasTensor) -> keras.KerasTensor:
    return ops.cast(images, "float32")


def _normalised(images: keras.KerasTensor, statistics: ImageStatistics) -> keras.KerasTensor:
    mean, std = np.asarray(statistics.mean, np.float32), np.asarray(statistics.std, np.float32)
    return ops.divide(ops.subtract(_floats(images), mean), np.maximum(std, np.float32(_LEAST_STD)))
