"""Composes `input_fn`'s dataset: source -> feed -> resident or windowed -> batches."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from pipeline.batch.batches import Batches
from pipeline.batch.dataset import Run, resident, windowed
from pipeline.batch.source import load, make_source
from pipeline.decode.forms import Form
from pipeline.distort.base import ImageStatistics
from pipeline.errors import UsageError
from pipeline.order.order import Order, OrderSpec, check_replicas
from pipeline.order.order_tf import Feed
from pipeline.order.sharding import Shard, as_shard
from pipeline.read import memory
from pipeline.request import Request
from pipeline.resolved import resolve


def make_dataset(request: Request) -> tf.data.Dataset:
    """Returns the dataset that `input_fn` documents.

    Raises:
      DataError, UsageError: as `input_fn`.
    """
    resolved, delivery = resolve(request), request.delivery
    run = Run(make_feed(resolved.order, as_shard(delivery.shard)), delivery.start_step, resolved.last_step())
    feed, order, manifest = run.feed, resolved.order, resolved.manifest
    with tf.device("CPU:0"):
        source = make_source(resolved)

        def batches(form: Form) -> Batches:
            statistics = ImageStatistics(manifest.image_mean, manifest.image_std)
            return Batches(order, form, statistics, source.recipe, delivery.weights, delivery.record_ids)

        if source.local is not None and order.windows == 1 and len(feed.streams) == order.streams:
            columns, form = load(source, source.local, resolved.selection)
            dataset = resident(run, batches(form), columns)
        else:
            if source.local is not None:  # else the memory is another machine's
                _check_memory(resolved.spec, feed)
            dataset = windowed(run, batches(source.form), source.reader)
    if source.recipe is not None:
        _check_rows(dataset, feed.replica_rows)
    return dataset


def make_feed(order: Order, shard: Shard | None) -> Feed:
    """Returns the part of every global batch that a shard feeds; None is all of it, as one replica.

    Raises:
      UsageError: the replicas do not divide the global batch.
    """
    if shard is None:
        return Feed(order, 0, 1, order.global_batch_size)
    check_replicas(order.global_batch_size, shard.num_replicas)
    rows = order.global_batch_size // shard.num_replicas
    return Feed(order, shard.index * shard.local_replicas * rows, shard.local_replicas, rows)


def _check_memory(spec: OrderSpec, feed: Feed) -> None:
    what = f"shuffle_bytes={spec.shuffle_bytes}, {len(feed.streams)} of {spec.streams} streams"
    memory.check_fits(2 * feed.window_records * spec.record_bytes, what)


def _check_rows(dataset: tf.data.Dataset, rows: int) -> None:
    """Raises UsageError where the user's own function gave something else than a tensor of as many rows."""
    spec: Any = dataset.element_spec[0]
    spec = spec["image"] if isinstance(spec, dict) else spec
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None or spec.shape[:1] != [rows]:
        raise UsageError(
            f"distort: the function must return a tensor of {rows} rows, as many as it gets; it gives {spec}"
        )
