"""Composes `input_fn`'s dataset: request -> feed -> reader -> resident or windowed -> batches."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from pipeline.batch.components import choose
from pipeline.batch.dataset import Run, resident, windowed
from pipeline.batch.decoded_split import load
from pipeline.errors import UsageError
from pipeline.order.feed import Feed, make_feed
from pipeline.order.order import OrderSpec
from pipeline.order.sharding import as_shard
from pipeline.order.tensors import TENSORS
from pipeline.read import memory
from pipeline.read.graph_reader import GraphReader
from pipeline.request import Request
from pipeline.resolved import resolve


def make_dataset(request: Request) -> tf.data.Dataset:
    """Returns the dataset that `input_fn` documents.

    Raises:
      DataError, UsageError: as `input_fn`.
    """
    resolved = resolve(request)
    feed, order = make_feed(resolved.order, as_shard(request.shard), TENSORS), resolved.order
    run = Run(feed, request.start_step, resolved.last_step())
    with tf.device("CPU:0"):
        reader, batches = choose(resolved)
        if isinstance(reader, GraphReader):
            dataset = windowed(run, batches, reader)
        elif order.windows == 1 and len(feed.streams) == order.streams:
            columns, batches = load(reader, batches)
            dataset = resident(run, batches, columns)
        else:
            _check_memory(resolved.spec, feed)
            dataset = windowed(run, batches, reader)
    if batches.recipe is not None:
        _check_rows(dataset, feed.replica_rows)
    return dataset


def _check_memory(spec: OrderSpec, feed: Feed) -> None:
    """Raises UsageError where the machine, or the container, has too little for this window and the next."""
    needed, limit = 2 * feed.window_records * spec.record_bytes, memory.available()
    if needed > limit:
        raise UsageError(
            f"shuffle_bytes={spec.shuffle_bytes}, {len(feed.streams)} of {spec.streams} streams: needs "
            f"{needed >> 20:,} MiB on this worker, which has {limit >> 20:,} MiB; give a smaller shuffle_bytes "
            "(another order), or more workers"
        )


def _check_rows(dataset: tf.data.Dataset, rows: int) -> None:
    """Raises UsageError where the user's own function returned anything but a tensor of as many rows."""
    spec: Any = dataset.element_spec[0]
    spec = spec["image"] if isinstance(spec, dict) else spec
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None or spec.shape[:1] != [rows]:
        raise UsageError(
            f"distort: the function must return a tensor of {rows} rows, as many as it gets; it returned {spec}"
        )
