"""Composes the `tf.data` pipeline: epochs -> order -> steps -> batches."""

from __future__ import annotations

import os

import tensorflow as tf

from pipeline import order_tf
from pipeline.batch import Batches
from pipeline.errors import UsageError
from pipeline.manifest import Manifest
from pipeline.order import MAX_STEP, Order, replica_rows
from pipeline.ordered_split import OrderedSplit
from pipeline.recipes import make_recipe
from pipeline.recipes.base import ImageStatistics, Recipe
from pipeline.recipes.own import Own, UserDistort
from pipeline.sharding import Shard
from pipeline.window import load_window

_READY = 4  # elements made ahead: enough to hide the sorting of the next epoch's order


def make_dataset(
    data_dir: str | os.PathLike[str],
    source: OrderedSplit,
    *,
    shard: Shard | None,
    first_step: int,
    last_step: int,
    distort: str | UserDistort | None,
    weights: str,
    record_ids: bool,
) -> tf.data.Dataset:
    """Returns the dataset that `input_fn` documents, from `first_step` to before `last_step`; MAX_STEP is endless."""
    manifest, order = source.manifest, source.order
    rows = [_replica_rows(order, shard, local) for local in range(shard.local_replicas if shard else 1)]
    recipe = _recipe(distort, manifest)
    window = load_window(data_dir, source.selection, manifest.image_shape)
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
    _check_rows(dataset, rows[0][1] - rows[0][0])
    options = tf.data.Options()
    options.deterministic = True
    # Rewriting the graph would copy the captured images: the split would lie in memory twice. There is nothing to gain:
    # the maps are parallel and prefetched as they stand.
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = False
    # The global batch is made whole on every worker, so a worker takes its rows of it; FILE would ask for files.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.with_options(options)


def _recipe(distort: str | UserDistort | None, manifest: Manifest) -> Recipe:
    if callable(distort):
        return Own(distort)
    if not isinstance(distort, str | None):
        raise UsageError(f"distort={distort!r}: must be a recipe's name, a function of (images, keys), or None")
    recipe = make_recipe("none" if distort is None else distort)
    recipe.check(manifest.image_shape)
    return recipe


def _check_rows(dataset: tf.data.Dataset, rows: int) -> None:
    """Raises UsageError where the user's own function gave something else than a tensor of as many rows."""
    spec = dataset.element_spec[0]
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None or spec.shape[:1] != [rows]:
        raise UsageError(
            f"distort: the function must return a tensor of {rows} rows, as many as it gets; it gives {spec}"
        )


def _replica_rows(order: Order, shard: Shard | None, local_replica: int) -> tuple[int, int]:
    if shard is None:
        return replica_rows(0, 1, order.global_batch_size)
    return shard.replica_rows(local_replica, order.global_batch_size)


def _elements(batches: Batches, rows: list[tuple[int, int]], first_step: int, last_step: int) -> tf.data.Dataset:
    order, replicas = batches.order, len(rows)
    steps = order.steps_per_epoch

    def with_order(epoch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return epoch, order_tf.records_by_position(order, epoch)

    def elements_of(epoch: tf.Tensor, by_position: tf.Tensor) -> tf.data.Dataset:
        first = tf.where(epoch == first_step // steps, tf.constant(first_step % steps, tf.int64), 0)
        numbers = tf.data.Dataset.range(first * replicas, steps * replicas)
        return tf.data.Dataset.zip(tf.data.Dataset.from_tensors((epoch, by_position)).repeat(), numbers)

    epochs = tf.data.Dataset.range(first_step // steps, -(-last_step // steps))
    dataset = epochs.map(with_order).prefetch(1).flat_map(elements_of)
    dataset = dataset.map(batches.element_maker(rows), num_parallel_calls=tf.data.AUTOTUNE)
    count = tf.data.INFINITE_CARDINALITY if last_step == MAX_STEP else (last_step - first_step) * replicas
    return dataset.apply(tf.data.experimental.assert_cardinality(count)).prefetch(_READY)
