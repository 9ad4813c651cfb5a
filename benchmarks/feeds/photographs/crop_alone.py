"""The limit: libjpeg-turbo decodes the same kind of parts of JPEGs in memory, one call per core, and nothing else."""

from __future__ import annotations

import pathlib

import numpy as np

from benchmarks import inputs
from benchmarks.feeds.feed import Setting
from benchmarks.feeds.photographs import lacks_randaugment, random_box
from benchmarks.rounds import Take

PACKAGES = ("tensorflow",)
MODULES = ("tensorflow",)
AUGMENTS = "tf.image.decode_and_crop_jpeg alone"


def prepare(setting: Setting) -> None:
    """Does nothing: the contestant reads the files."""


def take(setting: Setting) -> Take:
    """Returns a Take of as many parts as a batch has rows."""
    if setting.augmented:
        raise lacks_randaugment("libjpeg-turbo")
    tf = inputs.load_tensorflow()
    random = np.random.default_rng(1)
    paths = random.permutation(sorted(map(str, pathlib.Path(setting.arrays).glob("*/*.jpg")))).tolist()
    images = [pathlib.Path(path).read_bytes() for path in paths]
    sizes = [tuple(tf.io.extract_jpeg_shape(image)[:2].numpy()) for image in images]
    boxes = np.array([random_box(random, int(height), int(width)) for height, width in sizes], np.int32)

    def values(image: object, box: object) -> object:
        return tf.size(tf.image.decode_and_crop_jpeg(image, box, channels=3))

    parts = tf.data.Dataset.from_tensor_slices((images, boxes)).repeat()
    parts = parts.map(values, num_parallel_calls=setting.cores, deterministic=False)
    taken = iter(parts.batch(setting.rows).prefetch(1))

    def take_one() -> tuple[int, float]:
        next(taken)
        return setting.rows, 0.0

    return take_one
