"""`tf.data` by whole batches, as its performance guide recommends: batch, then a vectorised map."""

from __future__ import annotations

from typing import Any

from benchmarks import inputs
from benchmarks.feeds.feed import Setting
from benchmarks.rounds import Take
from pipeline import manifest

PACKAGES = ("tensorflow",)
MODULES = ("tensorflow",)
AUGMENTS = "the same, a batch at a time in plain TensorFlow operations"
_CROP = 24


def prepare(setting: Setting) -> None:
    """Does nothing: the contestant reads the shards in `data_dir`."""


def take(setting: Setting) -> Take:
    """Returns a Take of whole batches inside a `tf.function`."""
    tf, shape = inputs.load_tensorflow(), manifest.load(setting.data_dir).image_shape
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(records: Any) -> tuple[Any, Any]:
        found = tf.io.parse_example(records, features)
        images = tf.reshape(tf.io.decode_raw(found["image"], tf.uint8), (setting.rows, *shape))
        return (augmented(tf, images) if setting.augmented else images), found["label"]

    dataset = tf.data.TFRecordDataset(inputs.train_files(setting.data_dir), num_parallel_reads=tf.data.AUTOTUNE)
    dataset = dataset.repeat().shuffle(10_000).batch(setting.rows, drop_remainder=True)
    dataset = dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    return inputs.taking_together(dataset, setting.rows)


def augmented(tf: Any, images: Any) -> Any:
    """Returns images (rows, 24, 24, channels), each randomly cropped, flipped and distorted on its own."""
    rows, height, width, _ = images.shape
    places = tf.range(_CROP)[None]
    ys = tf.random.uniform((rows, 1), 0, height - _CROP + 1, tf.int32) + places
    xs = tf.random.uniform((rows, 1), 0, width - _CROP + 1, tf.int32)
    xs = xs + tf.where(tf.random.uniform((rows, 1)) < 0.5, places[:, ::-1], places)
    images = tf.cast(tf.gather(tf.gather(images, ys, axis=1, batch_dims=1), xs, axis=2, batch_dims=1), tf.float32)
    images += tf.random.uniform((rows, 1, 1, 1), -63.0, 63.0)
    mean = tf.reduce_mean(images, (1, 2), keepdims=True)
    images = (images - mean) * tf.random.uniform((rows, 1, 1, 1), 0.2, 1.8) + mean
    return tf.image.per_image_standardization(images)
