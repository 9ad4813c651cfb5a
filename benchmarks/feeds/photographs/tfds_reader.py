"""TensorFlow Datasets over the same shards: encoded images cached and shuffled, then cropped one by one."""

from __future__ import annotations

from benchmarks import inputs
from benchmarks.feeds.feed import Setting
from benchmarks.feeds.photographs import tf_data
from benchmarks.rounds import Take
from pipeline import manifest

PACKAGES = ("tensorflow-datasets", "tensorflow")
MODULES = ("tensorflow_datasets",)
AUGMENTS = tf_data.AUGMENTS
DOCS = "https://www.tensorflow.org/datasets/decode"


def prepare(setting: Setting) -> None:
    """Does nothing: `data_dir` contains the metadata files that TFDS reads."""


def take(setting: Setting) -> Take:
    """Returns a Take of a batch."""
    tf = inputs.load_tensorflow()
    import tensorflow_datasets as tfds  # noqa: PLC0415

    count, encoded = manifest.load(setting.data_dir).split("train").num_examples, {"image": tfds.decode.SkipDecoding()}
    builder = tfds.builder_from_directory(setting.data_dir)
    dataset = builder.as_dataset(split="train", shuffle_files=True, decoders=encoded).cache().shuffle(count).repeat()
    return tf_data.one_by_one(tf, dataset.map(lambda one: (one["image"], one["label"])), setting)
