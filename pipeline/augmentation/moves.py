"""Moves: where the pixels of a recipe's result come from, so that masks, boxes and points can follow the image.

A recipe that moves pixels is a list of moves. Each move has one affine map per row from its result back to its input,
drawn from the row's key by the same functions as the image's own passes. Masks take the nearest pixel, move by move, so
that pixels that have left the picture do not come back. Boxes and points go through the inverse of each map.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Sequence

from pipeline.augmentation import kernels, passes
from pipeline.augmentation.passes import Pass
from pipeline.lazily import tf

_SIDE = re.compile("(?<![A-Za-z])(left|Left|LEFT|right|Right|RIGHT)(?![a-z])")  # in names of points
_OTHER = {"left": "right", "Left": "Right", "LEFT": "RIGHT"}
_OTHER |= {other: side for side, other in _OTHER.items()}
_BITS = 24  # bits of the fraction to which maps are rounded, so that coordinates have the same bits in any batch


@dataclasses.dataclass(frozen=True)
class Move:
    """Where the pixels of a result come from.

    Attributes:
      size: (height, width) of the result, pixels.
      maps: function that computes each row's map from its key, uint64 (rows,): from (x, y, 1) of a pixel of the result
        to (x, y) in the input image, float64 (rows, 2, 3). A pixel's index is the coordinate of its middle.
      exact: pass with the same result, if each pixel is a pixel of the image, or 0 from outside it; None without one.
    """

    size: tuple[int, int]
    maps: Callable[[tf.Tensor], tf.Tensor]
    exact: Pass | None = None

    def of(self, keys: Callable[[tf.Tensor], tf.Tensor]) -> Move:
        """Returns the move with its maps computed from `keys(given keys)`."""
        maps = self.maps
        exact = self.exact and self.exact.of(keys)
        return dataclasses.replace(self, maps=lambda given: maps(keys(given)), exact=exact)


def crop(padding: int, size: tuple[int, int], corners: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]) -> Move:
    """Returns the move of a crop of padded images; `corners` returns the crop's top and left in the padded image."""

    def maps(keys: tf.Tensor) -> tf.Tensor:
        top, left = corners(keys)
        return aligned(1.0, left - padding, 1.0, top - padding)

    return Move(size, maps, passes.crop(padding, size, corners))


def flip(size: tuple[int, int], flipped: Callable[[tf.Tensor], tf.Tensor]) -> Move:
    """Returns the move that mirrors images of a size from left to right where `flipped`, bool (rows,)."""

    def maps(keys: tf.Tensor) -> tf.Tensor:
        mirrored = flipped(keys)
        return aligned(tf.where(mirrored, -1.0, 1.0), tf.where(mirrored, size[1] - 1.0, 0.0), 1.0, 0.0)

    return Move(size, maps, passes.flip(flipped))


def stretch(before: tuple[int, int], after: tuple[int, int]) -> Move:
    """Returns the move that stretches images from one size to another."""

    def maps(keys: tf.Tensor) -> tf.Tensor:
        whole = [tf.fill(tf.shape(keys), side) for side in before]
        return part(tf.stack([tf.zeros_like(whole[0]), tf.zeros_like(whole[0]), *whole], axis=-1), after)

    return Move(after, maps)


def part(boxes: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """Returns the maps that stretch parts to a size: float64 (rows, 2, 3).

    Args:
      boxes: top, left, height and width of each part, pixels, int32 (rows, 4).
      size: (height, width) of the results.
    """
    top, left, tall, wide = tf.unstack(tf.cast(boxes, tf.float64), axis=-1)
    down, across = tall / size[0], wide / size[1]
    # The middles of pixels, not their corners, have whole numbers.
    return aligned(across, left + 0.5 * across - 0.5, down, top + 0.5 * down - 0.5)


def aligned(
    across: tf.Tensor | float, left: tf.Tensor | float, down: tf.Tensor | float, top: tf.Tensor | float
) -> tf.Tensor:
    """Returns maps without rotation: (x, y) to (across * x + left, down * y + top), given numbers or (rows,) each."""
    each = [tf.cast(value, tf.float64) for value in (across, left, down, top)]
    rows = next(value for value in each if value.shape.rank)
    across, left, down, top = (tf.zeros_like(rows) + value for value in each)
    nothing = tf.zeros_like(rows)
    return tf.stack([tf.stack([across, nothing, left], axis=-1), tf.stack([nothing, down, top], axis=-1)], axis=1)


def masks_moved(
    masks: tf.Tensor, keys: tf.Tensor, moves: Sequence[Move], fill: int, by_passes: bool = False
) -> tf.Tensor:
    """Returns masks after some moves, each pixel taken from the nearest one: uint8 (rows, height, width, 1).

    Args:
      masks: uint8 (rows, height, width, 1), static shape.
      keys: one key per row, uint64 (rows,).
      moves: moves in order.
      fill: class of the pixels that come from outside the image.
      by_passes: whether moves that have a compiled pass use it.
    """
    for is_exact, group in itertools.groupby(moves, key=lambda move: by_passes and move.exact is not None):
        masks = (_by_passes if is_exact else _by_maps)(masks, keys, list(group), fill)
    return masks


def _by_passes(masks: tf.Tensor, keys: tf.Tensor, moves: Sequence[Move], fill: int) -> tf.Tensor:
    def swapped(masks: tf.Tensor) -> tf.Tensor:  # swaps 0, with which passes fill, and `fill`
        return tf.bitwise.bitwise_xor(masks, tf.constant(fill, tf.uint8)) if fill else masks

    return swapped(passes.apply(swapped(masks), keys, [move.exact for move in moves if move.exact]))


def _by_maps(masks: tf.Tensor, keys: tf.Tensor, moves: Sequence[Move], fill: int) -> tf.Tensor:
    def moved(masks: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        for move in moves:
            masks = kernels.nearest(masks, kernels.places(move.maps(keys), move.size), move.size, fill)
        return masks

    return kernels.separate(moved)(masks, keys)


def maps_of(keys: tf.Tensor, moves: Sequence[Move]) -> list[tf.Tensor]:
    """Returns the maps of moves, rounded: float64 (rows, 2, 3) each."""

    def rounded(keys: tf.Tensor) -> list[tf.Tensor]:
        return [rounded_maps(move.maps(keys)) for move in moves]

    found: list[tf.Tensor] = kernels.separate(rounded)(keys) if moves else []
    return found


def rounded_maps(maps: tf.Tensor) -> tf.Tensor:
    """Returns maps rounded to a fraction of 24 bits, so that products with float32 numbers are exact in float64."""
    return tf.round(maps * float(1 << _BITS)) / float(1 << _BITS)


def opposites(names: Sequence[str]) -> list[int]:
    """Returns, for each named point, the index of its mirror image: for `left_eye` the index of `right_eye`.

    Points without a side in their name, or without a counterpart, map to themselves.
    """
    numbers = {name: number for number, name in enumerate(names)}
    others = (_SIDE.sub(lambda side: _OTHER[side[0]], name) for name in names)
    return [numbers.get(other, number) for number, other in enumerate(others)]


def mirrored(keys: tf.Tensor, moves: Sequence[Move]) -> tf.Tensor:
    """Returns in which rows some moves exchange left and right, bool (rows,)."""
    maps = tf.stack(maps_of(keys, moves))
    return tf.reduce_prod(tf.sign(tf.linalg.det(maps[..., :2])), axis=0) < 0


def boxes_moved(
    boxes: tf.Tensor, visible: tf.Tensor, maps: tf.Tensor, size: tuple[int, int]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the smallest upright boxes around the moved boxes, clipped to the picture, and which are visible.

    Args:
      boxes: ymin, xmin, ymax and xmax in pixels from the image's upper left corner, float64 (rows, n, 4).
      visible: mask of the boxes that have had an area in the picture so far, bool (rows, n).
      maps: maps of the move, float64 (rows, 2, 3).
      size: (height, width) of the result.
    """
    ymin, xmin, ymax, xmax = tf.unstack(boxes, axis=-1)
    corners = tf.stack([ymin, xmin, ymin, xmax, ymax, xmin, ymax, xmax], axis=-1)
    rows, count = tf.unstack(tf.shape(visible))
    moved = _moved(tf.reshape(corners, [rows, count * 4, 2]), maps)
    moved = tf.reshape(moved, [rows, count, 4, 2])
    most = tf.constant(size, tf.float64)
    low, high = (
        tf.clip_by_value(reduce(moved, axis=2), tf.zeros_like(most), most) for reduce in (tf.reduce_min, tf.reduce_max)
    )
    return tf.concat([low, high], axis=-1), visible & tf.reduce_all(high > low, axis=-1)


def points_moved(
    points: tf.Tensor, visible: tf.Tensor, maps: tf.Tensor, size: tuple[int, int]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns points (y, x) after a move, float64 (rows, n, 2), and which are still visible, as for boxes."""
    moved = _moved(points, maps)
    return moved, visible & tf.reduce_all((moved >= 0) & (moved <= tf.constant(size, tf.float64)), axis=-1)


def _moved(points: tf.Tensor, maps: tf.Tensor) -> tf.Tensor:
    """Returns where points (rows, n, 2) of the input image lie in the result."""
    (a, b, c), (d, e, f) = (tf.unstack(line[:, None], axis=-1) for line in tf.unstack(maps, axis=1))
    y, x = tf.unstack(points - 0.5, axis=-1)  # coordinates of pixels' middles
    y, x, size = y - f, x - c, a * e - b * d
    return tf.stack([(a * y - d * x) / size, (e * x - b * y) / size], axis=-1) + 0.5
