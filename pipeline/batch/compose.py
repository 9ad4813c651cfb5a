"""Composes `input_fn`'s dataset: request -> feed -> reader -> resident or windowed -> batches -> joined."""

from __future__ import annotations

import tensorflow as tf

from pipeline.batch.components import choose
from pipeline.batch.dataset import Run, resident, windowed
from pipeline.batch.decoded_split import load
from pipeline.batch.joining import joined
from pipeline.commands.text import size_of
from pipeline.errors import UsageError
from pipeline.mixture import check_replicas, of_source, resolve_all
from pipeline.order.feed import Feed, make_feed
from pipeline.order.order import OrderSpec
from pipeline.order.sharding import as_shard
from pipeline.order.tensors import TENSORS
from pipeline.read import memory
from pipeline.read.graph_reader import GraphReader
from pipeline.request import Request
from pipeline.resolved import ResolvedRequest


def make_dataset(request: Request) -> tf.data.Dataset:
    """Returns the dataset that `input_fn` documents.

    Raises:
      DataError, UsageError: as `input_fn`.
    """
    if shard := as_shard(request.shard):
        check_replicas(request, shard.num_replicas)
    mixture, datasets = resolve_all(request), []
    for part, source in zip(mixture.parts, request.sources or (None,), strict=True):
        with of_source(request, source):
            datasets.append(_of(part))
    if not request.sources:
        return datasets[0]
    with tf.device("CPU:0"):
        return joined(mixture, datasets)


def _of(resolved: ResolvedRequest) -> tf.data.Dataset:
    """Returns the dataset of one data set."""
    request = resolved.request
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
