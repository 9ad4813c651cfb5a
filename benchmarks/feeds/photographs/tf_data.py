"""`tf.data` over the same shards: cropped one by one, then augmented one by one or a whole batch at a time.

What follows the crop is what Keras has for `tf.data`: its layer RandAugment, which computes each of its operations and
takes one. TensorFlow decodes and resizes images one at a time only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import inputs
from benchmarks.feeds.feed import Setting
from benchmarks.feeds.photographs import AREA, BINS, MAGNITUDE, MEAN, OPERATIONS, SHAPE, SIZE, STD, touching
from benchmarks.rounds import Take
from pipeline import manifest

PACKAGES = ("tensorflow", "keras")
MODULES = ("tensorflow",)
DISTORTS = "sample_distorted_bounding_box, decode_and_crop_jpeg, resize (not antialiased), keras.layers.RandAugment"


def prepare(setting: Setting) -> None:
    """Has nothing to do: it reads the shards of `data_dir`."""


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
    finish = finisher(tf, setting.distorted)

    def batch(serialized: Any) -> tuple[Any, Any]:
        found = tf.io.parse_example(serialized, features)
        spec = tf.TensorSpec((SIZE, SIZE, 3), tf.uint8)
        crops = tf.map_fn(lambda image: cropped(tf, image), found["image"], fn_output_signature=spec)
        return finish(crops), found["label"]

    batches = records.batch(setting.rows, drop_remainder=True).map(batch, num_parallel_calls=tf.data.AUTOTUNE)
    return _taking(tf, batches, setting.rows)


def one_by_one(tf: Any, found: Any, setting: Setting) -> Take:
    """Returns a Take of batches of a dataset of (JPEG, label)."""
    finish = finisher(tf, setting.distorted)
    examples = found.map(lambda image, label: (finish(cropped(tf, image)), label), num_parallel_calls=tf.data.AUTOTUNE)
    return _taking(tf, examples.batch(setting.rows, drop_remainder=True), setting.rows)


def cropped(tf: Any, image: Any) -> Any:
    """Returns a random part of a JPEG, decoded alone, as uint8 (SIZE, SIZE, 3)."""
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(image),
        tf.constant([0.0, 0.0, 1.0, 1.0], shape=(1, 1, 4)),
        aspect_ratio_range=SHAPE,
        area_range=AREA,
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    part = tf.image.decode_and_crop_jpeg(image, tf.concat([begin[:2], size[:2]], 0), channels=3)
    return tf.cast(tf.round(tf.ensure_shape(tf.image.resize(part, (SIZE, SIZE)), (SIZE, SIZE, 3))), tf.uint8)


def finisher(tf: Any, distorted: bool) -> Callable[[Any], Any]:
    """Returns a function that mirrors an image or a batch, and distorts it where it is asked to."""
    if not distorted:
        return tf.image.random_flip_left_right
    import keras  # noqa: PLC0415

    augment = keras.layers.RandAugment((0, 255), OPERATIONS, MAGNITUDE / (BINS - 1))

    def finish(images: Any) -> Any:
        images = augment(tf.image.random_flip_left_right(images), training=True)
        return (tf.cast(images, tf.float32) - MEAN) / STD

    return finish


def _values(example: dict[str, Any]) -> tuple[Any, Any]:
    return example["image"], example["label"]


def _taking(tf: Any, batches: Any, rows: int) -> Take:
    found = batches.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()
    return touching(lambda: next(found)[0], rows)
