"""From the records of a window to the examples of a batch: parsed, decoded and resized, or by the user's parser.

A window is a dict of tensors with one row per record; a batch gathers some rows of each.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
import tensorflow as tf

from pipeline import operations
from pipeline.augmentation.base import Crop
from pipeline.errors import UsageError, root_cause, unknown
from pipeline.graph_calls import UserFunction
from pipeline.manifest import Feature, Manifest
from pipeline.manifest.manifest import EXACT, FAST, NO_LABEL
from pipeline.records import tf_example

_DTYPES = {"int64": tf.int64, "float32": tf.float32, "string": tf.string}
Columns = dict[str, tf.Tensor]
Turns: TypeAlias = Any  # EXIF's orientations of all records of a selection, int8 (records,): a tensor or an array
PLACES, SIZES = "places", "sizes"  # columns of `Kept`: the bounds and sizes of `InMemory`
_DCT_METHODS = {FAST: "", EXACT: "INTEGER_ACCURATE"}  # TensorFlow's names
_RATIOS = (2, 4, 8)  # at which TensorFlow decodes a JPEG, besides 1
_JUDGED_TOGETHER = 64  # images, by one thread
_MOST_TRIED = 16  # records, of a batch and of others, to find one that a parser takes
_HASHES = (1 << 63) - 1  # of texts, so many that no two of a million names are likely to have one
_BLOCK = 16  # pixels, of the blocks that JPEG decodes together; few files have larger ones
_ON_ITS_SIDE = 5  # EXIF's orientation from which on rows are stored as columns
# By EXIF's orientation, from 0: 1 where an upright image has its rows, or its columns, in the other order.
_ROWS_REVERSED, _COLUMNS_REVERSED = (0, 0, 0, 1, 1, 0, 0, 1, 1), (0, 0, 1, 1, 0, 0, 1, 1, 0)


def resize(image: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    """Returns a resized image, uint8 (height, width, channels): bilinear, antialiased if it is made smaller.

    It is `tf.image.resize(..., antialias=True)`, rounded, except for some values half-way between two integers. That
    function takes twice the time, because its pass over the width steps by pixels of a few channels. Where
    `operations.resize` can be used, it gives the same bytes in a sixth of the time of this one.

    Args:
      image: uint8 (h, w, channels), each at least 1.
      size: (height, width) of the result, pixels.
    """
    height, width, channels = (tf.shape(image)[i] for i in range(3))
    rows = _along_first(tf.reshape(image, [1, height, 1, width * channels]), size[0])
    columns = tf.transpose(tf.reshape(rows, [size[0], width, channels]), [1, 0, 2])
    resized = _along_first(tf.reshape(columns, [1, width, 1, size[0] * channels]), size[1])
    # Floats are transposed faster than bytes. No clipping: the weights are positive, and their sum is 1.
    resized = tf.transpose(tf.reshape(resized, [size[1], size[0], channels]), [1, 0, 2])
    return tf.cast(tf.round(resized), tf.uint8)


def _along_first(values: tf.Tensor, size: int) -> tf.Tensor:
    """Returns an image (1, n, 1, m) resized to float32 (1, size, 1, m): as it is one pixel wide, one pass is made."""
    return tf.raw_ops.ScaleAndTranslate(
        images=values,
        size=[size, 1],
        scale=tf.stack([tf.cast(size / tf.shape(values)[1], tf.float32), 1.0]),
        translation=[0.0, 0.0],
        kernel_type="triangle",
        antialias=True,
    )


def upright(image: tf.Tensor, turn: tf.Tensor) -> tf.Tensor:
    """Returns an image turned upright, the same as by `images.turned`: uint8 (height, width, channels).

    Args:
      image: image as it is stored, uint8 (h, w, channels).
      turn: EXIF's orientation, int32 scalar.
    """

    def turned() -> tf.Tensor:
        placed = tf.cond(turn >= _ON_ITS_SIDE, lambda: tf.transpose(image, [1, 0, 2]), lambda: image)
        reversed_ = [tf.gather(axis, turn) > 0 for axis in (_ROWS_REVERSED, _COLUMNS_REVERSED)]
        # A slice with a step of -1 takes ten times as long.
        return tf.raw_ops.Reverse(tensor=placed, dims=tf.stack([*reversed_, False]))

    return tf.ensure_shape(tf.cond(turn > 1, turned, lambda: image), (None, None, image.shape[2]))


def upright_sizes(sizes: tf.Tensor, turns: tf.Tensor) -> tf.Tensor:
    """Returns the sizes of images once they are upright: int32 (..., 2); `turns` are EXIF's orientations, (...)."""
    return tf.where((turns >= _ON_ITS_SIDE)[..., None], sizes[..., ::-1], sizes)


def stored_boxes(boxes: tf.Tensor, sizes: tf.Tensor, turns: tf.Tensor) -> tf.Tensor:
    """Returns where parts of upright images lie in the images as they are stored: int32 (..., 4).

    Args:
      boxes: top, left, height and width of each part, int32 (..., 4).
      sizes: heights and widths of the upright images, int32 (..., 2).
      turns: EXIF's orientations, int32 (...).
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
        """Returns the height and width of each, all of them JPEG files: int32 (rows, 2)."""

    def mapped(self, function: Callable[..., tf.Tensor], rows: Sequence[tf.Tensor], spec: tf.TensorSpec) -> tf.Tensor:
        """Returns `function` of each image's bytes and its row of `rows`, stacked."""


@dataclasses.dataclass(frozen=True)
class InStrings(Encoded):
    """Encoded images in strings.

    Attributes:
      strings: string (rows,).
      bounds: where the image in each string begins and ends, int64 (rows, 2); None: each is a whole string.
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

        def of_row(values: tuple[tf.Tensor, ...]) -> tf.Tensor:  # one copy, of which TensorFlow's loop would make more
            return function(operations.part(strings, bounds, values[0]), *values[1:])

        numbers = tf.range(tf.shape(strings, tf.int64)[0])
        return tf.map_fn(of_row, (tf.ensure_shape(numbers, strings.shape), *rows), fn_output_signature=spec)


@dataclasses.dataclass(frozen=True)
class InMemory(Encoded):
    """Encoded images in the memory that they were read into.

    Attributes:
      memory: uint8 (1, bytes).
      bounds: where each image begins and ends, int64 (rows, 2).
      known_sizes: what `sizes` returns, int32 (rows, 2); zeros if the files are not JPEG.
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
class ExampleParser:
    """Parses `tf.train.Example`s.

    Attributes:
      image, label: the manifest's features of these names.
      features: to parse beside image and label, by name.
    """

    image: Feature
    label: Feature
    features: dict[str, Feature]

    @classmethod
    def wanted(cls, manifest: Manifest, names: tuple[str, ...]) -> ExampleParser:
        """Returns the parser for some features of a data set, beside image and label.

        Raises:
          UsageError: there is no such feature, or it cannot be fed.
        """
        for name in names:
            feature = manifest.features.get(name)
            if feature is None or name in ("image", "label"):
                others = [other for other in manifest.features if other not in ("image", "label")]
                raise unknown("features", name, others)
            if None in feature.shape and len(feature.shape) > 1:
                raise UsageError(f"features: {name!r} has the shape {feature.shape}: only vectors may vary in length")
        features = {name: manifest.features[name] for name in names}
        return cls(manifest.features["image"], manifest.features["label"], features)

    def parse(self, records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, dict[str, tf.Tensor]]:
        """Returns the images' bytes (n,), the labels (n, ...) and the features of serialized Examples (n,)."""
        found = tf.io.parse_example(records, {**self._image_and_label(), **self._kinds()})
        return (*self._image_and_label_of(found), self._features_of(found))

    def places(self, records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns where images are in their records, int64 (n, 2), and the labels (n, ...), by a compiled operation.

        Where an image begins is -1 if the record is not as usual, so that only TensorFlow's parser can read it.
        """
        image, label = self.image.named("image"), self.label.named("label")
        if self.label.is_class and not self.label.texts:
            found = operations.find_images(records, image, label)
            return found[:, :2], self._labels(found[:, 2])
        found = operations.find_images(records, image, "")  # the operation reads no other labels
        return found[:, :2], self._labels(tf.io.parse_example(records, {label: self._label_kind()})[label])

    def find(self, records: tf.Tensor) -> tuple[InStrings, tf.Tensor, dict[str, tf.Tensor]]:
        """Returns what `parse` does, but the images where they are in the records: by compiled operations."""
        places, found_labels = self.places(records)

        def in_place() -> tuple[tf.Tensor, ...]:
            return records, places, found_labels

        def parsed() -> tuple[tf.Tensor, ...]:
            images, labels = self._image_and_label_of(tf.io.parse_example(records, self._image_and_label()))
            sizes = tf.strings.length(images)
            ends = tf.cast(tf.stack([tf.zeros_like(sizes), sizes], axis=1), tf.int64)
            return images, ends, labels

        # TensorFlow reads records that other writers made otherwise, and says what is wrong with those that it cannot.
        strings, bounds, labels = tf.cond(tf.reduce_all(places[:, 0] >= 0), in_place, parsed)
        features = tf.io.parse_example(records, self._kinds()) if self.features else {}
        return InStrings(strings, bounds), labels, self._features_of(features)

    def _image_and_label(self) -> dict[str, Any]:
        return {
            self.image.named("image"): tf.io.FixedLenFeature([], tf.string),
            self.label.named("label"): self._label_kind(),
        }

    def _label_kind(self) -> tf.io.FixedLenFeature:
        label = self.label
        none: Any = "" if label.texts else label.no_label
        if label.stored_as is None:  # a record without a label is an error
            none = None
        elif label.shape:
            none = [none] * (label.shape[0] or 0)
        return tf.io.FixedLenFeature(label.shape, _DTYPES[label.stored_dtype], none)

    def _image_and_label_of(self, found: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        return found[self.image.named("image")], self._labels(found[self.label.named("label")])

    def _labels(self, stored: tf.Tensor) -> tf.Tensor:
        """Returns the labels that stored ones mean, (n, ...): `Feature.label_of` of each."""
        label, none = self.label, tf.constant(NO_LABEL, tf.int64)
        if label.texts:
            return _places_of(stored, label.texts)
        if label.stored_as is None or not label.is_class:
            return stored
        return tf.where(stored >= 0, stored + label.offset, none)

    def _kinds(self) -> dict[str, Any]:
        kinds: dict[str, Any] = {}
        for name, feature in self.features.items():
            dtype, varies = _DTYPES[feature.dtype], None in feature.shape
            kind = tf.io.RaggedFeature(dtype) if varies else tf.io.FixedLenFeature(feature.shape, dtype)
            kinds[feature.named(name)] = kind
        return kinds

    def _features_of(self, found: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {name: found[feature.named(name)] for name, feature in self.features.items()}


def _places_of(texts: tf.Tensor, names: Sequence[str]) -> tf.Tensor:
    """Returns the place of each text, string (n,), among names, int64 (n,); -1: it is none of them.

    It is a search by hashes, without a table: any process can run the graph.
    """
    with tf.init_scope(), tf.device("CPU:0"):
        hashes = _hashed(tf.constant(names)).numpy()
    order = np.argsort(hashes)
    found = tf.searchsorted(tf.constant(hashes[order]), _hashed(texts))
    places = tf.gather(tf.constant(order.astype(np.int64)), tf.minimum(found, len(names) - 1))
    return tf.where(tf.equal(tf.gather(tf.constant(names), places), texts), places, tf.constant(NO_LABEL, tf.int64))


def _hashed(texts: tf.Tensor) -> tf.Tensor:
    return tf.strings.to_hash_bucket_fast(texts, _HASHES)


class ImageJudge:
    """Says of which records no image can be decoded, as training decodes them.

    Args:
      manifest: of the data set.
    """

    rows = _JUDGED_TOGETHER

    def __init__(self, manifest: Manifest) -> None:
        image = manifest.features["image"]
        self._features, self._image, self._dct = manifest.features, image, manifest.pixels.dct
        self._channels = image.shape[2] or 3
        self._shape = (*image.shape[:2], self._channels)
        self._upright = manifest.turns_images

    def problems(self, records: Sequence[bytes]) -> list[str | None]:
        """Returns for each record why it is invalid; None: it is valid."""
        return [self.problem(record) for record in records]

    def problem(self, record: bytes) -> str | None:
        """Returns why a record is invalid; None: it is valid."""
        from pipeline import images  # noqa: PLC0415, with Pillow, which raw images do not need

        image = self._image
        try:
            with tf.device("CPU:0"):
                stored = tf.constant(tf_example.example(record, self._features, decode_image=False)["image"])
                if image.encoding == "raw":
                    return None
                found = decode_file(stored, self._channels, image.encoding or "", self._dct)
                if self._upright:
                    found = upright(found, tf.constant(images.orientation_of(stored.numpy())))
        except tf_example.BadExampleError as error:
            return str(error)
        except tf.errors.OpError as error:
            return f"its image cannot be decoded: {root_cause(error.message)[1]}"
        if any(size not in (None, has) for size, has in zip(self._shape, found.shape, strict=True)):
            return f"its image is of shape {tuple(found.shape)}, not {image.shape}"
        return None


class ParseJudge:
    """Says which records the user's parser fails on.

    A parser takes a batch, of a size that it may need, and may fail for several records together. A record is to blame
    only if a batch that the parser takes fails with this record in place of one of its rows, and a batch of nothing but
    this record fails, too. Where no batch is found that the parser takes, no record is blamed.

    Args:
      parse: the user's parser.
      rows: number of records in each batch that it is given.
      others: function that returns some more records, among which one is looked for that the parser takes.
      training: whether the batches are for training.
    """

    def __init__(
        self,
        parse: UserFunction,
        rows: int,
        others: Callable[[], Iterable[bytes]] = tuple,
        training: bool = True,
    ) -> None:
        self.rows, self._others = rows, others
        self._taken: list[bytes] | None = None  # a batch

        def called(records: tf.Tensor) -> Any:
            return parse(records, lambda: tf.zeros([rows], tf.uint64), training)

        traced = tf.function(called, [tf.TensorSpec([rows], tf.string)], autograph=False)
        # Traced here, not in the threads that judge, of which each would wait for the other.
        try:
            with tf.device("CPU:0"):
                self._parse = traced.get_concrete_function()
            self._is_able = True  # whether such a batch may be found
        except Exception:  # it is not a function of a batch at all, which the input itself says better
            self._is_able = False

    def problems(self, records: Sequence[bytes]) -> list[str | None]:
        """Returns for each record the parser's error; None for records that are not to blame for one."""
        found: list[str | None] = []
        for first in range(0, len(records), self.rows):
            found += self._of_batch(list(records[first : first + self.rows]))
        return found

    def _of_batch(self, records: list[bytes]) -> list[str | None]:
        batch = [*records, *records[-1:] * (self.rows - len(records))]
        if not self._is_able or self._error(batch) is None:
            self._taken = batch if self._is_able else None
            return [None] * len(records)
        if self._taken is None:
            candidates = itertools.chain(records[:_MOST_TRIED], itertools.islice(self._others(), _MOST_TRIED))
            batches = ([record] * self.rows for record in candidates)
            self._taken = next((batch for batch in batches if self._error(batch) is None), None)
            self._is_able = self._taken is not None
        return self._among(records) if self._taken else [None] * len(records)

    def _among(self, records: list[bytes]) -> list[str | None]:
        """Returns the problems of records, at most a batch: halves of them are tried until one is left."""
        assert self._taken is not None
        if self._error([*records, *self._taken[len(records) :]]) is None:
            return [None] * len(records)
        if len(records) > 1:
            half = len(records) // 2
            return self._among(records[:half]) + self._among(records[half:])
        return [self._error(records * self.rows)]

    def _error(self, batch: list[bytes]) -> str | None:
        try:
            with tf.device("CPU:0"):
                self._parse(tf.constant(batch))
        except tf.errors.OpError as error:
            return f"parse: {root_cause(error.message)[1]}"
        return None


@dataclasses.dataclass(frozen=True)
class Stretched:
    """A `Crop` that is the whole image, resized to `size` whatever its shape, as by `beam_jobs.convert --resize`."""

    is_scaled: ClassVar[bool] = False

    size: tuple[int, int]

    def box(self, height: tf.Tensor, width: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        del key
        return tf.stack([tf.zeros_like(height), tf.zeros_like(width), height, width], axis=-1)


def decode_file(image: tf.Tensor, channels: int, encoding: str, dct: str) -> tf.Tensor:
    """Returns the pixels of an image file: uint8 (height, width, channels).

    Args:
      image: the file, string scalar.
      channels: 1 or 3.
      encoding: `png`, `jpeg`, or `any` of these.
      dct: of the data set's `PixelRule`: `exact` or `fast`.
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
      encoding: `raw`, `png`, `jpeg` or `any` of the last two.
      shape: (height, width, channels) of every image as stored; None for a size that varies.
      crop: the part of each image to decode; None: all of it.
      by_operation: whether the compiled operation resizes; not in a dataset that another process runs.
      mirrored: says of keys, uint64 (rows,), which images to mirror from left to right, bool (rows,), while they are
        resized by the operation; None: none of them.
      dct: of the data set's `PixelRule`: `exact` or `fast`.
    """

    encoding: str
    shape: tuple[int | None, ...]
    crop: Crop | None
    by_operation: bool = False
    mirrored: Callable[[tf.Tensor], tf.Tensor] | None = None
    dct: str = EXACT

    @property
    def channels(self) -> int:
        """Channels of the result; images that differ in their number of channels become RGB."""
        return self.shape[2] or 3

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of the result."""
        height, width = self.crop.size if self.crop else self.shape[:2]
        return int(height or 0), int(width or 0), self.channels

    @property
    def dct_method(self) -> str:
        """The transform by TensorFlow's name; its default is the fast one."""
        return _DCT_METHODS[self.dct]

    @property
    def in_place(self) -> bool:
        """Whether images are decoded from where they are in their records."""
        return self.by_operation and self.encoding != "raw"

    def decode(self, images: Encoded, keys: Callable[[], tf.Tensor], turns: tf.Tensor | None = None) -> tf.Tensor:
        """Returns encoded images decoded: uint8 (rows, height, width, channels).

        Args:
          images: encoded images of a batch.
          keys: returns a key for random numbers per row, uint64 (rows,).
          turns: EXIF's orientation of each, by which it is turned upright, int32 (rows,); None: all are.
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

    def _mapped(self, function: Callable[..., tf.Tensor], images: Encoded, *rows: tf.Tensor) -> tf.Tensor:
        return images.mapped(function, rows, tf.TensorSpec(self.image_shape, tf.uint8))

    def _places(self, boxes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns what to decode of JPEG files to get boxes, int32 (..., 4), and where the boxes lie in that."""
        top, left, height, width = tf.unstack(boxes, axis=-1)
        # A part that begins with a whole block is decoded to where it belongs. Others are copied line by line.
        margin = left % _BLOCK if self.by_operation else tf.zeros_like(left)
        around = tf.stack([top, left - margin, height, width + margin], axis=-1)
        return around, tf.stack([tf.zeros_like(top), margin, height, width], axis=-1)

    def _whole(self, image: tf.Tensor, turn: tf.Tensor | None = None) -> tf.Tensor:
        return tf.ensure_shape(self._decoded(image, turn), self.image_shape)

    def _jpeg_part(
        self,
        image: tf.Tensor,
        around: tf.Tensor,
        part: tf.Tensor,
        mirrored: tf.Tensor,
        turn: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Returns a part of what lies around it in a file, as of `_places`, in the size of the result."""

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
        """Returns an image that has a part of another one upright, and where it has it."""

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
        """Returns a part of an image, (top, left, height, width), in the size of the result, turned before."""
        if turn is not None:  # before it is resized, because the result depends on which side is resized first
            image, part = self._turned(image, part, turn)
        size = self.image_shape[:2]
        if self.by_operation:
            return tf.ensure_shape(operations.resize(image, part, size, mirrored), self.image_shape)
        pixels = image[part[0] : part[0] + part[2], part[1] : part[1] + part[3]]
        same = tf.reduce_all(tf.equal(part[2:], size))
        return tf.ensure_shape(tf.cond(same, lambda: pixels, lambda: resize(pixels, size)), self.image_shape)


def _boxes(crop: Crop, sizes: tf.Tensor, keys: tf.Tensor, turns: tf.Tensor | None) -> tf.Tensor:
    """Returns where `crop` is in images as they are stored, int32 (..., 4), given their sizes as stored, (..., 2)."""
    sizes = sizes if turns is None else upright_sizes(sizes, turns)
    boxes = crop.box(sizes[..., 0], sizes[..., 1], keys)
    return boxes if turns is None else stored_boxes(boxes, sizes, turns)


@dataclasses.dataclass(frozen=True)
class Examples:
    """The rows of a batch.

    Attributes:
      images: uint8, which `Form.as_images` shapes (rows, height, width, channels); or x of `Supervised`; or what else
        the user's parser returned.
      labels: int64 (rows,), or as the manifest's feature says; or y of `Supervised`; None if the user's parser returned
        something else.
      features: other features, by name.
      sample_weight: that of `Supervised`; None: there is none.
    """

    images: Any
    labels: tf.Tensor | None
    features: Columns
    sample_weight: Any = None


class Form:
    """How columns become examples."""

    def examples(self, columns: Columns, keys: Callable[[], tf.Tensor], ids: tf.Tensor) -> Examples:
        """Returns the examples of gathered columns.

        Args:
          columns: with a row per record.
          keys: returns a key for random numbers per row, uint64 (rows,).
          ids: record ids of the rows, int64 (rows,).
        """
        raise NotImplementedError

    @property
    def augmented(self) -> Form:
        """The form that decodes the parts of images that training would, for augmented copies in evaluations."""
        return self

    @property
    def draws(self) -> bool:
        """Whether examples depend on their keys, because parts of images are drawn."""
        return False

    def as_images(self, images: tf.Tensor) -> tf.Tensor:
        """Returns `Examples.images` as uint8 (..., height, width, channels); XLA compiles it with the augmentation."""
        return images


def turns_of(turns: Turns | None, ids: tf.Tensor) -> tf.Tensor | None:
    """Returns EXIF's orientation of records, by which they are turned, int32 (rows,); None: none of them is.

    Args:
      turns: of all records of the selection.
      ids: of the records; those of copies are larger by a multiple of the number of records.
    """
    return None if turns is None else tf.cast(tf.gather(turns, ids % len(turns)), tf.int32)


@dataclasses.dataclass(frozen=True)
class Decoded(Form):
    """A form that decodes images for every batch.

    Attributes:
      decoder: of a batch's images.
      turns: EXIF orientations of all records of the selection; None: no image is turned.
      augmenting: decoder of augmented copies in evaluations; None: the same.
    """

    decoder: ImageDecoder
    turns: Turns | None = dataclasses.field(default=None, kw_only=True)
    augmenting: ImageDecoder | None = dataclasses.field(default=None, kw_only=True)

    @property
    def augmented(self) -> Form:
        return dataclasses.replace(self, decoder=self.augmenting or self.decoder)

    @property
    def draws(self) -> bool:
        return self.decoder.crop is not None and not isinstance(self.decoder.crop, Stretched)


@dataclasses.dataclass(frozen=True)
class PixelRows(Form):
    """Columns `image` (n, values of an image), `label`, and the features.

    Attributes:
      image_shape: (height, width, channels).
    """

    image_shape: tuple[int, int, int]

    def examples(self, columns: Columns, keys: Callable[[], tf.Tensor], ids: tf.Tensor) -> Examples:
        del keys, ids
        features = {name: column for name, column in columns.items() if name not in ("image", "label")}
        return Examples(columns["image"], columns["label"], features)

    def as_images(self, images: tf.Tensor) -> tf.Tensor:
        return tf.reshape(images, (*(-1 if n is None else n for n in images.shape[:-1]), *self.image_shape))


@dataclasses.dataclass(frozen=True)
class Serialized(Decoded):
    """Column `record`: serialized `tf.train.Example`s.

    Attributes:
      parser: finds images, labels and features in them.
    """

    parser: ExampleParser

    def examples(self, columns: Columns, keys: Callable[[], tf.Tensor], ids: tf.Tensor) -> Examples:
        if self.decoder.in_place:
            encoded, labels, features = self.parser.find(columns["record"])
        else:
            images, labels, features = self.parser.parse(columns["record"])
            encoded = InStrings(images)
        return Examples(self.decoder.decode(encoded, keys, turns_of(self.turns, ids)), labels, features)


@dataclasses.dataclass(frozen=True)
class Kept(Decoded):
    """Columns `PLACES`, `SIZES` and `label`: images that stay encoded in memory, of which every batch decodes some.

    No record of them is copied for a batch, so that its files are not in memory twice.

    Attributes:
      memory: that the records were read into, uint8 (1, bytes).
    """

    memory: tf.Tensor

    def examples(self, columns: Columns, keys: Callable[[], tf.Tensor], ids: tf.Tensor) -> Examples:
        images = InMemory(self.memory, columns[PLACES], columns[SIZES])
        return Examples(self.decoder.decode(images, keys, turns_of(self.turns, ids)), columns["label"], {})


@dataclasses.dataclass(frozen=True)
class UserParsed(Form):
    """Column `record`: bytes that the user's function parses, a batch at a time."""

    parse: UserFunction
    training: bool

    def examples(self, columns: Columns, keys: Callable[[], tf.Tensor], ids: tf.Tensor) -> Examples:
        del ids
        given = parsed(self.parse, columns["record"], keys, self.training)
        found = Supervised.of(given)
        if found is None:
            return Examples(given, None, {})
        # Kept apart: Keras would take ((features, labels), weights) for inputs and labels, and train on the weights.
        return Examples(found.x, found.y, {}, found.sample_weight)


class Supervised(NamedTuple):
    """What a parser returned, taken as Keras takes a tuple of two or three: inputs, targets and weights.

    Attributes:
      x: inputs.
      y: targets.
      sample_weight: float32, a row per record, in any structure; None: the parser returned a pair.
    """

    x: Any
    y: Any
    sample_weight: Any = None

    @classmethod
    def of(cls, given: Any, name: str = "parse") -> Supervised | None:
        """Returns the parts of a tuple or list of two or three; None for anything else.

        Args:
          given: by the parser.
          name: of the parser, for messages.

        Raises:
          UsageError: the third part cannot be weights.
        """
        if not isinstance(given, tuple | list) or len(given) not in (2, 3):
            return None
        x, y, *weights = given
        if not weights:
            return cls(x, y)
        for leaf in tf.nest.flatten(weights[0]):
            is_tensor = isinstance(leaf, tf.Tensor) and leaf.shape.rank is not None
            if not is_tensor or not (leaf.dtype.is_floating or leaf.dtype.is_bool):
                kind = f"{leaf.dtype.name} {leaf.shape}" if isinstance(leaf, tf.Tensor) else type(leaf).__name__
                raise UsageError(
                    f"{name}: the third of three parts is Keras' sample_weight, floating-point or bool, one per row; "
                    f"it is {kind}; cast weights to tf.float32, or return a dict for a loop of your own"
                )
        return cls(x, y, tf.nest.map_structure(lambda leaf: tf.cast(leaf, tf.float32), weights[0]))


def parsed(parse: UserFunction, records: tf.Tensor, keys: Callable[[], tf.Tensor], training: bool) -> Any:
    """Returns the result of the user's parser: tensors, ragged or sparse or not, in any structure, a row per record.

    Args:
      parse: the user's function.
      records: serialized, string (rows,), with a static number of rows.
      keys: returns the key of each row, uint64 (rows,).
      training: whether the rows are for training.

    Raises:
      UsageError: it fails, or returns something else. A number of rows that is not static is checked in each batch.
    """
    given = parse(records, keys, training)
    given = tuple(given) if isinstance(given, list) else given  # tf.data would stack a list to one tensor
    leaves = tf.nest.flatten(given)
    if not leaves:
        raise _wrong(given, records)
    return tf.nest.pack_sequence_as(given, [_with_rows(leaf, given, records) for leaf in leaves])


def _with_rows(leaf: Any, given: Any, records: tf.Tensor) -> Any:
    rows = records.shape[0]
    if leaf is None:
        raise _wrong(given, records)
    if not isinstance(leaf, tf.RaggedTensor | tf.SparseTensor):
        leaf = tf.convert_to_tensor(leaf)
    if leaf.shape.rank == 0 or (leaf.shape.rank and leaf.shape[0] not in (None, rows)):
        raise _wrong(given, records)
    if leaf.shape.rank and leaf.shape[0] == rows:
        return leaf
    text = tf.strings.format(f"parse: the function returned {{}} rows for {rows} records", _num_rows(leaf))
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(_num_rows(leaf), rows), [text])]):
        checked = tf.nest.map_structure(tf.identity, leaf, expand_composites=True)
    if isinstance(checked, tf.Tensor) and leaf.shape.rank:
        checked.set_shape([rows, *leaf.shape[1:]])
    return checked


def _num_rows(leaf: Any) -> tf.Tensor:
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int64)
    shape = leaf.dense_shape if isinstance(leaf, tf.SparseTensor) else tf.shape(leaf, tf.int64)
    return shape[0]


def _wrong(given: Any, records: tf.Tensor) -> UsageError:
    text = tf.nest.map_structure(lambda leaf: str(getattr(leaf, "shape", leaf)), given)
    return UsageError(
        f"parse: the function must return tensors of {records.shape[0]} rows, one per record, in any structure; "
        f"their shapes are {text}"
    )
