"""RandAugment: some of fourteen operations, all with the same magnitude.

Source: Cubuk et al., RandAugment: Practical automated data augmentation with a reduced search space (2020). The
operations and their ranges are the same as in torchvision.transforms.RandAugment with its 31 magnitudes. Operations
that move an image are bilinear here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.augmentation import RECIPES, kernels
from pipeline.augmentation.base import Augmentation, ImageStatistics, argument
from pipeline.augmentation.moves import Move
from pipeline.augmentation.passes import Pass
from pipeline.augmentation.pixels import GREY, check_channels, mean_grey
from pipeline.lazily import tf, xla
from pipeline.order import graph_hashing

Operation: TypeAlias = "Callable[..., tf.Tensor]"

_LEAST_BLOCK = 16  # fewest images to compute together; fewer cost as much
_BLOCKS = 16  # blocks per batch
OPERATIONS = (
    "identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "color", "contrast",
    "sharpness", "posterize", "solarize", "auto_contrast", "equalize",
)  # fmt: skip
MOST = 30  # greatest magnitude
_MOST_SHEAR, _MOST_SHIFT, _MOST_DEGREES, _MOST_FACTOR = 0.3, 150 / 331, 30.0, 0.9
_MOST_BITS = 4  # most bits that posterize drops
_SMOOTHED_WEIGHTS = 13.0  # sum of a smoothed pixel's weights: 5 for itself, 1 for each neighbour
_MOVING = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
_COSTLY = (_MOVING, ("sharpness",), ("equalize",))  # groups computed only for the images that drew them
_GROUP = [next((g for g, names in enumerate(_COSTLY) if name in names), len(_COSTLY)) for name in OPERATIONS]


def by_group(images: tf.Tensor, group: tf.Tensor, functions: Sequence[Operation], *arguments: tf.Tensor) -> tf.Tensor:
    """Applies `functions[g](images, *arguments)` to the rows of group g; other rows stay unchanged.

    The rows are sorted by group, unchanged rows first. Each function then computes little more than the rows of its
    group, a block at a time, which costs hardly more per row than a whole batch. Works only when compiled by XLA.

    Args:
      images: (rows, height, width, channels).
      group: int32 (rows,), 0 and up.
      functions: functions from some rows of the images and the arguments to images of the same shape and dtype.
      *arguments: tensors with as many rows as the images.
    """
    rows = images.shape[0]
    block = min(rows, max(_LEAST_BLOCK, rows // _BLOCKS))
    group = tf.where(group < len(functions), group, -1)
    order = tf.argsort(group, stable=True)
    taken = tf.concat([order, tf.zeros(block, tf.int32)], axis=0)  # the last block may extend beyond the last row
    given = [tf.gather(each, taken) for each in (images, *arguments)]
    done = given[0]
    for number, function in enumerate(functions):
        first, stop = (tf.reduce_sum(tf.cast(group < end, tf.int32)) for end in (number, number + 1))
        done = _in_blocks(function, given, done, first, stop, block)
    return tf.gather(done, tf.argsort(order))


def _in_blocks(
    function: Operation, given: Sequence[tf.Tensor], done: tf.Tensor, first: tf.Tensor, stop: tf.Tensor, block: int
) -> tf.Tensor:
    """Returns `done` with the results of a function for the given rows from `first` to `stop`.

    It also overwrites up to a block of later rows; they belong to the next groups, which are computed later.
    """

    def one(first: tf.Tensor, done: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        def held(values: tf.Tensor) -> tf.Tensor:  # like `kernels.computed`: XLA cannot know that this is always true
            return tf.cond(first < stop, lambda: values, lambda: tf.zeros_like(values))

        some = [held(tf.slice(each, [first] + [0] * (each.shape.rank - 1), [block, *each.shape[1:]])) for each in given]
        made = held(function(*some))  # else XLA would fuse it into the update, and not vectorize it
        return first + block, xla.dynamic_update_slice(done, made, [first, 0, 0, 0])

    return tf.while_loop(lambda first, _: first < stop, one, (first, done))[1]


@RECIPES.named("randaugment")
@dataclasses.dataclass(frozen=True)
class RandAugment(Augmentation):
    """Applies `n` operations to each image, each drawn from the fourteen; uint8.

    Draw 2i is operation i, draw 2i + 1 its direction.

    Attributes:
      n: number of operations, one after another.
      m: magnitude of all of them, 0 to 30.
      fill: value of the pixels that come from outside the image.
    """

    n: int = argument(2, 1, 14)
    m: int = argument(9, 0, MOST)
    fill: int = argument(0, 0, 255)

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Raises UsageError if images are neither grey nor RGB."""
        check_channels("randaugment", image_shape)

    def passes(self, image_shape: tuple[int, int, int], statistics: ImageStatistics, training: bool) -> list[Pass]:
        numbers = self._numbers(image_shape[:2])

        def of_operation(number: int) -> Pass:
            return Pass("augment", numbers, lambda keys: [_choice(*_drawn(number, keys))])

        return [of_operation(number) for number in range(self.n)] if training else []

    def moves(self, size: tuple[int, int], training: bool) -> list[Move]:
        maps = self._maps(size)

        def of_operation(number: int) -> Move:
            return Move(size, lambda keys: tf.gather(tf.constant(maps), _choice(*_drawn(number, keys))))

        return [of_operation(number) for number in range(self.n)] if training else []

    def _numbers(self, size: tuple[int, int]) -> NDArray[np.int32]:
        """Returns the pass's constants: for all operations, for each direction, and the tables of places."""
        share = float(1 << kernels.SHARE_BITS)
        parts: list[Any] = [self.fill, *self._mask_and_threshold()]
        for sign in (-1.0, 1.0):
            factor = self._factor(sign)
            to_grey = factor * np.eye(3) + (1.0 - factor) * np.tile(GREY, (3, 1))
            smoothed = np.rint((1.0 - factor) / _SMOOTHED_WEIGHTS * share)
            parts += [np.rint(factor * share), np.float64(1.0 - factor).view(np.int64).reshape(1).view(np.int32)]
            parts += [smoothed, np.rint(to_grey * share)]
        parts.append(self._places(size)[2 * OPERATIONS.index(_MOVING[0]) : 2 * OPERATIONS.index(_MOVING[-1]) + 2])
        return np.concatenate([np.ravel(part) for part in parts]).astype(np.int32)

    def _mask_and_threshold(self) -> tuple[int, int]:
        """Returns the bits that posterize keeps, and the least value that solarize inverts."""
        bits = round(_MOST_BITS * self.m / MOST)
        return 256 - (1 << bits), math.ceil(255 * (1 - self.m / MOST))

    def _places(self, size: tuple[int, int]) -> NDArray[np.int32]:
        """Returns the places that `kernels.transform` needs, a row per operation and direction.

        They do not depend on the image, so NumPy computes them once. Row 2 i is operation i in the direction -1.
        """
        return kernels.places_of(self._maps(size), size)

    def _maps(self, size: tuple[int, int]) -> NDArray[np.float64]:
        return np.array([_map(name, way * self.m / MOST, size) for name in OPERATIONS for way in (-1, 1)])

    def augment(self, images: tf.Tensor, keys: tf.Tensor, statistics: ImageStatistics) -> tf.Tensor:
        for number in range(self.n):
            images = self.apply(images, *_drawn(number, keys))
        return images

    def apply(self, images: tf.Tensor, operation: tf.Tensor, sign: tf.Tensor) -> tf.Tensor:
        """Applies one operation to each image; returns uint8 images.

        Args:
          images: uint8 (rows, height, width, 1 or 3).
          operation: index in OPERATIONS, int32 (rows,).
          sign: direction of the operation, 1 or -1, float64 (rows,).
        """
        applied: tf.Tensor = kernels.separate(self._applied)(images, operation, sign)
        return applied

    def _applied(self, images: tf.Tensor, operation: tf.Tensor, sign: tf.Tensor) -> tf.Tensor:
        recoloured = _recoloured(images, operation, self._factor(sign))
        images = kernels.computed(self._reduced(recoloured, operation))
        return by_group(
            images, tf.gather(_GROUP, operation), (self._moved, self._sharpened, _equalized), operation, sign
        )

    def _moved(self, images: tf.Tensor, operation: tf.Tensor, sign: tf.Tensor) -> tf.Tensor:
        places = self._places((images.shape[1], images.shape[2]))
        return kernels.transform(images, tf.gather(places, _choice(operation, sign)), self.fill)

    def _sharpened(self, images: tf.Tensor, operation: tf.Tensor, sign: tf.Tensor) -> tf.Tensor:
        return _sharpened(images, self._factor(sign))

    def _reduced(self, images: tf.Tensor, operation: tf.Tensor) -> tf.Tensor:
        """Returns images with fewer bits (posterize), or with bright values inverted (solarize)."""
        each = lambda name: _is(operation, name)[:, None, None, None]  # noqa: E731
        mask, threshold = self._mask_and_threshold()
        images = tf.where(each("posterize"), images & mask, images)
        return tf.where(each("solarize") & (images >= threshold), 255 - images, images)

    def _factor(self, sign: Any) -> Any:
        return 1.0 + sign * (_MOST_FACTOR * self.m / MOST)


def _choice(operation: tf.Tensor, sign: tf.Tensor) -> tf.Tensor:
    """Returns operation and direction as one number, int32 (rows,)."""
    return 2 * operation + tf.cast(sign > 0, tf.int32)


def _drawn(number: int, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the operation of each row, int32, and its direction, float64 1 or -1."""
    sign = tf.where(graph_hashing.uniform(keys, 2 * number + 1) < 0.5, -1.0, 1.0)
    return kernels.random_below(len(OPERATIONS), keys, 2 * number), tf.cast(sign, tf.float64)


def _is(operation: tf.Tensor, *names: str) -> tf.Tensor:
    """Returns whether each row's operation is among `names`: bool (rows,)."""
    return tf.reduce_any(operation[:, None] == [OPERATIONS.index(name) for name in names], axis=1)


def _map(operation: str, part: float, size: tuple[int, int]) -> NDArray[np.float64]:
    """Returns the map of an operation, (2, 3), for `kernels.transform`; the identity if it moves nothing.

    Shears keep the upper left pixel in place, rotations the middle. `part` is a fraction of the greatest magnitude,
    -1..1.
    """
    if operation == "rotate":
        angle, (y, x) = part * math.radians(_MOST_DEGREES), ((n - 1) / 2 for n in size)
        cos, sin = math.cos(angle), math.sin(angle)
        return np.array([[cos, -sin, x - cos * x + sin * y], [sin, cos, y - sin * x - cos * y]])
    moved = np.eye(2, 3)
    if operation.startswith("shear"):
        moved[(0, 1) if operation == "shear_x" else (1, 0)] = part * _MOST_SHEAR
    if operation.startswith("translate"):
        axis = 0 if operation == "translate_x" else 1
        moved[axis, 2] = -math.trunc(part * (_MOST_SHIFT * size[1 - axis]))
    return moved


def _recoloured(images: tf.Tensor, operation: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Returns images after brightness, color, contrast or auto_contrast; other images stay unchanged."""
    channels = images.shape[3]
    stretched = _is(operation, "auto_contrast")
    factor = tf.where(_is(operation, "brightness", "color", "contrast"), factor, 1.0)
    least, most = (tf.cast(kernels.over_pixels(images, end), tf.float64) for end in (tf.reduce_min, tf.reduce_max))
    stretch = tf.where(stretched[:, None] & (most > least), 255.0 / tf.maximum(most - least, 1.0), 1.0)
    least = tf.where(stretched[:, None] & (most > least), least, 0.0)
    offset = tf.where(_is(operation, "contrast"), (1.0 - factor) * mean_grey(images), 0.0)
    scale = tf.where(stretched[:, None], stretch, factor[:, None])
    matrix = scale[:, :, None] * np.eye(channels)
    if channels == 3:
        to_grey = (1.0 - factor)[:, None, None] * np.tile(GREY, (3, 1))
        matrix += tf.where(_is(operation, "color")[:, None, None], to_grey, 0.0)
    else:
        matrix = tf.where(_is(operation, "color")[:, None, None], np.eye(1), matrix)
    images -= kernels.computed(tf.cast(least, tf.uint8))[:, None, None, :]
    factors, offset = kernels.fixed(matrix, kernels.SHARE_BITS), kernels.fixed(offset, kernels.SHARE_BITS)
    return kernels.mix_channels(images, factors, tf.repeat(offset[:, None], channels, axis=1))


def _sharpened(images: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Returns images sharpened or smoothed; their borders stay unchanged, as in Pillow.

    A smoothed pixel is 5 times the pixel plus its eight neighbours, divided by 13.
    """
    pixels = tf.cast(images, tf.int32)
    _, height, width, _ = images.shape
    if min(height, width) < 3:
        return images
    around = sum(pixels[:, y : height - 2 + y, x : width - 2 + x] for y in range(3) for x in range(3))
    difference = around - 9 * pixels[:, 1:-1, 1:-1]  # 13 times smoothed - pixel
    difference = tf.pad(difference, [[0, 0], [1, 1], [1, 1], [0, 0]])
    part = kernels.fixed((1.0 - factor) / _SMOOTHED_WEIGHTS, kernels.SHARE_BITS)[:, None, None, None]
    return kernels.to_pixels(pixels * (1 << kernels.SHARE_BITS) + part * difference, kernels.SHARE_BITS)


def _equalized(images: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
    """Spreads the values of images evenly, channel by channel, as Pillow's ImageOps.equalize does."""
    counts = kernels.histograms(images)
    below = kernels.sums_below(counts)
    values = tf.range(256)
    highest = tf.reduce_max(tf.where(counts > 0, values, 0), axis=-1, keepdims=True)
    in_highest = tf.reduce_sum(tf.where(values == highest, counts, 0), axis=-1, keepdims=True)
    step = (images.shape[1] * images.shape[2] - in_highest) // 255
    spread = (step // 2 + below) // tf.maximum(step, 1)
    tables = tf.where(step > 0, tf.minimum(spread, 255), values)
    return kernels.look_up(images, kernels.computed(tf.cast(tables, tf.uint8)))
