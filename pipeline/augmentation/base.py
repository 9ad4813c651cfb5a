"""The interface of recipes, and the two recipes without code of ours: no augmentation, and the user's own function."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from pipeline.augmentation import RECIPES
from pipeline.augmentation.moves import Move
from pipeline.augmentation.passes import Pass
from pipeline.errors import UsageError
from pipeline.lazily import tf

if TYPE_CHECKING:
    from pipeline.graph_calls import UserFunction


@dataclasses.dataclass(frozen=True)
class ImageStatistics:
    """Mean and standard deviation of the training images' pixels, 0..255, per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def divisor(self) -> tuple[float, ...]:
        """Divisor for normalised pixels; never 0, although a constant channel has a standard deviation of 0."""
        return tuple(max(each, 1e-3) for each in self.std)


def argument(default: float, least: float, most: float | str) -> Any:
    """Declares an argument of a recipe.

    Args:
      default: value if it is not given.
      least: smallest value.
      most: largest value, or the name of the argument that sets it.
    """
    return dataclasses.field(default=default, metadata={"bounds": (least, most)})


class Recipe:
    """Augmentation of a batch, and its counterpart for evaluation, with static shapes.

    Each row gets the same bits in a batch of any size. XLA may sum floats in a different order in a different batch, so
    only whole numbers are summed.

    Attributes:
      compiled: whether `augment` and `evaluate` are each compiled as one XLA function.
      hands_on: whether the result may be the given images, in the same memory.
      takes_floats: whether it also accepts floats that an earlier recipe has normalised, not only uint8.
      sets_size: whether it decides the height and width of the result.
      decodes_part: whether it chooses the part of each PNG or JPEG to decode; a `CroppingRecipe`.
      mixes_rows: whether it mixes the rows of a batch, and their labels; a `MixingRecipe`.
      draws_nothing: whether its result does not depend on the keys.
      stays: whether each pixel stays in its place, as in a change of colours.
    """

    compiled: ClassVar[bool] = True
    hands_on: ClassVar[bool] = False
    takes_floats: ClassVar[bool] = False
    sets_size: ClassVar[bool] = False
    decodes_part: ClassVar[bool] = False
    mixes_rows: ClassVar[bool] = False
    draws_nothing: ClassVar[bool] = False
    stays: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Raises UsageError if an argument is not within its bounds."""
        each = {one.name: one.metadata.get("bounds") for one in dataclasses.fields(self)}  # type: ignore[arg-type]
        bounded = ((name, *bounds) for name, bounds in each.items() if bounds)
        for name, least, most in sorted(bounded, key=lambda one: isinstance(one[2], str)):
            self.check_bounds(name, least, getattr(self, most) if isinstance(most, str) else most)

    def check_bounds(
        self, argument: str, least: float, most: float, image_shape: tuple[int, int, int] | None = None
    ) -> None:
        """Raises UsageError if an argument is not within its bounds.

        Args:
          argument: its name.
          least, most: its bounds.
          image_shape: (height, width, channels) of the images, if the bounds depend on it.
        """
        value = getattr(self, argument)
        if not least <= value <= most:
            images = f" for images of {image_shape[0]}x{image_shape[1]}" if image_shape else ""
            raise UsageError(f"augment: {self.name}({argument}={value}): must be in {least}..{most}{images}")

    @property
    def name(self) -> str:
        """Name of the recipe in texts."""
        return next(name for name, kind in RECIPES.items() if kind is type(self))

    @property
    def mixing(self) -> Mixing | None:
        """Mixing of the augmented batch's rows and their labels; None if they are not mixed."""
        return None

    @property
    def normalizes(self) -> bool:
        """Whether the result depends on the training images' statistics, in evaluation as well."""
        return False

    def gives_floats(self, floats: bool) -> bool:
        """Returns whether the result is float32, not uint8; `floats` is true if the images are."""
        return floats

    def in_two(self) -> tuple[Recipe, Recipe]:
        """Splits a recipe that turns pixels into floats: returns a part that keeps them uint8, and the rest.

        Applied to the first part's result with the same keys, the rest gives the result of the whole recipe.
        """
        return Unaugmented(), self

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Raises UsageError if images of this (height, width, channels) cannot be augmented; by default all can."""

    def passes(
        self, image_shape: tuple[int, int, int], statistics: ImageStatistics, training: bool
    ) -> list[Pass] | None:
        """Returns the passes that compute `augment` (in training) or `evaluate`; None if only XLA can.

        Args:
          image_shape: (height, width, channels) of the images.
          statistics: mean and deviation of the training images.
          training: whether to augment.
        """
        return None

    def moves(self, size: tuple[int, int], training: bool) -> list[Move] | None:
        """Returns the moves of `augment` (in training) or `evaluate`, which make masks and boxes follow the image.

        None if they cannot follow it. `Crop` describes a crop made during decoding.

        Args:
          size: (height, width) of the images.
          training: whether to augment.
        """
        return [] if self.stays else None

    def augment(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """Returns the augmented batch.

        Args:
          images: uint8 (rows, height, width, channels).
          keys: uint64 (rows,), one per example, for `pipeline.uniform(keys, draw)`.
          statistics: mean and deviation of the training images.
        """
        raise NotImplementedError

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """Returns the batch without randomness, in the shape and range of `augment`'s result."""
        raise NotImplementedError


class Augmentation(Recipe):
    """An augmentation that keeps shape and dtype; in evaluation the images stay as they are."""

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        return images


class Shares(NamedTuple):
    """Share of its partner that each row gets; the partner of row i is row i xor 1.

    Attributes:
      blended: the partner's fraction of each pixel, float64 (rows,); None for 0.
      box: top, left, height and width, in pixels, of the rectangle taken from the partner, which may reach beyond the
        image; int32 (rows,) each. None without a rectangle.
      of_label: the partner's fraction of the label, float64 (rows,).
    """

    blended: tf.Tensor | None
    box: tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor] | None
    of_label: tf.Tensor


class Mixing(Protocol):
    """Draws how row i of a batch is mixed with row i xor 1."""

    def shares(self, size: tuple[int, int], keys: tf.Tensor, epoch: tf.Tensor, real: tf.Tensor) -> Shares:
        """Returns the shares of an even number of rows.

        Args:
          size: (height, width) of the images.
          keys: one key per row, uint64 (rows,).
          epoch: int64 scalar, or (rows,).
          real: mask of the rows that may be mixed if their partners are real, too; bool (rows,).
        """


@RECIPES.named("none")
@dataclasses.dataclass(frozen=True)
class Unaugmented(Recipe):
    """No augmentation: uint8 images of the same shape, in training and evaluation."""

    compiled: ClassVar[bool] = False
    draws_nothing: ClassVar[bool] = True
    hands_on: ClassVar[bool] = True
    stays: ClassVar[bool] = True

    def augment(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        return images

    evaluate = augment


@dataclasses.dataclass(frozen=True)
class UserAugmented(Recipe):
    """Calls the user's function of images, in training and evaluation; not compiled, because it may use any op."""

    compiled: ClassVar[bool] = False
    hands_on: ClassVar[bool] = True

    function: UserFunction

    def augment(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        """Returns the result of the user's function.

        Raises:
          UsageError: the function fails, or does not return a tensor of numbers with the same number of rows.
        """
        return self._called(images, keys, training=True)

    def evaluate(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        return self._called(images, keys, training=False)

    def keeps_values(self, image_shape: tuple[int, int, int]) -> bool:
        """Returns whether an evaluation gets images of a shape unchanged, except perhaps for a cast to another type."""

        def evaluated(images: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
            asked = [keys] if self.function.takes_keys else []
            given: tf.Tensor = self.function.unchecked(images, *asked, training=False)
            return given

        arguments = tf.TensorSpec((1, *image_shape), tf.uint8), tf.TensorSpec((1,), tf.uint64)
        graph = tf.function(evaluated, autograph=False).get_concrete_function(*arguments).graph
        [found] = graph.outputs
        is_wide = found.dtype.is_floating or found.dtype == tf.uint8
        while found.op.type in ("Identity", "Cast"):
            found = found.op.inputs[0]
        return is_wide and found is graph.inputs[0]

    def _called(self, images: tf.Tensor, keys: tf.Tensor, training: bool) -> tf.Tensor:
        given, rows = self.function(images, lambda: keys, training), images.shape[0]
        if (
            not isinstance(given, tf.Tensor)
            or given.dtype in (tf.string, tf.variant, tf.resource)
            or given.shape[:1] != [rows]
        ):
            got = tf.nest.map_structure(
                lambda leaf: f"{leaf.dtype.name} {leaf.shape}" if tf.is_tensor(leaf) else leaf, given
            )
            raise UsageError(
                f"{self.function.name}: the function must return a tensor of numbers with {rows} rows, as many as it "
                f"gets; it returned {got}"
            )
        return given


class Crop(Protocol):
    """The part of an image to decode, and the size to which it is resized."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the result."""

    @property
    def is_scaled(self) -> bool:
        """Whether a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size if the result is no larger than that."""

    def box(self, height: tf.Tensor, width: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns top, left, height and width of the part in pixels: int32 (4,) or (rows, 4).

        Args:
          height, width: size of the images, int32 scalars, or (rows,).
          key: uint64 of the same shape, for `pipeline.uniform(key, draw)`.
        """


def output_spec(recipe: Recipe, image_shape: tuple[int, int, int], training: bool = False) -> tf.TensorSpec:
    """Returns the shape, (1, height, width, channels), and dtype of a recipe's result for an image; computes nothing.

    `training` matters only to a user's function.

    Raises:
      UsageError: the recipe cannot augment such images.
    """
    recipe.check(image_shape)
    channels = (0.0,) * image_shape[2]
    function = recipe.augment if training else recipe.evaluate
    statistics = ImageStatistics(channels, channels)
    traced = tf.function(lambda images, keys: function(images, keys, statistics), autograph=False)
    arguments = tf.TensorSpec((1, *image_shape), tf.uint8), tf.TensorSpec((1,), tf.uint64)
    output = traced.get_concrete_function(*arguments).structured_outputs
    return tf.TensorSpec(output.shape, output.dtype)
