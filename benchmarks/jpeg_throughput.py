"""Crops of JPEGs, read in windows: images per second against libjpeg-turbo alone on the same cores.

    python -m benchmarks.jpeg_throughput [--data_dir=DIR] [--size=224]

"Alone" is the shortest way to call libjpeg-turbo: the encoded images in memory, and `tf.image.decode_and_crop_jpeg` of
a random part of each, in a parallel map with one call per core. Rounds alternate; the ratio is computed per round, and
its median is printed. On a shared machine, processor time says more than wall time. `random_resized_crop` is
compared with the same crops of one size, so the ratio includes the cost of resizing. Then the same records in place, as
TF-Slim names their features and `pipeline.index` describes them, against the converted ones. Last, `scaled_decoding`
against none: its speed, and how far the same crops differ (PSNR, over some batches).

    python -m benchmarks.jpeg_throughput --cifar10=DIR [--images=4000] [--rounds=3]

With CIFAR-10 as Parquet files in DIR, only the effect of scaled decoding on a model is measured: some of its images are
enlarged to 256x256, and a small network is trained on crops of 32x32 with and without it, from the same seeds, and
tested both ways.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import commands, inputs, rounds, sources
from benchmarks.rounds import Take, taking
from pipeline import manifest
from pipeline.commands import commandline
from pipeline.commands.flags import check, flag
from pipeline.errors import UsageError

COMMAND = "benchmarks.jpeg_throughput"
_WINDOWS = 4  # per epoch, about
_COMPARED = 4  # batches
_FEW = 32  # crops yielded together, so that taking them costs nothing
_ENLARGED, _CROP, _EPOCHS, _ROWS = 256, 32, 8, 64  # of the training: sides in pixels, rows of a batch


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What is measured."""

    data_dir: str = flag("", "JPEGs as converted with --image_encoding=source; default: made for the run")
    cifar10: str = flag("", "CIFAR-10 as Parquet files: train with scaled decoding and without, and measure only that")
    images: int = flag(4_000, "images to make", least=1)
    height: int = flag(375, "height of the images to make, in pixels", least=1)
    width: int = flag(500, "width of the images to make, in pixels", least=1)
    size: int = flag(224, "height and width of the crops", least=1)
    global_batch_size: int = flag(128, "rows of a batch")
    rounds: int = flag(7, "rounds of each", least=1)
    seconds: float = flag(4.0, "length of a round")

    def __post_init__(self) -> None:
        check(self)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints one line per recipe."""
    config = commandline.parse(COMMAND, "Measure crops of JPEGs against libjpeg-turbo alone.", BenchmarkConfig, argv)
    commands.say_processor()
    if config.cifar10:
        compare_accuracy(config)
        return
    with inputs.data_set(config.data_dir, lambda folder: make_data(folder, config)) as data_dir:
        for name in ("random_crop", "random_resized_crop"):
            compare(config, data_dir, f"{name}(size={config.size}, normalize=False)")
        compare_in_place(config, data_dir)
        compare_scaled(config, data_dir)


def make_data(folder: pathlib.Path, config: BenchmarkConfig) -> str:
    """Converts JPEGs that compress as photographs do, without re-encoding; returns the data set's folder."""
    source = sources.parquet(folder / "source.parquet", config.images, (config.height, config.width), "JPEG")
    commands.convert("parquet", source, folder / "data", "--image_encoding=source")
    return str(folder / "data")


def compare(config: BenchmarkConfig, data_dir: str, recipe: str) -> None:
    """Measures both in turn and prints the medians and the ratios."""
    rows, window = config.global_batch_size, manifest.load(data_dir).split("train").num_bytes // _WINDOWS
    ours = taking(iter(inputs.train_input(data_dir, rows, augment=recipe, shuffle_bytes=window)), rows)
    alone = crop_alone(inputs.train_files(data_dir), config.size)
    name = f"decode_and_crop_jpeg of {config.size} x {config.size} alone"
    rounds.compare(recipe, ours, {name: alone}, config.rounds, config.seconds)


def compare_in_place(config: BenchmarkConfig, data_dir: str) -> None:
    """Measures crops of indexed records with TF-Slim's names, in turn with crops of the converted records."""
    from pipeline.index import __main__ as index  # noqa: PLC0415

    recipe = f"random_resized_crop(size={config.size}, normalize=False)"
    rows, window = config.global_batch_size, manifest.load(data_dir).split("train").num_bytes // _WINDOWS
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        write_as_tf_slim(data_dir, pathlib.Path(folder))
        names = "image:image/encoded,label:image/class/label"
        with contextlib.redirect_stdout(io.StringIO()):
            index.main([folder, "--split=train:train-*", f"--feature_map={names}", "--label_offset=-1"])
        options = {"augment": recipe, "shuffle_bytes": window}
        mine, other = (taking(iter(inputs.train_input(place, rows, **options)), rows) for place in (folder, data_dir))
        rounds.compare(f"{recipe} of records in place", mine, {"converted": other}, config.rounds, config.seconds)


def write_as_tf_slim(data_dir: str, folder: pathlib.Path) -> None:
    """Writes the training records of a data set again, shard by shard, as TF-Slim would."""
    from pipeline.files.paths import folder as folder_of  # noqa: PLC0415
    from pipeline.records import framing, tf_example  # noqa: PLC0415
    from pipeline.records.stream import records_of  # noqa: PLC0415

    for shard in manifest.load(data_dir).split("train").shards:
        with open(folder / shard.file, "wb") as file:
            for number, (_, record) in enumerate(records_of(folder_of(data_dir) / shard.file, "")):
                found = tf_example.decode(record)
                features: dict[str, Any] = {
                    "image/encoded": found["image"],
                    "image/class/label": found["label"] + 1,  # type: ignore[operator]
                    "image/class/text": b"a class",
                    "image/filename": found["key"],
                    "image/colorspace": b"RGB",
                    "image/object/bbox/xmin": np.linspace(0, 1, number % 4, dtype=np.float32),
                }
                file.write(framing.frame(tf_example.encode(features)))


def compare_scaled(config: BenchmarkConfig, data_dir: str) -> None:
    """Measures scaled decoding in turn with full decoding, and prints how the crops differ."""
    rows, window = config.global_batch_size, manifest.load(data_dir).split("train").num_bytes // _WINDOWS
    name = f"random_resized_crop(size={config.size}, normalize=False"
    scaled, full = (
        inputs.train_input(data_dir, rows, augment=f"{name}{more})", shuffle_bytes=window)
        for more in (", scaled_decoding=True", "")
    )
    takes = taking(iter(scaled), rows), {"the same, decoded in full": taking(iter(full), rows)}
    rounds.compare("scaled_decoding", *takes, config.rounds, config.seconds)
    errors = [
        np.mean((np.float64(one[0]) - np.float64(other[0])) ** 2, axis=(1, 2, 3))
        for one, other in zip(scaled.take(_COMPARED), full.take(_COMPARED), strict=True)
    ]
    decibels = 10 * np.log10(255**2 / np.maximum(np.concatenate(errors), 1e-3))
    least, middle = np.percentile(decibels, [5, 50])
    print(
        f"  its crops differ from these by a PSNR of {middle:.0f} dB; of 5% of them by less than {least:.0f}",
        flush=True,
    )


def compare_accuracy(config: BenchmarkConfig) -> None:
    """Trains with scaled decoding and without, a seed per round; prints the accuracy of each model tested both ways."""
    commandline.require("tensorflow", "apache_beam", "pyarrow")
    keras = inputs.load_tensorflow().keras
    found: dict[tuple[bool, bool], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        source = enlarge(pathlib.Path(config.cifar10), pathlib.Path(folder) / "source", config.images)
        commands.convert("image_folder", source, pathlib.Path(folder) / "data", "--image_encoding=source")
        for seed in range(config.rounds):
            for trained in (False, True):
                keras.utils.set_random_seed(seed)
                model = network(keras)
                model.fit(read(folder, "train", trained, seed), verbose=0)
                for tested in (False, True):
                    _, accuracy = model.evaluate(read(folder, "test", tested, seed), verbose=0)
                    found.setdefault((trained, tested), []).append(accuracy)
                    way = ["in full", "scaled"]
                    print(f"  seed {seed}, trained {way[trained]}, tested {way[tested]}: {accuracy:.3f}", flush=True)
    for tested in (False, True):
        full, scaled = (np.array(found[trained, tested]) for trained in (False, True))
        print(
            f"tested {['in full', 'scaled'][tested]}: {full.mean():.3f} trained in full, {scaled.mean():.3f} scaled; "
            f"difference {(scaled - full).mean():+.3f} ({min(scaled - full):+.3f} to {max(scaled - full):+.3f})",
            flush=True,
        )


def enlarge(cifar10: pathlib.Path, folder: pathlib.Path, count: int) -> pathlib.Path:
    """Writes the first images of each split, a quarter as many for `test`, enlarged, as JPEGs; returns `folder`."""
    import PIL.Image  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    for split, images in (("train", count), ("test", count // 4)):
        [path] = cifar10.glob(f"*{split}*.parquet")
        for number, row in enumerate(pq.read_table(path).slice(0, images).to_pylist()):
            small = PIL.Image.open(io.BytesIO(row["img"]["bytes"])).convert("RGB")
            file = folder / split / f"{row['label']}" / f"{number:06}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            small.resize((_ENLARGED, _ENLARGED), PIL.Image.Resampling.BICUBIC).save(file, quality=90)
    return folder


def network(keras: Any) -> Any:
    """Returns a small network for crops, compiled."""
    layers = [keras.Input((_CROP, _CROP, 3))]
    for width in (32, 64, 64):
        layers += [
            keras.layers.Conv2D(width, 3, padding="same", use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.MaxPooling2D(),
        ]
    model = keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, weighted_metrics=["accuracy"])
    return model


def read(folder: str, split: str, scaled: bool, seed: int) -> Any:
    """Returns the batches of a split: random crops of at least half of the area, or for `test` all of it."""
    from pipeline import input_fn  # noqa: PLC0415

    training = split == "train"
    recipe = f"random_resized_crop(size={_CROP}, min_area=0.5, central=1.0, scaled_decoding={scaled})"
    options: dict[str, Any] = {
        "training": training,
        "epochs": _EPOCHS if training else 1,
        "seed": seed,
        "augment": recipe,
    }
    return input_fn(f"{folder}/data", split, global_batch_size=_ROWS, weights="mean" if training else "mask", **options)


def crop_alone(files: list[str], size: int) -> Take:
    """Returns a Take of crops of images in memory."""
    tf = inputs.load_tensorflow()
    records = tf.data.TFRecordDataset(files).batch(1 << 30).get_single_element()
    images = tf.io.parse_example(records, {"image": tf.io.FixedLenFeature([], tf.string)})["image"]
    shapes = tf.map_fn(tf.io.extract_jpeg_shape, images, fn_output_signature=tf.int32)
    room = tf.reduce_min(shapes[:, :2], axis=0) - size + 1
    if tf.reduce_min(room) < 1:
        raise UsageError(f"--size={size}: some images are smaller")

    def crop(image: Any) -> Any:
        corner = [tf.random.uniform([], 0, room[axis], tf.int32) for axis in (0, 1)]
        return tf.image.decode_and_crop_jpeg(image, [*corner, size, size], channels=3)

    dataset = tf.data.Dataset.from_tensor_slices(images).repeat()
    crops = dataset.map(crop, num_parallel_calls=os.cpu_count(), deterministic=False)
    return taking(iter(crops.batch(_FEW).prefetch(2)), _FEW)


if __name__ == "__main__":
    commandline.run(COMMAND, main)
