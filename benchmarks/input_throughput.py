"""Images per second of this input against the `tf.data` pipeline of the tutorials, in one process, as ratios.

    python -m benchmarks.input_throughput [--data_dir=DIR] [--global_batch_size=128]

Both read the same shards. The tutorials' pipeline reads, shuffles (10,000), parses, and distorts one example at a
time, in parallel maps, then batches and prefetches. Rounds alternate, so that a change of the machine's speed affects
both; the ratio is computed per round, and its median is printed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from benchmarks import inputs, rounds
from benchmarks.rounds import taking
from pipeline import manifest
from pipeline.commands import commandline

COMMAND = "benchmarks.input_throughput"
_IMAGES = 60_000  # images to make, 10,000 of them in test


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What is measured."""

    data_dir: str = ""  # CIFAR-10 as converted; default: random images of its shape, made for the run
    global_batch_size: int = 128  # rows of a batch
    rounds: int = 5  # rounds of each pipeline
    seconds: float = 2.0  # length of a round


def main(argv: Sequence[str] | None = None) -> None:
    """Prints one line per measurement."""
    config = commandline.parse(COMMAND, "Measure the input against one-by-one tf.data.", BenchmarkConfig, argv)
    with inputs.data_set(config.data_dir, lambda folder: inputs.make_cifar(folder, _IMAGES)) as data_dir:
        for distorted in (True, False):
            compare(config, data_dir, distorted)


def compare(config: BenchmarkConfig, data_dir: str, distorted: bool) -> None:
    """Measures both pipelines in turn and prints the medians and the ratio."""
    recipe = "cifar10_tutorial" if distorted else "none"
    rows = config.global_batch_size
    ours = taking(iter(inputs.train_input(data_dir, rows, distort=recipe)), rows)
    theirs = taking(iter(one_by_one(data_dir, rows, recipe)), rows)
    rounds.compare(f"{recipe}, batch {rows}", ours, {"one by one": theirs}, config.rounds, config.seconds)


def one_by_one(data_dir: str, rows: int, recipe: str):
    """Returns the tutorials' pipeline, as cifar10_input.py has it, in `tf.data`, with the distortion of a recipe."""
    tf, shape = inputs.load_tensorflow(), manifest.load(data_dir).image_shape
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(record):
        example = tf.io.parse_single_example(record, features)
        image = tf.reshape(tf.io.decode_raw(example["image"], tf.uint8), shape)
        return DISTORTIONS[recipe.partition("(")[0]](tf, image), example["label"]

    dataset = tf.data.TFRecordDataset(inputs.train_files(data_dir), num_parallel_reads=tf.data.AUTOTUNE)
    dataset = dataset.repeat().shuffle(10_000)
    return dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE).batch(rows).prefetch(tf.data.AUTOTUNE)


def tutorial(tf, image):
    """Returns one image distorted as in the CIFAR-10 tutorial."""
    image = tf.image.random_crop(tf.cast(image, tf.float32), [24, 24, image.shape[2]])
    image = tf.image.random_flip_left_right(image)
    image = tf.image.random_brightness(image, max_delta=63)
    image = tf.image.random_contrast(image, lower=0.2, upper=1.8)
    return tf.image.per_image_standardization(image)


def pad_crop_flip(tf, image):
    """Returns one image moved by up to 4 pixels and flipped by chance."""
    height, width, channels = image.shape
    padded = tf.image.resize_with_crop_or_pad(image, height + 8, width + 8)
    return tf.image.random_flip_left_right(tf.image.random_crop(padded, [height, width, channels]))


DISTORTIONS = {
    "none": lambda tf, image: image,
    "cifar10_tutorial": tutorial,
    "pad_crop_flip": pad_crop_flip,
}


if __name__ == "__main__":
    commandline.run(COMMAND, main)
