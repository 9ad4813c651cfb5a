"""`input_fn`: a data set as `tf.data`, in the order that docs/order.md defines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline import resolved
from pipeline.commands import quiet
from pipeline.order.order import MixtureSpec, OrderSpec
from pipeline.request import EpochOptions, OrderOptions, Request, Taking

if TYPE_CHECKING:
    import tensorflow as tf


@Taking(EpochOptions)
def steps_per_epoch(options: EpochOptions) -> int:
    """Returns T, the steps per epoch, which are the same on every replica and in every epoch.

    A mixture's epochs are its first source's. Under a schedule they keep the number of steps that the first segment
    gives, although the source's own epochs get shorter or longer.

    Args:
      data_dir, split, global_batch_size, remainder, classes, where, limit, balance, weigh, schedule: see `input_fn`.

    Raises:
      DataError: no valid data set in `data_dir`.
      UsageError: an unknown split or remainder, a view that cannot work, or an epoch without a step.
    """
    return resolved.steps_per_epoch(Request(**vars(options), training=True))


@Taking(OrderOptions)
def order_spec(options: OrderOptions) -> OrderSpec | MixtureSpec:
    """Returns the arguments of the order that `input_fn` follows, to store with a checkpoint.

    Args:
      data_dir, split, global_batch_size, training: see `input_fn`.
      seed, remainder, streams, shuffle_bytes, record_bytes: see `input_fn`.
      classes, where, limit, balance, weigh, skip_steps, schedule: see `input_fn`.
      augment, resize, parse: see `input_fn`; they matter if they change the size of an example in memory.

    Raises:
      DataError: no valid data set in `data_dir`.
      UsageError: a value cannot work.
    """
    return resolved.resolve_all(Request(**vars(options))).spec


@Taking(Request)
def input_fn(request: Request) -> tf.data.Dataset:
    """Returns batches of a split: `(images, labels, weights)`, Keras' (x, y, sample_weight).

    With `parse`, a pair that your function returns becomes `(x, y, weights)`, and Keras' triple becomes `(x, y,
    sample_weight * weights)`. Anything else becomes `(parsed, weights)`, for custom loops only: Keras' `fit` and
    `evaluate` refuse it, because they would take the weights for labels.

    Without `shard` an element is a global batch of G rows, for Keras, `strategy.experimental_distribute_dataset` or a
    loop. With `shard`, element i is step i // local_replicas for local replica i % local_replicas, of G / R rows.
    Shapes are static, and every step is full.

    Memory: a split that fits into `shuffle_bytes` is decoded once and kept. A larger one is read window by window, the
      next while the current one is consumed, which takes at most about 2 * shuffle_bytes * (this worker's streams) / K.
      Small batches are made several at a time, up to 16 MiB, and are slices of that memory (docs/reading.md, "Small
      batches").

    Args:
      data_dir: folder made by `beam_jobs.convert` or `pipeline.index`, possibly in a store, such as
        `gs://bucket/mnist`, `s3://bucket/mnist` or `hdfs://namenode:8020/mnist`. Or a mixture for training, a list of
        sources and weights, `[("a", 0.7), ("b:train[:50%]", 0.3)]`: every step has the same number of rows of each
        source. Each source has its own epochs; the run's epochs are the first source's. docs/order.md has the rules.
      split: split or slice of one, as in TFDS: `train`, `train[:90%]`, `train[10000:]`, `train[:10%]+test`; in a
        mixture, the split of sources that do not name one.
      global_batch_size: G, batch rows over all replicas.
      training: True to shuffle and augment; False for the stored order, with the recipe's evaluation twin.
      seed: seed of the order and the augmentations.
      start_step: global step to begin at; earlier steps are not read.
      epochs: length of the run, counted from step 0; None is endless when training, else 1.
      augment: recipes by name, one after another (`cifar10_tutorial`, `pad_crop_flip(pad=4) | cutout(size=8) | mixup`,
        `none`; docs/augmentation.md has all; those that mix give labels float32 (rows, classes)), or a function of
        (images uint8 (rows, height, width, channels), keys uint64 (rows,)) that returns as many rows, with
        `pipeline.uniform(keys, draw)` for its random numbers: a key is a hash of (seed, epoch, record). It is also
        called in evaluation, and gets `training` if it has an argument of this name. None for images as stored, uint8.
      augment_on: `host`: in this input. `device`: in the replicas' steps, by the function that `pipeline.augment_fn`
        returns; the first component is then a dict of `image`, uint8 as stored, and keys. `both`: the input does the
        part that keeps pixels uint8, and that function turns them into floats (docs/augmentation.md).
      copies: number of augmented copies of each record in its batch, for contrastive methods. From 2 on, images are
        (rows, copies, height, width, channels); rows, labels and weights still count records. Copy 0 is identical to
        `copies=1`; copy c has the key of (seed, epoch, record, c). Not with recipes that mix, or `parse`.
      eval_copies: number of copies in an evaluation, for test-time augmentation: copy 0 is the image as in any
        evaluation; the others are augmented by the recipe, without mixing, with the keys of (seed, 0, record, c) in
        each epoch.
      resize: `224x160` (height, width): stretch every image to this first.
      statistics: data set whose means and deviations recipes such as `normalize` use; None for this one, or the first
        source of a mixture. To evaluate another source of a mixture, give the first one.
      features: other features to feed, by name. The first component is then a dict of these and `image`. `mask`,
        `boxes` and `points` move with the image: uint8 (rows, height, width, 1) and float32 (rows, most, 4 or 2), the
        last two with weights (rows, most), 0 for what is not in the picture (docs/masks.md).
      label: name of the feature to feed as labels: `label`; or `mask`, `boxes` or `points`, of which the last two are
        dicts with their weights.
      parse: function of serialized records, string (rows,), for examples that are not images, that returns the values
        to feed, one row per record: a pair (x, y), each a tensor or a structure of them, which makes the element `(x,
        y, weights)`; (x, y, sample_weight), floating-point or bool, which makes it `(x, y, sample_weight * weights)`;
        or anything else, which makes it `(parsed, weights)` (docs/feeding.md). It is given `keys`, as in `augment`, and
        `training` if it has arguments of these names.
      remainder: `pad`: copies of weight 0 fill the last step of an epoch; `drop`: that step is left out.
      weights: `mask`: 1 for real rows, 0 for padding. `mean`: G / real rows instead of 1, so that Keras' mean over the
        batch size is the mean over the real rows; in a mixture this holds per source, so that each keeps its share.
        `none`, in evaluation: the element is (images, labels), each record is one row without padding, so that Keras'
        `loss`, `metrics` and `predict` are exact. The last batches have fewer rows; give each replica 4 or more.
      class_weight: factors of the sample weights by class, `{0: 1.0, 3: 2.5}`, in training; 1 for classes left out. As
        in Keras, losses and weighted metrics see it, and the batch size that divides the loss does not change. It
        replaces the argument of `fit`, which refuses data with weights (docs/porting.md).
      streams: K; None: 1 if the decoded split fits into `shuffle_bytes`, else the largest divisor of G up to 64, or
        more for G > 8,192 (docs/order.md, Defaults). Evaluation always has 1.
      shuffle_bytes: number of decoded bytes that are shuffled together, over the whole job.
      record_bytes: number of bytes of a decoded record by which windows and default streams are computed; None for this
        input's own. Inputs that share an order, although their images differ in size, are given the largest, such as
        224 * 224 * 3 (docs/phases.md).
      shard: replicas whose rows to return: a `tf.distribute.InputContext` or a `Shard`; None for all.
      on_corrupt: `raise`: a corrupt record is an error that names it. `skip`: its row gets weight 0 (and another
        record's values); the logger `pipeline` reports it, and `pipeline.skipped_records` lists them.
      max_corrupt: number of different records that may be skipped.
      record_ids: whether to add a last component, int64 (rows,): each row's record id, its number in the split. In a
        mixture, ids of a source follow the previous source's.
      portable: whether to read with TensorFlow's own ops, so that the dataset also runs in other processes, such as the
        workers of tf.data service; they must see `data_dir` under the same path. It is slower, and always reads by
        windows. The order of all steps is stored in the dataset, 2 to 4 bytes per row, so that training needs `epochs`.
      cache_dir: folder on a local disk for copies of a remote data set's shards, shared by all processes of this
        machine. Shards are fetched whole, ahead of their window (docs/reading.md); the order does not depend on it.
      cache_bytes: number of bytes that the copies may take; None for 90% of the free space on the disk.
      classes: classes to take, by name, `["cat", "dog"]` or `"cat,dog"`, for data whose labels are classes: their
        labels become 0, 1, ... in this order, for a head with as many outputs. Give an evaluation the same ones.
      where: records to take: an expression over the data set's columns, such as `label in ("cat", "dog") and width >=
        28`, or a function of {column: values} that returns a mask (docs/views.md). A source of a mixture may have its
        own, `("b", 0.3, {"where": "score > 0.5"})`; likewise classes, limit, balance and weigh.
      limit: number of records to take, or `500 per label`. A smaller limit takes a subset of a larger one's records.
      balance: column, such as `label`, each of whose values fills exactly the same number of rows of every epoch;
        `sqrt(label)` is half way between that and the natural share.
      weigh: column of weights: a record of weight w occurs floor(w) or ceil(w) times in an epoch, w on average. Copies
        of a record are augmented differently.
      skip_steps: pairs of a first step and the one after the last, `[(12300, 12360)]`; the rows of these steps have
        weight 0.
      schedule: weights of a mixture that change at steps, instead of those in `data_dir`: `[(0, {"a": 1, "b": 0}),
        (10_000, {"a": 0.5, "b": 0.5})]`. Sources are named as in `data_dir`; 0 gives no rows. Each source continues
        where it left off in its own epochs (docs/views.md).

    Returns:
      A dataset with known (or infinite) cardinality of images uint8 or float32 (rows, height, width, channels), with
      several copies (rows, copies, height, width, channels), labels int64 (rows,), weights float32 (rows,); with
      `parse`, of its result and weights. Weights of dense targets, of rank 3 or more or integers (rows, 2 or more),
      have as many axes, (rows, 1, ..., 1), as Keras' losses need; in `distribute` and `StepIterator` weights are always
      (rows,).

    Raises:
      DataError: no valid data set, or a shard is missing, cut short or corrupt. If that is found while iterating, it
        raises `tf.errors.OpError` with the same text.
      UsageError: an argument cannot work; the message names values that would.
    """
    with quiet.importing():
        from pipeline.batch.compose import make_dataset  # noqa: PLC0415, here because it loads TensorFlow
        from pipeline.batch.weights import for_keras  # noqa: PLC0415, likewise

    return for_keras(make_dataset(request), request)
