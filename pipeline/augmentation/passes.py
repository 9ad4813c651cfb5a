"""Passes over pixels: compiled code that the host applies one after another while an image is in the CPU's cache.

Most recipes have two forms with the same bytes as result: a list of passes, and TensorFlow operations that XLA
compiles. The second is for devices, for datasets that another process runs, and for machines without a compiler.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline import operations
from pipeline.augmentation import kernels
from pipeline.lazily import tf

Parameters: TypeAlias = "Callable[[tf.Tensor], list[tf.Tensor]]"

_NAME = 16  # bytes of a pass's name in a program


@dataclasses.dataclass(frozen=True)
class Pass:
    """A pass over an image's pixels.

    Attributes:
      kind: name of its function in the table of `_pixels.c`.
      numbers: constants, the same for all images; int32 (n,).
      parameters: function that computes the parameters per image from the images' keys, uint64 (rows,): a list of int32
        (rows,) or (rows, n), whose columns `_pixels.c` reads in this order.
      size: height and width of the result; None to keep the image's size.
      gives_floats: whether the result is float32.
    """

    kind: str
    numbers: Sequence[int] | NDArray[np.int32] = ()
    parameters: Parameters = lambda keys: []
    size: tuple[int, int] | None = None
    gives_floats: bool = False

    def of(self, keys: Callable[[tf.Tensor], tf.Tensor]) -> Pass:
        """Returns the pass with its parameters computed from `keys(given keys)`."""
        parameters = self.parameters
        return dataclasses.replace(self, parameters=lambda given: parameters(keys(given)))

    def coded(self) -> list[int]:
        """Encodes the pass for a program: its name as int32 numbers, the number of its constants, and the constants."""
        name = np.frombuffer(self.kind.encode().ljust(_NAME, b"\0"), np.int32)
        return [*name, len(self.numbers), *self.numbers]


def crop(padding: int, size: tuple[int, int], corners: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]) -> Pass:
    """Crops an image that is padded with zeros; `corners` returns the top and left in the padded image."""
    return Pass("crop", (padding, *size), lambda keys: list(corners(keys)), size)


def flip(flipped: Callable[[tf.Tensor], tf.Tensor]) -> Pass:
    """Mirrors an image from left to right if `flipped` is true for it."""
    return Pass("flip", (), lambda keys: [tf.cast(flipped(keys), tf.int32)])


def normalise(mean: Sequence[float], divisor: Sequence[float]) -> Pass:
    """The pass of `kernels.normalise`."""
    numbers = np.concatenate([np.array(mean, np.float32), kernels.inverse(divisor)]).view(np.int32)
    return Pass("normalise", numbers, gives_floats=True)


def resize(before: tuple[int, int], after: tuple[int, int]) -> Pass:
    """The pass of `kernels.resize`."""
    weights = [kernels.contiguous_weights(*sizes) for sizes in zip(before, after, strict=True)]
    taps = [table.shape[1] - 1 for table in weights]
    return Pass("resize", np.concatenate([after, taps, *(table.ravel() for table in weights)]), size=after)


def halves(values: tf.Tensor) -> tf.Tensor:
    """Splits 64-bit numbers into their lower and upper 32 bits: int32 (..., 2)."""
    return tf.bitcast(values, tf.int32)


def apply(images: tf.Tensor, keys: tf.Tensor, passes: Sequence[Pass]) -> tf.Tensor:
    """Applies passes to images.

    Args:
      images: uint8 (rows, height, width, channels), static shape.
      keys: uint64 (rows,), one per image.
      passes: passes in the order in which to apply them; an empty list copies the images.

    Returns:
      uint8 or, after a pass that normalises, float32 (rows, height, width, channels).
    """
    rows, *size, channels = images.shape
    program = [number for each in passes for number in each.coded()]
    size = functools.reduce(lambda given, each: each.size or given, passes, size)

    def parameters(keys: tf.Tensor) -> tf.Tensor:
        columns = [tf.reshape(column, (rows, -1)) for each in passes for column in each.parameters(keys)]
        return tf.concat([tf.zeros((rows, 0), tf.int32), *columns], axis=1)

    floats = any(each.gives_floats for each in passes)
    augmented = operations.augment(images, tf.constant(program, tf.int32), kernels.separate(parameters)(keys), floats)
    return tf.ensure_shape(augmented, (rows, *size, channels))
