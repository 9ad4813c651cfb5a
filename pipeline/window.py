"""Loads the examples of a selection into memory, where a batch is one gather."""

from __future__ import annotations

import os

import numpy as np

from pipeline.decode import Examples, decode_shard
from pipeline.read import read_shard
from pipeline.splits import Segment, Selection


def load_window(data_dir: str | os.PathLike[str], selection: Selection, image_shape: tuple[int, int, int]) -> Examples:
    """Returns all examples of a selection; row i is record id i.

    Memory: the decoded examples and one shard.

    Raises:
      DataError: a shard is missing, changed or corrupt.
    """
    images = np.empty((selection.num_examples, *image_shape), np.uint8)
    labels = np.empty(selection.num_examples, np.int64)
    keys, first = [], 0
    for segment in selection.segments:
        part = _load_segment(data_dir, segment, image_shape)
        rows = slice(first, first + segment.num_examples)
        images[rows], labels[rows] = part.images, part.labels
        keys.append(part.keys)
        first = rows.stop
    return Examples(images, labels, np.concatenate(keys))


def _load_segment(data_dir: str | os.PathLike[str], segment: Segment, image_shape: tuple[int, int, int]) -> Examples:
    part = decode_shard(read_shard(data_dir, segment.shard), segment.shard, image_shape)
    rows = slice(segment.start, segment.stop)
    return Examples(part.images[rows], part.labels[rows], part.keys[rows])
