"""Composes `input_fn`'s dataset: source -> feed -> resident or windowed -> batches."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from pipeline.batch.batches import Batches
from pipeline.batch.dataset import Run, resident, windowed
from pipeline.batch.source import load, make_source
from pipeline.content import Content
from pipeline.decode.forms import Form
from pipeline.distort.base import ImageStatistics
from pipeline.errors import UsageError
from pipeline.manifest.storage import PathLike
from pipeline.order.order import Order, check_replicas
from pipeline.order.order_tf import Feed
from pipeline.order.sharding import Shard
from pipeline.ordered_split import OrderedSplit
from pipeline.read import memory
from pipeline.read.corruption import Corruption


def make_dataset(
    data_dir: PathLike,
    split: OrderedSplit,
    content: Content,
    corruption: Corruption,
    *,
    shard: Shard | None,
    first_step: int,
    last_step: int,
    weights: str,
    record_ids: bool,
) -> tf.data.Dataset:
    """Returns the dataset that `input_fn` documents, from `first_step` to before `last_step`; MAX_STEP is endless."""
    manifest, order = split.manifest, split.order
    feed = make_feed(order, shard)
    with tf.device("CPU:0"):
        source = make_source(data_dir, manifest, split.selection, content, corruption, order.training)

        def batches(form: Form) -> Batches:
            statistics = ImageStatistics(manifest.image_mean, manifest.image_std)
            return Batches(order, form, statistics, source.recipe, weights, record_ids)

        run = Run(feed, first_step, last_step)
        if source.local is not None and order.windows == 1 and len(feed.streams) == order.streams:
            columns, form = load(source, source.local, split.selection)
            dataset = resident(run, batches(form), columns)
        else:
            if source.local is not None:  # else the memory is another machine's
                _check_memory(split, feed)
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


def _check_memory(split: OrderedSplit, feed: Feed) -> None:
    spec = split.spec
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
