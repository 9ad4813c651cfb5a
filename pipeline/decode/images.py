"""From image files to pixels: decodes them, whole or in part, rotates them upright and resizes them."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, cast

import tensorflow as tf

from pipeline import operations
from pipeline.augmentation.base import Crop
from pipeline.manifest.manifest import EXACT, FAST

_DCT_METHODS = {FAST: "", EXACT: "INTEGER_ACCURATE"}  # TensorFlow's names
_RATIOS = (2, 4, 8)  # ratios, besides 1, at which TensorFlow decodes a JPEG
_BLOCK = 16  # side in pixels of the blocks that JPEG decodes together; few files have larger ones
_PNG_SIZE = 16, 8  # offset of a PNG file's width and height, and bytes of both: int32, big-endian
_ON_ITS_SIDE = 5  # first EXIF orientation with rows stored as columns
# By EXIF orientation, from 0: 1 where an upright image has its rows, or its columns, in reverse order.
_ROWS_REVERSED, _COLUMNS_REVERSED = (0, 0, 0, 1, 1, 0, 0, 1, 1), (0, 0, 1, 1, 0, 0, 1, 1, 0)


def resize(image: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """Returns a resized image, uint8 (height, width, channels): bilinear, antialiased when shrinking.

    The result equals `tf.image.resize(..., antialias=True)`, rounded, except for some values half-way between two
    integers. That function takes twice as long, because its pass over the width steps by pixels of a few channels.
    Where `operations.resize` is available, it gives the same bytes in a sixth of the time.

    Args:
      image: uint8 (h, w, channels), each at least 1.
      size: (height, width) of the result, pixels.
    """
    height, width, channels = (tf.shape(image)[i] for i in range(3))
    rows = _along_first(tf.reshape(image, [1, height, 1, width * channels]), size[0])
    columns = tf.transpose(tf.reshape(rows, [size[0], width, channels]), [1, 0, 2])
    resized = _along_first(tf.reshape(columns, [1, width, 1, size[0] * channels]), size[1])
    # Floats are transposed faster than bytes. No clipping is needed: the weights are positive, and their sum is 1.
    resized = tf.transpose(tf.reshape(resized, [size[1], size[0], channels]), [1, 0, 2])
    return tf.cast(tf.round(resized), tf.uint8)


def _along_first(values: tf.Tensor, size: int) -> tf.Tensor:
    """Returns an image (1, n, 1, m) resized to float32 (1, size, 1, m); one pass is enough, as it is one pixel wide."""
    return tf.raw_ops.ScaleAndTranslate(
        images=values,
        size=[size, 1],
        scale=tf.stack([tf.cast(size / tf.shape(values)[1], tf.float32), 1.0]),
        translation=[0.0, 0.0],
        kernel_type="triangle",
        antialias=True,
    )


def upright(image: tf.Tensor, turn: tf.Tensor) -> tf.Tensor:
    """Returns an image rotated upright, the same as from `images.turned`: uint8 (height, width, channels).

    Args:
      image: image as stored, uint8 (h, w, channels).
      turn: EXIF orientation, int32 scalar.
    """

    def turned() -> tf.Tensor:
        placed = tf.cond(turn >= _ON_ITS_SIDE, lambda: tf.transpose(image, [1, 0, 2]), lambda: image)
        reversed_ = [tf.gather(axis, turn) > 0 for axis in (_ROWS_REVERSED, _COLUMNS_REVERSED)]
        # A slice with a step of -1 takes ten times as long.
        return tf.raw_ops.Reverse(tensor=placed, dims=tf.stack([*reversed_, False]))

    return tf.ensure_shape(tf.cond(turn > 1, turned, lambda: image), (None, None, image.shape[2]))


def upright_sizes(sizes: tf.Tensor, turns: tf.Tensor) -> tf.Tensor:
    """Returns the sizes of images once they are upright: int32 (..., 2); `turns` are EXIF orientations, (...)."""
    return tf.where((turns >= _ON_ITS_SIDE)[..., None], sizes[..., ::-1], sizes)


def stored_boxes(boxes: tf.Tensor, sizes: tf.Tensor, turns: tf.Tensor) -> tf.Tensor:
    """Returns where parts of upright images lie in the images as stored: int32 (..., 4).

    Args:
      boxes: top, left, height and width of each part, int32 (..., 4).
      sizes: heights and widths of the upright images, int32 (..., 2).
      turns: EXIF orientations, int32 (...).
    """
    top, left, height, width = tf.unstack(boxes, axis=-1)
    top = tf.where(tf.gather(_ROWS_REVERSED, turns) > 0, sizes[..., 0] - top - height, top)
    left = tf.where(tf.gather(_COLUMNS_REVERSED, turns) > 0, sizes[..., 1] - left - width, left)
    on_side = tf.stack([left, top, width, height], axis=-1)
    return tf.where((turns >= _ON_ITS_SIDE)[..., None], on_side, tf.stack([top, left, height, width], axis=-1))


class Encoded(Protocol):
    """Encoded images, to be decoded."""

    @property
    def rows(self) -> int | None:
        """Number of images, if it is static."""

    def sizes(self) -> tf.Tensor:
        """Returns the height and width of each image, if all are JPEG files: int32 (rows, 2)."""

    def mapped(self, function: Callable[..., tf.Tensor], rows: Sequence[tf.Tensor], spec: tf.TensorSpec) -> tf.Tensor:
        """Applies `function` to each image's bytes and its row of `rows`; returns the stacked results."""


@dataclasses.dataclass(frozen=True)
class InStrings(Encoded):
    """Encoded images in strings.

    Attributes:
      strings: string (rows,).
      bounds: first and last byte offset of the image in each string, int64 (rows, 2); None if each is a whole string.
    """

    strings: tf.Tensor
    bounds: tf.Tensor | None = None

    @property
    def rows(self) -> int | None:
        return cast("int | None", self.strings.shape[0])

    def sizes(self) -> tf.Tensor:
        if self.bounds is not None:
            return operations.jpeg_sizes(self.strings, self.bounds)
        shapes = tf.TensorSpec([3], tf.int32)
        return tf.map_fn(tf.io.extract_jpeg_shape, self.strings, fn_output_signature=shapes)[:, :2]

    def mapped(self, function: Callable[..., tf.Tensor], rows: Sequence[tf.Tensor], spec: tf.TensorSpec) -> tf.Tensor:
        strings, bounds = self.strings, self.bounds
        if bounds is None:
            return tf.map_fn(lambda values: function(*values), (strings, *rows), fn_output_signature=spec)

        def of_row(values: tuple[tf.Tensor, ...]) -> tf.Tensor:  # one copy; TensorFlow's loop would make more
            return function(operations.part(strings, bounds, values[0]), *values[1:])

        numbers = tf.range(tf.shape(strings, tf.int64)[0])
        return tf.map_fn(of_row, (tf.ensure_shape(numbers, strings.shape), *rows), fn_output_signature=spec)


@dataclasses.dataclass(frozen=True)
class InMemory(Encoded):
    """Encoded images in the memory into which they were read.

    Attributes:
      memory: uint8 (1, bytes).
      bounds: first and last byte offset of each image, int64 (rows, 2).
      known_sizes: heights and widths, int32 (rows, 2); zeros if the files are not JPEG.
    """

    memory: tf.Tensor
    bounds: tf.Tensor
    known_sizes: tf.Tensor

    @property
    def rows(self) -> int | None:
        return cast("int | None", self.bounds.shape[0])

    def sizes(self) -> tf.Tensor:
        return self.known_sizes

    def mapped(self, function: Callable[..., tf.Tensor], rows: Sequence[tf.Tensor], spec: tf.TensorSpec) -> tf.Tensor:
        def of_row(values: tuple[tf.Tensor, ...]) -> tf.Tensor:
            return function(operations.copy_records(self.memory, values[0]), *values[1:])

        return tf.map_fn(of_row, (self.bounds, *rows), fn_output_signature=spec)


@dataclasses.dataclass(frozen=True)
class Stretched:
    """A `Crop` of the whole image, resized to `size` whatever its shape, as `beam_jobs.convert --resize` does."""

    is_scaled: ClassVar[bool] = False

    size: tuple[int, int]

    def box(self, height: tf.Tensor, width: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        return tf.stack([tf.zeros_like(height), tf.zeros_like(width), height, width], axis=-1)


def decode_file(image: tf.Tensor, channels: int, encoding: str, dct: str) -> tf.Tensor:
    """Returns the pixels of an image file: uint8 (height, width, channels).

    Args:
      image: content of the file, string scalar.
      channels: 1 or 3.
      encoding: `png`, `jpeg`, or `any` for either.
      dct: DCT of the data set's `PixelRule`: `exact` or `fast`.
    """
    if encoding == "png":
        return tf.io.decode_png(image, channels=channels)
    if encoding == "any" and dct == FAST:
        return tf.io.decode_image(image, channels=channels, expand_animations=False)
    return tf.io.decode_jpeg(image, channels=channels, dct_method=_DCT_METHODS[dct])  # decodes PNG, too


@dataclasses.dataclass(frozen=True)
class ImageDecoder:
    """Decodes the images of a batch.

    Attributes:
      encoding: `raw`, `png`, `jpeg`, or `any` for either of the last two.
      shape: (height, width, channels) of every image as stored; None for a size that varies.
      crop: part of each image to decode; None for all of it.
      by_operation: whether the compiled operation resizes; false in a dataset that another process runs.
      mirrored: function from keys, uint64 (rows,), to which images the operation mirrors from left to right while
        resizing, bool (rows,); None to mirror none.
      dct: DCT of the data set's `PixelRule`: `exact` or `fast`.
    """

    encoding: str
    shape: tuple[int | None, ...]
    crop: Crop | None
    by_operation: bool = False
    mirrored: Callable[[tf.Tensor], tf.Tensor] | None = None
    dct: str = EXACT

    @property
    def channels(self) -> int:
        """Number of channels of the result; images with different numbers of channels become RGB."""
        return self.shape[2] or 3

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of the result."""
        height, width = self.crop.size if self.crop else self.shape[:2]
        return int(height or 0), int(width or 0), self.channels

    @property
    def dct_method(self) -> str:
        """TensorFlow's name of the DCT; its default is the fast one."""
        return _DCT_METHODS[self.dct]

    @property
    def in_place(self) -> bool:
        """Whether images are decoded in place, from their records."""
        return self.by_operation and self.encoding != "raw"

    def decode(self, images: Encoded, keys: Callable[[], tf.Tensor], turns: tf.Tensor | None = None) -> tf.Tensor:
        """Decodes images: returns uint8 (rows, height, width, channels).

        Args:
          images: encoded images of a batch.
          keys: function that returns a key for random numbers per row, uint64 (rows,).
          turns: EXIF orientation of each image, to rotate it upright, int32 (rows,); None if all are upright.
        """
        rows, crop = images.rows, self.crop
        turning = () if turns is None else (turns,)
        if isinstance(images, InStrings) and self.encoding == "raw" and crop is None:
            pixels = tf.io.decode_raw(images.strings, tf.uint8, fixed_length=None)
            return tf.reshape(tf.ensure_shape(pixels, (rows, math.prod(self.image_shape))), (-1, *self.image_shape))
        if crop is None:
            decoded = self._mapped(self._whole, images, *turning)
            return tf.ensure_shape(decoded, (rows, *self.image_shape))
        of_row = keys()
        mirrored = self.mirrored(of_row) if self.mirrored else tf.zeros_like(of_row, tf.bool)
        if self.encoding == "jpeg":  # drawing all boxes together costs a tenth of drawing them one by one
            places = self._places(_boxes(crop, images.sizes(), of_row, turns))
            decoded = self._mapped(self._jpeg_part, images, *places, mirrored, *turning)
        else:
            decoded = self._mapped(functools.partial(self._part, crop), images, of_row, mirrored, *turning)
        return tf.ensure_shape(decoded, (rows, *self.image_shape))

    def parts(
        self, images: Encoded, keys: Callable[[], tf.Tensor], turns: tf.Tensor | None, count: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the sizes of upright images, int32 (rows, 2), and the part of each that `decode` uses, (rows, 4).

        A part is the top, left, height and width in the upright image.

        Args:
          images, keys, turns: arguments of `decode`.
          count: number of images, int32 scalar.
        """
        crop, sizes = self.crop, self._sizes(images, count)
        sizes = sizes if turns is None else upright_sizes(sizes, turns)
        if crop is None:
            return sizes, tf.concat([tf.zeros_like(sizes), sizes], axis=1)
        if self.encoding == "jpeg":
            return sizes, crop.box(sizes[:, 0], sizes[:, 1], keys())

        def drawn(values: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:  # one by one, as in `_part`, for the same bits
            (size, key), box = values, crop.box
            return box(size[0], size[1], key)

        boxes = tf.map_fn(drawn, (sizes, keys()), fn_output_signature=tf.TensorSpec([4], tf.int32))
        return sizes, boxes

    def _sizes(self, images: Encoded, count: tf.Tensor) -> tf.Tensor:
        """Returns the sizes of images as stored, int32 (rows, 2), from their headers if they vary."""
        if None not in self.shape[:2]:
            return tf.tile(tf.constant([self.shape[:2]], tf.int32), [count, 1])
        if self.encoding == "jpeg":
            return images.sizes()

        def size(image: tf.Tensor) -> tf.Tensor:
            if self.encoding == "any":
                return tf.cond(tf.io.is_jpeg(image), lambda: tf.io.extract_jpeg_shape(image)[:2], lambda: of_png(image))
            return of_png(image)

        def of_png(image: tf.Tensor) -> tf.Tensor:
            return tf.io.decode_raw(tf.strings.substr(image, *_PNG_SIZE), tf.int32, little_endian=False)[::-1]

        return images.mapped(size, (), tf.TensorSpec([2], tf.int32))

    def _mapped(self, function: Callable[..., tf.Tensor], images: Encoded, *rows: tf.Tensor) -> tf.Tensor:
        return images.mapped(function, rows, tf.TensorSpec(self.image_shape, tf.uint8))

    def _places(self, boxes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the region of JPEG files to decode for some boxes, int32 (..., 4), and where the boxes lie in it."""
        top, left, height, width = tf.unstack(boxes, axis=-1)
        # A part that begins with a whole block is decoded in place. Others are copied line by line.
        margin = left % _BLOCK if self.by_operation else tf.zeros_like(left)
        around = tf.stack([top, left - margin, height, width + margin], axis=-1)
        return around, tf.stack([tf.zeros_like(top), margin, height, width], axis=-1)

    def _whole(self, image: tf.Tensor, turn: tf.Tensor | None = None) -> tf.Tensor:
        return tf.ensure_shape(self._decoded(image, turn), self.image_shape)

    def _jpeg_part(
        self, image: tf.Tensor, around: tf.Tensor, part: tf.Tensor, mirrored: tf.Tensor, turn: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Decodes the region `around` of a file and returns the `part` in it (see `_places`) in the result's size."""

        def whole() -> tf.Tensor:
            pixels = tf.image.decode_and_crop_jpeg(image, around, channels=self.channels, dct_method=self.dct_method)
            return self._resized(pixels, part, mirrored, turn)

        def scaled(ratio: int) -> tf.Tensor:
            box = tf.stack([around[0], around[1] + part[1], part[2], part[3]])
            pixels = tf.io.decode_jpeg(image, channels=self.channels, ratio=ratio, dct_method=self.dct_method)
            first, end = box[:2] // ratio, -(-(box[:2] + box[2:]) // ratio)
            return self._resized(pixels, tf.concat([first, end - first], axis=0), mirrored, turn)

        if self.crop is None or not self.crop.is_scaled:
            return whole()
        # The part is still at least as large as the result: it is never scaled up.
        size = part[2:] if turn is None else upright_sizes(part[2:], turn)
        times = tf.reduce_min(size // self.image_shape[:2])
        branch = tf.reduce_sum(tf.cast(times >= _RATIOS, tf.int32))
        return tf.switch_case(branch, [whole, *(functools.partial(scaled, ratio) for ratio in _RATIOS)])

    def _part(
        self, crop: Crop, image: tf.Tensor, key: tf.Tensor, mirrored: tf.Tensor, turn: tf.Tensor | None = None
    ) -> tf.Tensor:
        def jpeg_part() -> tf.Tensor:
            places = self._places(_boxes(crop, tf.io.extract_jpeg_shape(image)[:2], key, turn))
            return self._jpeg_part(image, *places, mirrored, turn)

        def decoded_part() -> tf.Tensor:
            pixels = self._decoded(image, turn)
            shape = tf.shape(pixels)
            return self._resized(pixels, crop.box(shape[0], shape[1], key), mirrored)

        if self.encoding == "any":
            return tf.cond(tf.io.is_jpeg(image), jpeg_part, decoded_part)
        return decoded_part()

    def _decoded(self, image: tf.Tensor, turn: tf.Tensor | None = None) -> tf.Tensor:
        if self.encoding == "raw":
            return tf.reshape(tf.io.decode_raw(image, tf.uint8), self.shape)
        pixels = decode_file(image, self.channels, self.encoding, self.dct)
        if turn is None:
            return pixels
        return self._turned(pixels, tf.concat([[0, 0], tf.shape(pixels)[:2]], axis=0), turn)[0]

    def _turned(self, image: tf.Tensor, part: tf.Tensor, turn: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns an image that contains a part of another one upright, and the part's place in it."""

        def turned() -> tuple[tf.Tensor, tf.Tensor]:
            size = tf.concat([[0, 0], upright_sizes(part[2:], turn)], axis=0)
            if self.by_operation:
                return operations.turned(image, part, turn), size
            return upright(image[part[0] : part[0] + part[2], part[1] : part[1] + part[3]], turn), size

        found, place = tf.cond(turn > 1, turned, lambda: (image, part))
        return tf.ensure_shape(found, (None, None, image.shape[2])), place

    def _resized(
        self, image: tf.Tensor, part: tf.Tensor, mirrored: tf.Tensor, turn: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns a part of an image, (top, left, height, width), rotated upright and in the size of the result."""
        if turn is not None:  # rotated before resizing, because the result depends on which side is resized first
            image, part = self._turned(image, part, turn)
        size = self.image_shape[:2]
        if self.by_operation:
            return tf.ensure_shape(operations.resize(image, part, size, mirrored), self.image_shape)
        pixels = image[part[0] : part[0] + part[2], part[1] : part[1] + part[3]]
        same = tf.reduce_all(tf.equal(part[2:], size))
        return tf.ensure_shape(tf.cond(same, lambda: pixels, lambda: resize(pixels, size)), self.image_shape)


def _boxes(crop: Crop, sizes: tf.Tensor, keys: tf.Tensor, turns: tf.Tensor | None) -> tf.Tensor:
    """Returns where `crop` is in images as stored, int32 (..., 4), given their sizes as stored, (..., 2)."""
    sizes = sizes if turns is None else upright_sizes(sizes, turns)
    boxes = crop.box(sizes[..., 0], sizes[..., 1], keys)
    return boxes if turns is None else stored_boxes(boxes, sizes, turns)
