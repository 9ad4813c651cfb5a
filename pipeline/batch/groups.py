"""How many consecutive elements of a window are made by one call: a group (docs/reading.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from pipeline.batch.batches import Batches
from pipeline.decode.forms import PixelRows
from pipeline.distort.base import Recipe, Undistorted, UserDistorted, output_spec
from pipeline.order.feed import Feed

_ROWS = 1024  # of a group: more gain nothing
_BYTES = 16 << 20  # 16 MiB: of a group's images, before or after the distortion


def group_size(feed: Feed, batches: Batches, columns: Mapping[str, Any]) -> int:
    """Returns how many elements one call makes.

    It is 1 where an element has as many rows as a group; where examples are decoded or parsed for each element; for
    features that vary in length; and for the user's own function, which gets one batch at a time.

    Args:
      feed: what is fed.
      batches: how.
      columns: of a window, or their specs.
    """
    form, recipe = batches.form, Undistorted() if batches.on_device else batches.recipe
    if not isinstance(form, PixelRows) or recipe is None or isinstance(recipe, UserDistorted):
        return 1
    if not all(isinstance(column, tf.Tensor | tf.TensorSpec) for column in columns.values()):
        return 1
    rows = min(_ROWS, _BYTES // _image_bytes(recipe, form.image_shape))
    most = max(1, rows // feed.replica_rows)
    # Groups of one size, the last of which is full or nearly so: what it lacks is made for nothing.
    elements = -(-feed.order.steps_per_epoch // feed.order.windows) * feed.local_replicas
    return -(-elements // -(-elements // most))


def _image_bytes(recipe: Recipe, shape: tuple[int, int, int]) -> int:
    stored = math.prod(shape)
    if isinstance(recipe, Undistorted):
        return stored
    given = output_spec(recipe, shape)
    return max(stored, math.prod(given.shape) * given.dtype.size)
