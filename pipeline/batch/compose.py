"""Composes `input_fn`'s dataset: request -> feed -> reader -> resident or windowed -> batches."""

from __future__ import annotations

import tensorflow as tf

from pipeline.batch.components import choose
from pipeline.batch.dataset import Run, resident, windowed
from pipeline.batch.decoded_split import load
from pipeline.commands.text import size_of
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
    resolved.check_pairs(order.global_batch_size // feed.replica_rows)
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
    return dataset


def _check_memory(spec: OrderSpec, feed: Feed) -> None:
    """Raises UsageError where the machine, or the container, has too little for this window and the next."""
    needed, limit = 2 * feed.window_records * spec.record_bytes, memory.available()
    if needed > limit:
        raise UsageError(
            f"shuffle_bytes={spec.shuffle_bytes}, {len(feed.streams)} of {spec.streams} streams: needs "
            f"{size_of(needed)} on this worker, which has {size_of(limit)}; give a smaller shuffle_bytes "
            "(another order), or more workers"
        )
