"""Samples some rows of a source: how images will be stored, how large records are, how long making them takes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from beam_jobs.examples import images
from beam_jobs.examples.images import BadImageError
from beam_jobs.examples.recode import ImageOptions
from beam_jobs.examples.records import make_records
from beam_jobs.examples.selection import select
from beam_jobs.sources.base import Block, Source
from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError

_ROWS = 16  # of a split
_MOST_CHANNELS = 4  # whose meaning is known: grey or colour, with or without transparency
_CHUNKS = 3  # they are taken from: the first, the middle one and the last
_MOST_RUNS, _ENOUGH_SECONDS = 3, 0.1  # in which the work on them is timed


@dataclasses.dataclass(frozen=True)
class Sample:
    """What some rows of each split say about all rows.

    Attributes:
      images: how images will be stored.
      record_bytes: {split: mean size of a record with its container}.
      source_bytes: {split: mean size of an image in the source}; a missing split counts as small.
      seconds: processor time that all rows take, an estimate.
    """

    images: ImageOptions
    record_bytes: dict[str, float]
    source_bytes: dict[str, float]
    seconds: float


def take(source: Source, encoding: str, size: tuple[int, int] | None, channels: int, max_rejects: int = 0) -> Sample:
    """Reads some rows of each split and makes records of them.

    Args:
      source: an open source.
      encoding: `source`, `raw`, `png` or `jpeg`.
      size: (height, width) to resize to, or None.
      channels: 1 or 3, or 0: as the rows have.
      max_rejects: rows that may be invalid: so many of the sampled images may have another size than raw images get.

    Raises:
      UsageError: a flag cannot be followed with this source.
      DataError: none of the rows is valid, or raw images would differ in size. Like bad data anywhere else in the
        source, so that the exit code does not depend on which rows are sampled.
    """
    blocks = {split: source.read(split, _some_rows(source, split)) for split in source.splits}
    options = _image_options(source, list(blocks.values()), encoding, size, channels, max_rejects)
    sizes, seconds = {}, 0.0
    for split, block in blocks.items():
        sizes[split], taken = _timed(functools.partial(_record_bytes, source, split, block, options))
        seconds += taken / len(block.labels) * source.splits[split]
    source_bytes = {split: sum(map(_bytes_of, block.images)) / len(block.labels) for split, block in blocks.items()}
    return Sample(options, sizes, source_bytes, seconds)


def _record_bytes(source: Source, split: str, block: Block, options: ImageOptions) -> float:
    """Makes the records of a block and returns their mean size."""
    chosen = select(block, len(source.class_names), options)
    if not len(chosen.rows.labels):
        file, row = source.where(split, int(_some_rows(source, split)[0]))
        raise DataError(
            f"{file}, row {row}: {chosen.bad[0]}; sampled {count_of(len(chosen.bad), 'row')}: none is valid"
        )
    records = make_records(chosen.rows)
    return len(records.data) / records.count


def _timed(work: Callable[[], float]) -> tuple[float, float]:
    """Returns the result of some work, and the processor time of its fastest run: the first also loads and caches."""
    taken: list[float] = []
    while len(taken) < _MOST_RUNS and sum(taken) < _ENOUGH_SECONDS:
        began = time.thread_time()  # other programs do not count: they would slow more processes down as well
        result = work()
        taken.append(time.thread_time() - began)
    return result, min(taken)


def _bytes_of(image: bytes | NDArray[np.uint8]) -> int:
    return len(image) if isinstance(image, bytes) else image.nbytes


def _some_rows(source: Source, split: str) -> NDArray[np.int64]:
    count, chunks = source.splits[split], source.chunks(split)
    if chunks is None:
        return np.unique(np.linspace(0, count - 1, _ROWS).astype(np.int64))
    firsts = np.cumsum(chunks) - chunks
    filled = np.flatnonzero(chunks)
    chosen = np.unique(filled[np.linspace(0, len(filled) - 1, _CHUNKS).astype(np.int64)])
    return np.concatenate([np.arange(min(chunks[c], _ROWS // _CHUNKS)) + firsts[c] for c in chosen])


def _image_options(
    source: Source, blocks: list[Block], encoding: str, size: tuple[int, int] | None, channels: int, max_rejects: int
) -> ImageOptions:
    if source.image_shape is not None:
        shapes = Counter([source.image_shape])
        encoding = "raw" if encoding == "source" else encoding
    else:
        shapes = Counter(itertools.chain.from_iterable(_shapes(block) for block in blocks))
        if encoding == "source" and (size or channels):
            flag = "--resize" if size else "--channels"
            raise UsageError(f"{flag}: changes the images, so give --image_encoding=raw, png or jpeg with it")
    own = max((shape[2] for shape in shapes), default=3)
    if channels not in (0, own) and own > _MOST_CHANNELS:
        raise UsageError(f"--channels={channels}: images of {own} channels cannot be converted to that")
    channels = channels or own
    if channels not in (1, 3) and (encoding != "raw" or size):
        flag = "--resize" if size else f"--image_encoding={encoding}"
        raise UsageError(f"{flag}: images of {channels} channels can only be stored raw, as large as they are")
    if encoding != "raw":
        return ImageOptions(encoding, channels, size)
    sizes: Counter[tuple[int, int]] = Counter()
    for (height, width, _), count in shapes.items():
        sizes[height, width] += count
    usual = sizes.most_common(1)[0] if sizes else ((1, 1), 0)
    if size is None and sizes.total() - usual[1] > max_rejects:
        text = ", ".join(sorted(f"{height}x{width}" for height, width in sizes)[:3])
        raise DataError(
            f"--image_encoding=raw: the images differ in size ({text}, ...); give --resize=HxW, or png, jpeg or source"
        )
    height, width = size or usual[0]
    return ImageOptions(encoding, channels, size, (height, width, channels))


def _shapes(block: Block) -> list[tuple[int, int, int]]:
    found = []
    for image in block.images:
        try:
            opened = images.open_file(bytes(image))
        except BadImageError:
            continue
        found.append((*images.upright_size(opened), images.channels_of(opened)))
    return found
