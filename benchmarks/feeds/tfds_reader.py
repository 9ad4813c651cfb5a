"""TensorFlow Datasets over the same shards, following its performance tips: cached, shuffled, then mapped."""

from __future__ import annotations

from benchmarks import inputs
from benchmarks.feeds.feed import Setting
from benchmarks.one_by_one import AUGMENTATIONS
from benchmarks.rounds import Take

PACKAGES = ("tensorflow-datasets", "tensorflow")
MODULES = ("tensorflow_datasets",)
AUGMENTS = "the same, image by image"
DOCS = "https://www.tensorflow.org/datasets/performances"


def prepare(setting: Setting) -> None:
    """Does nothing: `data_dir` contains the metadata files that TFDS reads."""


def take(setting: Setting) -> Take:
    """Returns a Take of whole batches inside a `tf.function`."""
    tf = inputs.load_tensorflow()
    import tensorflow_datasets as tfds  # noqa: PLC0415

    augment = AUGMENTATIONS["cifar10_tutorial" if setting.augmented else "none"]
    dataset = tfds.builder_from_directory(setting.data_dir).as_dataset(split="train", shuffle_files=True)
    dataset = dataset.cache().shuffle(10_000).repeat()
    dataset = dataset.map(lambda one: (augment(tf, one["image"]), one["label"]), num_parallel_calls=tf.data.AUTOTUNE)
    return inputs.taking_together(dataset.batch(setting.rows).prefetch(tf.data.AUTOTUNE), setting.rows)
