"""`tf.data` over the same shards: one example at a time, or records parsed, flipped and normalised as a whole batch.

TensorFlow decodes and resizes one image at a time, and RandAugment also works per image; for a whole batch they are
mapped over its images.
"""

from __future__ import annotations

import math
from typing import Any

from benchmarks import inputs
from benchmarks.feeds.feed import Setting
from benchmarks.feeds.photographs import AREA, MEAN, SHAPE, SIZE, STD, tf_randaugment, touching
from benchmarks.rounds import Take
from pipeline import manifest

PACKAGES = ("tensorflow",)
MODULES = ("tensorflow",)
AUGMENTS = "decode_and_crop_jpeg, resize (not antialiased), RandAugment by switch_case"


def prepare(setting: Setting) -> None:
    """Does nothing: the contestant reads the shards in `data_dir`."""


def take(setting: Setting) -> Take:
    """Returns a Take of a batch."""
    tf = inputs.load_tensorflow()
    count = manifest.load(setting.data_dir).split("train").num_examples
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    records = tf.data.TFRecordDataset(inputs.train_files(setting.data_dir), num_parallel_reads=tf.data.AUTOTUNE)
    records = records.shuffle(count).repeat()
    if not setting.options.get("whole"):
        found = records.map(lambda one: _values(tf.io.parse_single_example(one, features)), tf.data.AUTOTUNE)
        return one_by_one(tf, found, setting)

    def batch(serialized: Any) -> tuple[Any, Any]:
        found = tf.io.parse_example(serialized, features)
        spec = tf.TensorSpec((SIZE, SIZE, 3), tf.uint8)
        images = tf.map_fn(lambda one: cropped(tf, one, setting.augmented), found["image"], fn_output_signature=spec)
        return finished(tf, images, setting.augmented), found["label"]

    batches = records.batch(setting.rows, drop_remainder=True).map(batch, num_parallel_calls=tf.data.AUTOTUNE)
    return _taking(tf, batches, setting.rows)


def one_by_one(tf: Any, found: Any, setting: Setting) -> Take:
    """Returns a Take of batches from a dataset of (JPEG, label)."""

    def example(image: Any, label: Any) -> tuple[Any, Any]:
        return finished(tf, cropped(tf, image, setting.augmented), setting.augmented), label

    examples = found.map(example, num_parallel_calls=tf.data.AUTOTUNE)
    return _taking(tf, examples.batch(setting.rows, drop_remainder=True), setting.rows)


def cropped(tf: Any, image: Any, augmented: bool) -> Any:
    """Returns a random part of a JPEG, decoding only that part, with RandAugment if wanted, uint8 (SIZE, SIZE, 3)."""
    part = tf.image.decode_and_crop_jpeg(image, _random_box(tf, image), channels=3)
    pixels = tf.cast(tf.round(tf.ensure_shape(tf.image.resize(part, (SIZE, SIZE)), (SIZE, SIZE, 3))), tf.uint8)
    return tf_randaugment.augmented(tf, pixels) if augmented else pixels


def _random_box(tf: Any, image: Any) -> Any:
    """Returns the result of `photographs.random_box`, int32 (4,).

    Not `sample_distorted_bounding_box`: it draws heights uniformly where all others draw areas, so that its parts have
    0.35 of a photograph of 3000x2000 on average instead of 0.51, which is less work.
    """
    sides = tf.cast(tf.io.extract_jpeg_shape(image)[:2], tf.float32)
    drawn = tf.random.uniform([4])
    area = tf.reduce_prod(sides) * (AREA[0] + drawn[0] * (AREA[1] - AREA[0]))
    log_shape = math.log(SHAPE[0]) + drawn[1] * math.log(SHAPE[1] / SHAPE[0])
    size = tf.clip_by_value(tf.round(tf.sqrt(area * tf.exp(log_shape * [-1.0, 1.0]))), 1.0, sides)
    begin = tf.floor(drawn[2:] * (sides - size + 1.0))
    return tf.cast(tf.concat([begin, size], 0), tf.int32)


def finished(tf: Any, images: Any, augmented: bool) -> Any:
    """Returns an image or a batch after random mirroring, normalised if wanted."""
    images = tf.image.random_flip_left_right(images)
    return (tf.cast(images, tf.float32) - MEAN) / STD if augmented else images


def _values(example: dict[str, Any]) -> tuple[Any, Any]:
    return example["image"], example["label"]


def _taking(tf: Any, batches: Any, rows: int) -> Take:
    found = batches.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()
    return touching(lambda: next(found)[0], rows)
