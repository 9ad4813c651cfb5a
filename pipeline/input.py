"""`input_fn`: a data set of ours as `tf.data`, in the order that docs/order.md fixes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pipeline.errors import UsageError, unknown
from pipeline.order import MAX_STEP, SHUFFLE_BYTES, Order, OrderSpec
from pipeline.ordered_split import ordered_split, whole_number
from pipeline.sharding import InputContext, Shard, as_shard

if TYPE_CHECKING:
    import tensorflow as tf

    from pipeline.recipes.own import UserDistort

PathLike = str | os.PathLike[str]
WEIGHTS = ("mask", "mean")


def steps_per_epoch(data_dir: PathLike, split: str = "train", *, global_batch_size: int, remainder: str = "pad") -> int:
    """Returns T, the steps of an epoch: the same on every replica and in every epoch.

    Raises:
      DataError: no valid data set in `data_dir`.
      UsageError: an unknown split or remainder, or no step in an epoch.
    """
    return ordered_split(
        data_dir, split, global_batch_size=global_batch_size, training=False, remainder=remainder
    ).order.steps_per_epoch


def order_spec(
    data_dir: PathLike,
    split: str = "train",
    *,
    global_batch_size: int,
    training: bool,
    seed: int = 0,
    remainder: str = "pad",
    streams: int | None = None,
    shuffle_bytes: int = SHUFFLE_BYTES,
) -> OrderSpec:
    """Returns the arguments of the order that `input_fn` follows, to be stored beside a checkpoint.

    Raises:
      DataError: no valid data set in `data_dir`.
      UsageError: a value that cannot work.
    """
    return ordered_split(
        data_dir,
        split,
        global_batch_size=global_batch_size,
        training=training,
        seed=seed,
        remainder=remainder,
        streams=streams,
        shuffle_bytes=shuffle_bytes,
    ).spec


def input_fn(
    data_dir: PathLike,
    split: str = "train",
    *,
    global_batch_size: int,
    training: bool,
    seed: int = 0,
    start_step: int = 0,
    epochs: int | None = None,
    distort: str | UserDistort | None = None,
    remainder: str = "pad",
    weights: str = "mask",
    streams: int | None = None,
    shuffle_bytes: int = SHUFFLE_BYTES,
    shard: Shard | InputContext | None = None,
    record_ids: bool = False,
) -> tf.data.Dataset:
    """Returns batches of a split: `(images, labels, weights)`, Keras' (x, y, sample_weight).

    Without `shard` an element is a global batch of G rows: give it to Keras, to
    `strategy.experimental_distribute_dataset` or iterate over it. With `shard`, element i is step i // local_replicas
    for local replica i % local_replicas, G / R rows. Shapes are static and full at every step. The decoded split
    lies in memory once, twice while it is loaded.

    Args:
      data_dir: a folder that `beam_jobs.convert` made.
      split: a split or a slice of one, as in TFDS: `train`, `train[:90%]`, `train[10000:]`, `train[:10%]+test`.
      global_batch_size: G, rows of a step over all replicas.
      training: True: shuffled and distorted. False: in the stored order, with the recipe's evaluation twin.
      seed: of the order and the distortions.
      start_step: the global step to begin at; costs no reading, whatever it is.
      epochs: the run's length, counted from step 0; None: endless when training, else 1.
      distort: a recipe (`cifar10_tutorial`, `pad_crop_flip(pad=4)`, `shift(pixels=2)`, `none`), or a function of
        (images uint8 (rows, height, width, channels), keys uint64 (rows,)) that returns as many rows, with
        `pipeline.uniform(keys, draw)` for its random numbers: a key is a hash of (seed, epoch, record). It is called in
        evaluation too. None: the images as stored, uint8.
      remainder: `pad`: the last step of an epoch is filled with copies of weight 0; `drop`: it is left out.
      weights: `mask`: 1 real, 0 padding. `mean`: G / real rows instead of 1, so that Keras' mean over the batch size is
        the mean over the real rows.
      streams: K; None: 1 where the decoded split fits `shuffle_bytes`, else the largest divisor of G up to 64.
        Evaluation has 1 always.
      shuffle_bytes: decoded bytes that are shuffled together, over the whole job.
      shard: which replicas' rows to give: a `tf.distribute.InputContext` or a `Shard`; None: all.
      record_ids: add a fourth component, int64 (rows,): each row's record id, its place in the split.

    Returns:
      A dataset with known cardinality (or infinite): images uint8 or float32 (rows, height, width, channels), labels
      int64 (rows,), weights float32 (rows,).

    Raises:
      DataError: no valid data set, or a shard that is missing, cut or corrupt.
      UsageError: an argument that cannot work; the message names the values that would.
    """
    from pipeline.dataset import make_dataset  # noqa: PLC0415, here because it loads TensorFlow

    source = ordered_split(
        data_dir,
        split,
        global_batch_size=global_batch_size,
        training=training,
        seed=seed,
        remainder=remainder,
        streams=streams,
        shuffle_bytes=shuffle_bytes,
    )
    if training:
        source.check_fits()
    if weights not in WEIGHTS:
        raise unknown("weights", str(weights), WEIGHTS)
    first_step = whole_number("start_step", start_step, 0)
    return make_dataset(
        data_dir,
        source,
        shard=as_shard(shard),
        first_step=first_step,
        last_step=_last_step(source.order, first_step, epochs),
        distort=distort,
        weights=weights,
        record_ids=record_ids,
    )


def _last_step(order: Order, start_step: int, epochs: int | None) -> int:
    if epochs is None and order.training:
        last, run = MAX_STEP, "a run without end ends"
    else:
        count = 1 if epochs is None else whole_number("epochs", epochs, 1)
        last, run = count * order.steps_per_epoch, f"{count} epochs end"
    if not start_step <= last <= MAX_STEP:
        raise UsageError(f"start_step={start_step}, epochs={epochs}: {run} at step {min(last, MAX_STEP)}")
    return last
