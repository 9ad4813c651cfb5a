"""Code that the input benchmarks share: flag checks, a data set, TensorFlow."""

from __future__ import annotations

import contextlib
import math
import pathlib
import tempfile
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from benchmarks import commands, sources
from benchmarks.rounds import Take
from pipeline import manifest
from pipeline.commands import commandline, quiet
from pipeline.errors import UsageError, unknown

_TOGETHER = 10_000  # minimum number of rows in a call of `taking_together`


def check_cifar_images(images: int) -> None:
    """Raises UsageError if this number of images cannot be spread evenly over CIFAR-10's files."""
    if images % len(sources.CIFAR_FILES):
        raise UsageError(f"--images={images}: must be a multiple of {len(sources.CIFAR_FILES)}, the number of files")


def parts_of(only: str, known: Collection[str]) -> list[str]:
    """Returns the parts selected by --only, or all.

    Raises:
      UsageError: a part is unknown.
    """
    parts = only.split(",") if only else list(known)
    for part in parts:
        if part not in known:
            raise unknown("--only", part, known)
    return parts


@contextlib.contextmanager
def data_set(given: str, make: Callable[[pathlib.Path], str]) -> Iterator[str]:
    """Context of a data set's folder: the given one, or a temporary one written by `make`.

    Raises:
      DataError: the given folder holds no data set.
      UsageError: a package is missing.
    """
    commandline.require("tensorflow", *([] if given else ["apache_beam"]))
    if given:
        manifest.load(given)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        yield given or make(pathlib.Path(folder))


def make_cifar(folder: pathlib.Path, images: int, *flags: str, is_smooth: bool = False) -> str:
    """Converts random images of CIFAR-10's shape, a sixth of them to `test`; returns the data set's folder."""
    source = sources.cifar(folder / "source", images // len(sources.CIFAR_FILES), is_smooth)
    commands.convert("cifar10", source, folder / "data", *flags)
    return str(folder / "data")


def load_tensorflow() -> Any:
    """Returns TensorFlow, loaded without its startup messages."""
    with quiet.loading():
        import tensorflow as tf  # noqa: PLC0415
    return tf


def train_input(data_dir: str, rows: int, **options: Any) -> Any:
    """Returns `input_fn`'s training batches of `rows` rows."""
    load_tensorflow()
    from pipeline import input_fn  # noqa: PLC0415

    return input_fn(data_dir, global_batch_size=rows, training=True, **options)


def taking_together(dataset: Any, rows: int) -> Take:
    """Returns a Take of elements of `rows` images, several per call, in a `tf.function` like a training loop."""
    tf = load_tensorflow()
    iterator, count = iter(dataset), -(-_TOGETHER // rows)

    @tf.function
    def take_together() -> None:
        for _ in tf.range(count):
            next(iterator)

    def take() -> tuple[int, float]:
        take_together()
        return count * rows, 0.0

    return take


def train_files(data_dir: str) -> list[str]:
    """Returns the paths of the training split's shards."""
    return [str(pathlib.Path(data_dir) / shard.file) for shard in manifest.load(data_dir).split("train").shards]


def dump_arrays(data_dir: str, folder: pathlib.Path) -> pathlib.Path:
    """Writes the training split's images and labels as .npy files, for all contestants; returns the folder."""
    folder.mkdir(parents=True)
    load_tensorflow()
    from pipeline import input_fn  # noqa: PLC0415

    count = manifest.load(data_dir).split("train").num_examples
    batches = input_fn(data_dir, global_batch_size=1_000, training=False).as_numpy_iterator()
    images, labels = (np.concatenate(parts)[:count] for parts in zip(*((x, y) for x, y, _ in batches), strict=True))
    np.save(folder / "images.npy", images)
    np.save(folder / "labels.npy", labels)
    return folder


def whole_numbers(flag: str, text: str, least: int) -> list[int]:
    """Returns the comma-separated integers of a flag.

    Raises:
      UsageError: one is not an integer, or too small.
    """
    for part in text.split(","):
        if not part.isdecimal() or int(part) < least:
            raise UsageError(f"{flag}={text}: {part!r} is not a whole number of {least} or more")
    return [int(part) for part in text.split(",")]


def decoded_bytes(data_dir: str) -> int:
    """Returns the bytes of the decoded training split."""
    made = manifest.load(data_dir)
    return made.split("train").num_examples * math.prod(made.image_shape)
