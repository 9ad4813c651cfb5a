"""Selects the valid rows of a block with their images as a shard stores them, and gives reasons for invalid ones."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from beam_jobs.examples import placed
from beam_jobs.sources.base import Block
from pipeline import images
from pipeline.commands.text import shape_of
from pipeline.images import BadImageError
from pipeline.manifest import Feature
from pipeline.read.statistics import PixelSums


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """Options for storing images.

    Attributes:
      encoding: `source`, `raw`, `png` or `jpeg`.
      channels: 1 or 3: number of channels of raw images, and of the pixels used for statistics.
      size: (height, width) to resize all images to; None to keep their sizes.
      shape: shape of every raw image; None if they may differ.
      is_scaled: whether JPEGs that are resized are decoded at a fraction of their size.
      like: image feature of the data set to append to; images that differ are invalid. None accepts all images.
    """

    encoding: str
    channels: int
    size: tuple[int, int] | None = None
    shape: tuple[int, int, int] | None = None
    is_scaled: bool = False
    like: Feature | None = None

    def check(self, shape: tuple[int, ...], kind: str) -> None:
        """Raises BadImageError if an image's shape or format differs from the data set that it joins."""
        if self.like is None:
            return
        if self.like.encoding not in (kind, "any"):
            raise BadImageError(
                f"the image is {kind}, those of the data set are {self.like.encoding}{self._to_fit(shape, self.like)}"
            )
        if any(there not in (None, here) for there, here in zip(self.like.shape, shape, strict=True)):
            sides = "x".join(str(side or "any") for side in self.like.shape)
            raise BadImageError(
                f"the image is {shape_of(shape)}, those of the data set are {sides}{self._to_fit(shape, self.like)}"
            )

    def _to_fit(self, shape: tuple[int, ...], like: Feature) -> str:
        """Returns the flags that would make an image of this shape fit a data set; "" if none would."""
        height, width, channels = like.shape
        are_other_sides = any(there not in (None, here) for there, here in zip((height, width), shape, strict=False))
        if are_other_sides and not (height and width):
            return ""
        flags = [f"--resize={height}x{width}"] * are_other_sides
        flags += [f"--channels={channels}"] * (channels not in (None, shape[2]))
        flags += [f"--image_encoding={'png' if like.encoding == 'any' else like.encoding}"]
        return f"; to change it: {' '.join(flags)}"


@dataclasses.dataclass
class Recoded:
    """Images as stored.

    Attributes:
      sums: sums over the pixels.
      images: raw pixels, uint8 (n, height, width, channels), or a list of n files; rows in `bad` are left out.
      formats: formats of the images: `raw`, `png`, `jpeg`.
      sizes: {(height, width, channels): number of images}.
      bad: {row of the block: reason why its image is invalid}.
      turned: number of files rewritten upright because of their EXIF orientation.
      each_side: height and width of each image, int32 (n, 2), if they vary.
    """

    sums: PixelSums
    images: NDArray[np.uint8] | list[bytes] = dataclasses.field(default_factory=list)
    formats: set[str] = dataclasses.field(default_factory=set)
    sizes: Counter[tuple[int, ...]] = dataclasses.field(default_factory=Counter)
    bad: dict[int, str] = dataclasses.field(default_factory=dict)
    turned: int = 0
    each_side: NDArray[np.int32] | None = None

    def sides(self, count: int) -> NDArray[np.int32]:
        """Returns the height and width of each of `count` images, int32 (count, 2)."""
        if self.each_side is not None:
            return self.each_side
        size = next(iter(self.sizes), (0, 0))
        return np.broadcast_to(np.array(size[:2], np.int32), (count, 2))


def recode(block: Block, options: ImageOptions, skip: frozenset[int] = frozenset()) -> Recoded:
    """Returns the images of a block as a shard stores them.

    Args:
      block: a block of a source.
      options: options for storing the images.
      skip: rows to leave out because they are invalid for other reasons.
    """
    is_raw = not isinstance(block.images, list) and options.encoding in ("source", "raw")
    if not is_raw or options.shape not in (None, np.shape(block.images)[1:]):
        return _each(block, options, skip)
    pixels = np.delete(np.asarray(block.images), list(skip), axis=0) if skip else np.asarray(block.images)
    made = Recoded(PixelSums(options.channels), pixels)
    made.sums.add(pixels)
    if len(pixels):
        made.formats.add("raw")
        made.sizes[pixels.shape[1:]] = len(pixels)
    return made


def _each(block: Block, options: ImageOptions, skip: frozenset[int]) -> Recoded:
    made = Recoded(PixelSums(options.channels))
    raw = None if options.shape is None else np.empty((len(block.labels), *options.shape), np.uint8)
    files: list[bytes] = []
    sides: list[tuple[int, ...]] = []
    for row, image in enumerate(block.images):
        if row in skip:
            continue
        try:
            stored, pixels, kind, was_turned = _one(image, options)
            options.check(pixels.shape, kind)
        except BadImageError as error:
            made.bad[row] = str(error)
            continue
        if raw is not None:
            raw[made.sizes.total()] = pixels
        else:
            files.append(stored)
            made.sums.add(images.with_channels(pixels, options.channels))
        made.formats.add(kind)
        made.sizes[pixels.shape] += 1
        made.turned += was_turned
        sides.append(pixels.shape[:2])
    made.images = files
    if len(made.sizes) > 1:
        made.each_side = np.array(sides, np.int32)
    if raw is not None:
        made.images = raw[: made.sizes.total()]
        made.sums.add(made.images)  # all at once: many times as fast for small images
    return made


def _one(image: bytes | NDArray[np.uint8], options: ImageOptions) -> tuple[bytes, NDArray[np.uint8], str, bool]:
    """Returns (file, pixels, format, whether the file was rewritten upright) of an image as stored."""
    if not isinstance(image, bytes):
        pixels = image
    else:
        opened = images.open_file(image)
        keeps = images.kept_as(opened, image) if options.encoding == "source" else None
        if keeps and options.size is None:
            is_turned = images.orientation(opened) != 1
            if is_turned:  # readers of records do not look at EXIF data
                image = images.upright_file(opened)
                opened = images.open_file(image)
            return image, images.pixels(opened), keeps, is_turned
        if options.is_scaled and options.size is not None:
            images.decode_scaled(opened, options.size)
        pixels = images.pixels(opened, 0 if options.encoding == "source" else options.channels, upright=True)
    if options.encoding != "source":
        pixels = images.with_channels(pixels, options.channels)
    if options.size is not None:
        pixels = images.resized(pixels, options.size)
    if options.shape is not None:
        if pixels.shape != options.shape:
            raise BadImageError(f"the image is {shape_of(pixels.shape)}, all others are {shape_of(options.shape)}")
        return b"", pixels, "raw", False
    kind = "jpeg" if options.encoding == "jpeg" else "png"
    return images.encoded(pixels, kind), pixels, kind, False


@dataclasses.dataclass(frozen=True)
class Selected:
    """The valid rows of a block.

    Attributes:
      rows: the valid rows, in the block's order.
      recoded: images of the valid rows, as stored.
      bad: {row of the block: reason} of the invalid rows.
    """

    rows: Block
    recoded: Recoded
    bad: dict[int, str]


def select(
    block: Block, num_classes: int, options: ImageOptions, features: Mapping[str, Feature] | None = None
) -> Selected:
    """Returns the valid rows of a block.

    Args:
      block: a block of a source.
      num_classes: number of classes; labels must be smaller. 0 if rows have no labels.
      options: options for storing the images.
      features: features of the source; masks, boxes and points are turned and resized with their images.
    """
    bad = dict(block.bad)
    if block.has_classes and num_classes:
        bad = block.without_class(num_classes) | bad
    block = dataclasses.replace(block, extra=placed.moved(block, features or {}, options.size, bad))
    recoded = recode(block, options, frozenset(bad))
    bad |= recoded.bad
    if not bad:
        return Selected(dataclasses.replace(block, images=recoded.images), recoded, {})
    good = np.setdiff1d(np.arange(len(block.labels)), list(bad))
    return Selected(block.taken(recoded.images, good), recoded, bad)


def joined(parts: Sequence[tuple[NDArray[np.int64], Selected]]) -> Selected:
    """Joins the selections from parts of a block into the selection from the whole block.

    Args:
      parts: (row numbers in the block, int64 (n,); selection) of each part, in any order; every row is in exactly one
        part.
    """
    places = [np.delete(rows, list(part.bad)) for rows, part in parts]
    rows = Block.joined([(place, part.rows) for place, (_, part) in zip(places, parts, strict=True)])
    whole = Recoded(PixelSums(parts[0][1].recoded.sums.channels), rows.images)
    for _, part in parts:
        whole.formats |= part.recoded.formats
        whole.sums.merge(part.recoded.sums)
        whole.sizes.update(part.recoded.sizes)
        whole.turned += part.recoded.turned
    if len(whole.sizes) > 1:
        sides = [part.recoded.sides(len(place)) for place, (_, part) in zip(places, parts, strict=True)]
        whole.each_side = np.concatenate(sides)[np.argsort(np.concatenate(places))]
    return Selected(rows, whole, {int(rows[row]): reason for rows, part in parts for row, reason in part.bad.items()})
