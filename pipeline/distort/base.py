"""What a recipe is; and the two that need no code of ours: no distortion, and the user's own function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol

import tensorflow as tf

from pipeline import user_function
from pipeline.errors import UsageError

_NOT_NUMBERS = (tf.string, tf.variant, tf.resource)


@dataclasses.dataclass(frozen=True)
class ImageStatistics:
    """Per channel, of the training images' pixels in 0..255."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class Recipe:
    """A distortion of a batch and its evaluation twin, with static shapes.

    It gives each row the same bits in a batch of any size: XLA may sum floats in another order there, so sums are of
    whole numbers.

    Attributes:
      compiled: whether both are run as one XLA function.
      takes_floats: whether it also takes what a recipe before it has normalised; else uint8 alone.
      sets_size: whether it decides the height and width of the result.
    """

    compiled: ClassVar[bool] = True
    takes_floats: ClassVar[bool] = False
    sets_size: ClassVar[bool] = False

    @property
    def mixing(self) -> Mixing | None:
        """What mixes the rows of the distorted batch and their labels; None: nothing."""
        return None

    @property
    def normalizes(self) -> bool:
        """Whether the result depends on the training images' statistics, in an evaluation too."""
        return False

    def gives_floats(self, floats: bool) -> bool:
        """Says whether the result is float32, of images that are that or not; else it is uint8."""
        return floats

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Raises UsageError if images of this (height, width, channels) cannot be distorted; here any can."""

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """Returns the distorted batch.

        Args:
          images: uint8 (rows, height, width, channels).
          keys: uint64 (rows,), one per example, for `pipeline.uniform(keys, draw)`.
          statistics: of the training images.
        """
        raise NotImplementedError

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """Returns the batch without randomness, in the shape and range that `distort` gives."""
        raise NotImplementedError


class Augmentation(Recipe):
    """A distortion that keeps shape and dtype; evaluation gets the images as they are."""

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        del keys, statistics
        return images


class Mixed(NamedTuple):
    """Rows after mixing.

    Attributes:
      images: of the shape and dtype that they had.
      labels: float32 (rows, classes), probabilities.
    """

    images: tf.Tensor
    labels: tf.Tensor


class Mixing(Protocol):
    """Mixes row i of a batch with row i xor 1."""

    def mix(self, images: tf.Tensor, labels: tf.Tensor, keys: tf.Tensor, epoch: tf.Tensor, real: tf.Tensor) -> Mixed:
        """Returns the mixed rows.

        Args:
          images: (rows, height, width, channels), an even number of rows.
          labels: float32 (rows, classes).
          keys: as of `Recipe.distort`.
          epoch: int64 scalar, or (rows,).
          real: bool (rows,): the rows that may be mixed, if their partners are real, too.
        """


@dataclasses.dataclass(frozen=True)
class Undistorted(Recipe):
    """No distortion: uint8 of the images' shape, in training and evaluation."""

    compiled: ClassVar[bool] = False

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        del keys, statistics
        return images

    evaluate = distort


@dataclasses.dataclass(frozen=True)
class UserDistorted(Recipe):
    """Calls `function(images, keys)` in training and in evaluation; not compiled, as it may use any op."""

    compiled: ClassVar[bool] = False

    function: Callable[[tf.Tensor, tf.Tensor], Any]

    def distort(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """Returns what the user's function gives.

        Raises:
          UsageError: the function fails, or returns anything but a tensor of numbers with as many rows.
        """
        del statistics
        given, rows = user_function.call("distort", self.function, images, keys), images.shape[0]
        if not isinstance(given, tf.Tensor) or given.dtype in _NOT_NUMBERS or given.shape[:1] != [rows]:
            got = tf.nest.map_structure(
                lambda leaf: f"{leaf.dtype.name} {leaf.shape}" if tf.is_tensor(leaf) else leaf, given
            )
            raise UsageError(
                f"distort: the function must return a tensor of numbers with {rows} rows, as many as it gets; it "
                f"returned {got}"
            )
        return given

    evaluate = distort


class Crop(Protocol):
    """The part of an image that is decoded, and the size that it is resized to."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the result."""

    def box(self, height: tf.Tensor, width: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns int32 (4,) or (rows, 4): top, left, height and width of the part of images of this size, in pixels.

        Args:
          height, width: int32 scalars, or (rows,).
          key: uint64 of the same shape, for `pipeline.uniform(key, draw)`.
        """


def check_argument(recipe: str, argument: str, value: float, least: float, most: float) -> None:
    """Raises UsageError if an argument of a recipe is not within its bounds."""
    if not least <= value <= most:
        raise UsageError(f"distort: {recipe}({argument}={value}): must be in {least}..{most}")


def output_spec(recipe: Recipe, image_shape: tuple[int, int, int]) -> tf.TensorSpec:
    """Returns the shape (rows, height, width, channels) and dtype that a recipe gives; rows is 1, nothing is computed.

    Raises:
      UsageError: the recipe cannot take such images.
    """
    recipe.check(image_shape)
    channels = (0.0,) * image_shape[2]
    evaluate = lambda images, keys: recipe.evaluate(images, keys, ImageStatistics(channels, channels))  # noqa: E731
    traced = tf.function(evaluate, autograph=False)
    arguments = tf.TensorSpec((1, *image_shape), tf.uint8), tf.TensorSpec((1,), tf.uint64)
    output = traced.get_concrete_function(*arguments).structured_outputs
    return tf.TensorSpec(output.shape, output.dtype)


def check_bounds(name: str, value: float, least: float, most: float) -> None:
    """Raises UsageError if an argument is not within its bounds."""
    if not least <= value <= most:
        raise UsageError(f"distort: {name}={value}: must be in {least}..{most}")


def check_fits(
    recipe: str, argument: str, value: int, least: int, most: int, image_shape: tuple[int, int, int]
) -> None:
    """Raises UsageError if an argument of a recipe is not within the bounds that the images set."""
    if not least <= value <= most:
        height, width, _ = image_shape
        raise UsageError(
            f"distort: {recipe}({argument}={value}): must be in {least}..{most} for images of {height}x{width}"
        )
