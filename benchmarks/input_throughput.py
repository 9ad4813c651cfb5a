"""Images per second of this input against the `tf.data` pipeline of the tutorials, in one process, as ratios.

    python -m benchmarks.input_throughput [--data_dir=DIR] [--global_batch_size=128]

Both read the same shards. The tutorials' pipeline reads, shuffles (10,000), parses, and distorts one example at a
time, in parallel maps, then batches and prefetches. Rounds alternate, so that a change of the machine's speed affects
both; the ratio is computed per round, and its median is printed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from benchmarks import inputs
from benchmarks.rounds import alternate, print_line, taking
from pipeline import manifest
from pipeline.commands import commandline

COMMAND = "benchmarks.input_throughput"
_IMAGES = 60_000  # images to make, 10,000 of them in test


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What is measured."""

    data_dir: str | None = None  # CIFAR-10 as converted; default: random images of its shape, made for the run
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
    tf = inputs.load_tensorflow()
    from pipeline import input_fn  # noqa: PLC0415

    recipe = "cifar10_tutorial" if distorted else "none"
    ours = iter(input_fn(data_dir, global_batch_size=config.global_batch_size, training=True, distort=recipe))
    rows, shape = config.global_batch_size, manifest.load(data_dir).image_shape
    theirs = iter(one_by_one(tf, inputs.train_files(data_dir), shape, rows, distorted))
    found = alternate({"ours": taking(ours, rows), "theirs": taking(theirs, rows)}, config.rounds, config.seconds)
    print_line(f"{recipe}, batch {rows}", found["ours"], found["theirs"], "one by one")


def one_by_one(tf, files: list[str], shape: tuple[int, int, int], rows: int, distorted: bool):
    """Returns the tutorials' pipeline, as cifar10_input.py has it, in `tf.data`."""
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(record):
        example = tf.io.parse_single_example(record, features)
        image = tf.reshape(tf.io.decode_raw(example["image"], tf.uint8), shape)
        return distort(tf, image) if distorted else image, example["label"]

    dataset = tf.data.TFRecordDataset(files, num_parallel_reads=tf.data.AUTOTUNE).repeat().shuffle(10_000)
    return dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE).batch(rows).prefetch(tf.data.AUTOTUNE)


def distort(tf, image):
    """Returns one image distorted as in the tutorial."""
    image = tf.image.random_crop(tf.cast(image, tf.float32), [24, 24, image.shape[2]])
    image = tf.image.random_flip_left_right(image)
    image = tf.image.random_brightness(image, max_delta=63)
    image = tf.image.random_contrast(image, lower=0.2, upper=1.8)
    return tf.image.per_image_standardization(image)


if __name__ == "__main__":
    commandline.run(COMMAND, main)
