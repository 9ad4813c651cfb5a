"""`input_fn`: a data set of ours as `tf.data`, in the order that docs/order.md fixes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pipeline import manifest as manifests
from pipeline import order as orders
from pipeline.errors import UsageError, unknown
from pipeline.order import SHUFFLE_BYTES, Order, OrderSpec
from pipeline.sharding import InputContext, Shard, as_shard
from pipeline.splits import Selection, select

if TYPE_CHECKING:
    import tensorflow as tf

    from pipeline.manifest import Manifest
    from pipeline.recipes.own import UserDistort

PathLike = str | os.PathLike[str]


def steps_per_epoch(data_dir: PathLike, split: str = "train", *, global_batch_size: int, remainder: str = "pad") -> int:
    """Returns T, the steps of an epoch: the same on every replica and in every epoch.

    Raises:
      DataError: no valid data set in `data_dir`.
      UsageError: an unknown split or remainder, or no step in an epoch.
    """
    spec = order_spec(data_dir, split, global_batch_size=global_batch_size, training=False, remainder=remainder)
    manifest = manifests.load(data_dir)
    return _order(spec, manifest, select(manifest, split)).steps_per_epoch


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
    manifest = manifests.load(data_dir)
    selection = select(manifest, split)
    if remainder not in orders.REMAINDERS:
        raise unknown("remainder", str(remainder), orders.REMAINDERS)
    if not -(1 << 63) <= seed < 1 << 63:
        raise UsageError(f"seed={seed}: must fit in a signed 64-bit integer")
    if shuffle_bytes < 1:
        raise UsageError(f"shuffle_bytes={shuffle_bytes}: must be 1 or more")
    if streams is None:
        decoded = selection.num_examples * _record_bytes(manifest)
        streams = orders.default_streams(decoded, global_batch_size, shuffle_bytes)
    if not training:
        streams = 1
    spec = OrderSpec(
        manifest.digest, selection.text, seed, global_batch_size, streams, shuffle_bytes, remainder, training
    )
    _order(spec, manifest, selection)  # raises where the spec cannot work
    return spec


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
    for local replica i % local_replicas, G / R rows. Shapes are static and full at every step.

    Args:
      data_dir: a folder that `beam_jobs.convert` made.
      split: a split or a slice of one, as in TFDS: `train`, `train[:90%]`, `train[10000:]`, `train[:10%]+test`.
      global_batch_size: G, rows of a step over all replicas.
      training: True: shuffled and distorted. False: in the stored order, with the recipe's evaluation twin.
      seed: of the order and the distortions.
      start_step: the global step to begin at; costs no reading, whatever it is.
      epochs: the run's length, counted from step 0; None: endless when training, else 1.
      distort: a recipe (`cifar10_tutorial`, `pad_crop_flip(pad=4)`, `shift(pixels=2)`, `none`), or a function of
        (images uint8 (rows, height, width, channels), keys uint64 (rows,)) with `pipeline.uniform(keys, draw)` for its
        random numbers; it is called in evaluation too. None: the images as stored, uint8.
      remainder: `pad`: the last step of an epoch is filled with copies of weight 0; `drop`: it is left out.
      weights: `mask`: 1 real, 0 padding. `mean`: G / real rows instead of 1, so that Keras' mean over the batch size is
        the mean over the real rows.
      streams: K; None: 1 where the decoded split fits `shuffle_bytes`, else the largest divisor of G up to 64.
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

    spec = order_spec(
        data_dir,
        split,
        global_batch_size=global_batch_size,
        training=training,
        seed=seed,
        remainder=remainder,
        streams=streams,
        shuffle_bytes=shuffle_bytes,
    )
    manifest = manifests.load(data_dir)
    selection = select(manifest, split)
    order = _order(spec, manifest, selection)
    _check_fits(order, spec)
    if weights not in ("mask", "mean"):
        raise unknown("weights", str(weights), ("mask", "mean"))
    return make_dataset(
        data_dir,
        manifest,
        selection,
        order,
        shard=as_shard(shard),
        first_step=start_step,
        last_step=_last_step(order, start_step, epochs),
        distort=distort,
        weights=weights,
        record_ids=record_ids,
    )


def _record_bytes(manifest: Manifest) -> int:
    height, width, channels = manifest.image_shape
    return height * width * channels


def _order(spec: OrderSpec, manifest: Manifest, selection: Selection) -> Order:
    counts = tuple(segment.num_examples for segment in selection.segments)
    return orders.make_order(spec, counts, _record_bytes(manifest))


def _check_fits(order: Order, spec: OrderSpec) -> None:
    if order.windows > 1:
        raise UsageError(
            f"split {spec.split!r}: its decoded images do not fit shuffle_bytes={spec.shuffle_bytes} and reading in "
            f"windows is not available yet; give shuffle_bytes={spec.shuffle_bytes * order.windows} or more"
        )


def _last_step(order: Order, start_step: int, epochs: int | None) -> int | None:
    if start_step < 0:
        raise UsageError(f"start_step={start_step}: must be 0 or more")
    if epochs is None:
        if order.training:
            return None
        epochs = 1
    last = epochs * order.steps_per_epoch
    if epochs < 1 or start_step > last:
        raise UsageError(f"start_step={start_step}, epochs={epochs}: {epochs} epochs end at step {last}")
    return last
