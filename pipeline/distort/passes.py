"""Passes over pixels, which compiled code does on the host: one after another, while an image is in the cache.

A recipe that can say what it does as passes has two forms, one of passes and one that XLA compiles. Both give the same
bytes. The second is for devices, for datasets that other processes run, and for machines without a compiler.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pipeline import operations
from pipeline.distort import kernels

Parameters: TypeAlias = Callable[[tf.Tensor], list[tf.Tensor]]


class Kind(enum.IntEnum):
    """What a pass does, as `_pixels.c` numbers it."""

    CROP, FLIP, MOVE, RECOLOUR, RESIZE, COVER, NOISE, AUGMENT, NORMALISE = range(9)


def _without(keys: tf.Tensor) -> list[tf.Tensor]:
    del keys
    return []


@dataclasses.dataclass(frozen=True)
class Pass:
    """A pass over an image's pixels.

    Attributes:
      kind: what it does.
      numbers: the same for all images; int32 (n,).
      parameters: returns those of each image, given its key: int32 (rows,) or (rows, n), in the order of columns.
      size: height and width of the result; None: those of the image.
    """

    kind: Kind
    numbers: Sequence[int] | NDArray[np.int32] = ()
    parameters: Parameters = _without
    size: tuple[int, int] | None = None

    def of(self, keys: Callable[[tf.Tensor], tf.Tensor]) -> Pass:
        """Returns the pass whose parameters are those of `keys(key)`."""
        parameters = self.parameters
        return dataclasses.replace(self, parameters=lambda given: parameters(keys(given)))


def crop(padding: int, size: tuple[int, int], corners: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]) -> Pass:
    """Takes a crop of the padded image; `corners` returns its top and left."""
    return Pass(Kind.CROP, (padding, *size), lambda keys: list(corners(keys)), size)


def flip(flipped: Callable[[tf.Tensor], tf.Tensor]) -> Pass:
    """Mirrors an image, left to right, where `flipped`."""
    return Pass(Kind.FLIP, (), lambda keys: [tf.cast(flipped(keys), tf.int32)])


def normalise(mean: Sequence[float], divisor: Sequence[float]) -> Pass:
    """Does as `kernels.normalise`."""
    numbers = np.concatenate([np.array(mean, np.float32), kernels.inverse(divisor)]).view(np.int32)
    return Pass(Kind.NORMALISE, numbers)


def resize(before: tuple[int, int], after: tuple[int, int]) -> Pass:
    """Does as `kernels.resize`."""
    weights = [kernels.contiguous_weights(*sizes) for sizes in zip(before, after, strict=True)]
    taps = [table.shape[1] - 1 for table in weights]
    return Pass(Kind.RESIZE, np.concatenate([after, taps, *(table.ravel() for table in weights)]), size=after)


def halves(values: tf.Tensor) -> tf.Tensor:
    """Returns numbers of 64 bits as two of 32, the lower first: int32 (..., 2)."""
    return tf.bitcast(values, tf.int32)


def apply(images: tf.Tensor, keys: tf.Tensor, passes: Sequence[Pass]) -> tf.Tensor:
    """Returns images after some passes.

    Args:
      images: uint8 (rows, height, width, channels), static shape.
      keys: uint64 (rows,), one per image.
      passes: one after another; without any, the images are copied.
    """
    rows, *size, channels = images.shape
    program = [number for each in passes for number in (each.kind, len(each.numbers), *each.numbers)]
    size = functools.reduce(lambda given, each: each.size or given, passes, size)

    def parameters(keys: tf.Tensor) -> tf.Tensor:
        columns = [tf.reshape(column, (rows, -1)) for each in passes for column in each.parameters(keys)]
        return tf.concat([tf.zeros((rows, 0), tf.int32), *columns], axis=1)

    floats = any(each.kind == Kind.NORMALISE for each in passes)
    distorted = operations.distort(images, tf.constant(program, tf.int32), kernels.separate(parameters)(keys), floats)
    return tf.ensure_shape(distorted, (rows, *size, channels))
