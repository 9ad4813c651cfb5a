"""Composes the `tf.data` pipeline: epochs -> order -> steps -> batches."""

from __future__ import annotations

import os

import tensorflow as tf

from pipeline import order_tf
from pipeline.batch import Batches
from pipeline.manifest import Manifest
from pipeline.order import Order, replica_rows
from pipeline.recipes import make_recipe
from pipeline.recipes.base import ImageStatistics, Recipe
from pipeline.recipes.own import Own, UserDistort
from pipeline.sharding import Shard
from pipeline.splits import Selection
from pipeline.window import load_window

_ENDLESS = (1 << 62) - 1  # a step that no run reaches
_READY = 4  # elements made ahead: enough to hide the sorting of the next epoch's order


def make_dataset(
    data_dir: str | os.PathLike[str],
    manifest: Manifest,
    selection: Selection,
    order: Order,
    *,
    shard: Shard | None,
    first_step: int,
    last_step: int | None,
    distort: str | UserDistort | None,
    weights: str,
    record_ids: bool,
) -> tf.data.Dataset:
    """Returns the dataset that `input_fn` documents; `last_step` None is endless."""
    rows = [_replica_rows(order, shard, local) for local in range(shard.local_replicas if shard else 1)]
    recipe = _recipe(distort, manifest)
    window = load_window(data_dir, selection, manifest.image_shape)
    with tf.device("CPU:0"):
        batches = Batches(
            order,
            tf.constant(window.images),
            tf.constant(window.labels),
            ImageStatistics(manifest.image_mean, manifest.image_std),
            recipe,
            weights,
            record_ids,
        )
        dataset = _elements(batches, rows, first_step, last_step)
    options = tf.data.Options()
    options.deterministic = True
    # The global batch is made whole on every worker, so a worker takes its rows of it; FILE would ask for files.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.with_options(options)


def _recipe(distort: str | UserDistort | None, manifest: Manifest) -> Recipe:
    if callable(distort):
        return Own(distort)
    recipe = make_recipe(distort or "none")
    recipe.check(manifest.image_shape)
    return recipe


def _replica_rows(order: Order, shard: Shard | None, local_replica: int) -> tuple[int, int]:
    if shard is None:
        return replica_rows(0, 1, order.global_batch_size)
    return shard.replica_rows(local_replica, order.global_batch_size)


def _elements(batches: Batches, rows: list[tuple[int, int]], first_step: int, last_step: int | None) -> tf.data.Dataset:
    order, replicas = batches.order, len(rows)
    steps = order.steps_per_epoch
    end = _ENDLESS if last_step is None else last_step

    def with_order(epoch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return epoch, order_tf.records_by_position(order, epoch)

    def elements_of(epoch: tf.Tensor, by_position: tf.Tensor) -> tf.data.Dataset:
        first = tf.where(epoch == first_step // steps, tf.constant(first_step % steps, tf.int64), 0)
        numbers = tf.data.Dataset.range(first * replicas, steps * replicas)
        return tf.data.Dataset.zip(tf.data.Dataset.from_tensors((epoch, by_position)).repeat(), numbers)

    epochs = tf.data.Dataset.range(first_step // steps, -(-end // steps))
    dataset = epochs.map(with_order).prefetch(1).flat_map(elements_of)
    dataset = dataset.map(batches.element_maker(rows), num_parallel_calls=tf.data.AUTOTUNE)
    count = tf.data.INFINITE_CARDINALITY if last_step is None else (last_step - first_step) * replicas
    return dataset.apply(tf.data.experimental.assert_cardinality(count)).prefetch(_READY)
