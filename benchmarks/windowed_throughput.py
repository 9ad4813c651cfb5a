"""A data set larger than shuffle_bytes, read in windows: against bare reading, memory, one by one; its peak memory.

    python -m benchmarks.windowed_throughput [--data_dir=DIR] [--only=read,resident,...]

shuffle_bytes is an eighth of the decoded split. Comparisons:
  read: unaugmented batches against reading the same shards and computing each record's CRC on all cores, with nothing
    else done: in threads, in processes, and by TFRecordDataset;
  resident: the augmentations of the CIFAR-10 tutorial, in windows against the same images in memory;
  one_by_one: against `tf.data` one example at a time, as in benchmarks.input_throughput;
  compressed: unaugmented batches of the same images in GZIP shards, against zlib and ISA-L alone, which decompress the
    same members out of memory in as many threads, and against the windows of uncompressed shards;
  classes: unaugmented batches of generated images of 1,000 classes, where most labels take two bytes, against the
    same images of 100 classes, whose records have one length;
  store: unaugmented batches of a data set in an S3 server of this machine, from the cache on the local disk, after an
    epoch that filled it, against the store itself, and against a data set on the local disk;
  peak: the memory of a process that reads an epoch, TensorFlow's included, against 2 x shuffle_bytes + 600 MB. Mapped
    files (TensorFlow's libraries) do not count: processes share them, and the system may drop them.
Batches are taken inside a tf.function, as a training loop does. Rounds alternate; the ratio is computed per round, and
its median is printed. On a shared machine, processor time says more than wall time. Files are read from the page cache
if they fit.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import statistics
import tempfile
import zlib
from collections.abc import Callable, Sequence
from concurrent import futures
from multiprocessing import get_context
from typing import Any

from isal import isal_zlib

from benchmarks import commands, inputs, sources
from benchmarks.bare_reading import bare_read, inflating, tfrecords
from benchmarks.rounds import Take, compare, ratio_text
from benchmarks.store import served
from pipeline import manifest
from pipeline.commands import commandline
from pipeline.commands.flags import check, flag
from pipeline.errors import UsageError
from pipeline.read import frames
from pipeline.read.shards import LOCAL_THREADS

COMMAND = "benchmarks.windowed_throughput"
_WINDOWS = 8  # shuffle_bytes x this is the decoded split
_BEYOND = 600 * 10**6  # bytes of a process besides its windows


@dataclasses.dataclass(frozen=True)
class BenchmarkConfig:
    """What is measured."""

    data_dir: str = flag("", "raw images as converted; default: random images of CIFAR-10's shape, made for the run")
    images: int = flag(120_000, "images to make", least=6_000)
    global_batch_size: int = flag(512, "rows of a batch")
    rounds: int = flag(5, "rounds of each", least=1)
    seconds: float = flag(2.0, "length of a round", least=0.001)
    only: str = flag("", "some of read,resident,one_by_one,compressed,classes,store,peak; default: all")
    epoch_of: int = flag(0, "read one epoch with these shuffle_bytes and exit, as peak does")

    def __post_init__(self) -> None:
        inputs.parts_of(self.only, _PARTS)
        check(self)
        inputs.check_cifar_images(self.images)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints one line per measurement."""
    config = commandline.parse(COMMAND, "Measure input that is read in windows, as ratios.", BenchmarkConfig, argv)
    commands.say_processor()
    if config.epoch_of:
        _read_epoch(config)
        return
    print(f"records are unpacked by {'compiled code' if frames.is_compiled() else 'NumPy'}", flush=True)
    flags = ("--num_shards=train:16,test:1",)
    with inputs.data_set(
        config.data_dir, lambda folder: inputs.make_cifar(folder, config.images, *flags, is_smooth=True)
    ) as data_dir:
        for part in inputs.parts_of(config.only, _PARTS):
            _PARTS[part](dataclasses.replace(config, data_dir=data_dir))


def against_reading(config: BenchmarkConfig) -> None:
    """Prints unaugmented batches in windows compared with three ways to read the shards."""
    files, stride = _shards(config)
    cores = os.cpu_count() or 1
    with futures.ThreadPoolExecutor(cores) as threads, futures.ProcessPoolExecutor(cores, get_context("spawn")) as own:
        others = {
            "a bare checked read (threads)": bare_read(threads, files, stride, False),
            "a bare checked read (processes)": bare_read(own, files, stride, True),
            "a bare checked read (TFRecordDataset)": tfrecords(files, cores),
        }
        windows = batches(config, "none", shuffle_bytes(config))
        compare("in windows, unaugmented", windows, others, config.rounds, config.seconds)


def against_memory(config: BenchmarkConfig) -> None:
    """Prints augmented batches in windows compared with the same from memory."""
    windows, memory = (
        batches(config, "cifar10_tutorial", shuffle_bytes(config) * times) for times in (1, _WINDOWS + 1)
    )
    others = {"the same from memory": memory}
    compare("in windows, cifar10_tutorial", windows, others, config.rounds, config.seconds)


def against_one_by_one(config: BenchmarkConfig) -> None:
    """Prints both, unaugmented and augmented, compared with `tf.data` one example at a time."""
    from benchmarks.one_by_one import one_by_one  # noqa: PLC0415

    rows = config.global_batch_size
    for recipe in ("none", "cifar10_tutorial"):
        theirs = inputs.taking_together(one_by_one(config.data_dir, rows, recipe), rows)
        windows = batches(config, recipe, shuffle_bytes(config))
        compare(f"in windows, {recipe}", windows, {"one by one": theirs}, config.rounds, config.seconds)


def compressed(config: BenchmarkConfig) -> None:
    """Prints windows of GZIP shards compared with zlib and ISA-L alone, and with windows of uncompressed shards."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        packed = pathlib.Path(folder) / "packed"
        commands.convert("tfrecord", pathlib.Path(config.data_dir), packed, "--compression=GZIP")
        sizes = [manifest.load(data_dir).split("train").num_bytes for data_dir in (str(packed), config.data_dir)]
        print(f"compressed to {sizes[0] / sizes[1]:.2f} of {sizes[1]:,} bytes", flush=True)
        with futures.ThreadPoolExecutor(LOCAL_THREADS) as threads:
            others = {
                f"{name} alone ({LOCAL_THREADS} threads)": inflating(threads, str(packed), "train", library)
                for name, library in (("zlib", zlib), ("ISA-L", isal_zlib))
            } | {
                "windows of uncompressed shards": batches(config, "none", shuffle_bytes(config)),
            }
            windows = batches(dataclasses.replace(config, data_dir=str(packed)), "none", shuffle_bytes(config))
            compare("in windows, unaugmented, compressed", windows, others, config.rounds, config.seconds)


def classes(config: BenchmarkConfig) -> None:
    """Prints windows of images of 1,000 classes compared with the same images of 100 classes."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        takes = []
        for count in (100, 1_000):
            source, made = pathlib.Path(folder) / f"source-{count}.tfrecord", pathlib.Path(folder) / f"of-{count}"
            sources.raw_records(source, config.images, (32, 32, 3), count)
            commands.convert("tfrecord", source, made, "--image_shape=32x32x3", "--num_shards=16")
            own = dataclasses.replace(config, data_dir=str(made))
            takes.append(batches(own, "none", shuffle_bytes(own)))
        few, many = takes
        compare("in windows, unaugmented, 1,000 classes", many, {"100 classes": few}, config.rounds, config.seconds)


def store(config: BenchmarkConfig) -> None:
    """Prints windows of a data set in a store, from the cache, compared with the store and with the local disk."""
    window = shuffle_bytes(config)
    with served(config.data_dir) as url, tempfile.TemporaryDirectory(prefix="benchmark-") as cache:
        remote = dataclasses.replace(config, data_dir=url)
        for _ in inputs.train_input(url, config.global_batch_size, shuffle_bytes=window, epochs=1, cache_dir=cache):
            pass
        cached = batches(remote, "none", window, cache_dir=cache)
        others = {"the store": batches(remote, "none", window), "a local data set": batches(config, "none", window)}
        compare("in windows, unaugmented, from the cache", cached, others, config.rounds, config.seconds)


def peak(config: BenchmarkConfig) -> None:
    """Prints the peak memory of processes that each read one epoch."""
    window = shuffle_bytes(config)
    flags = [f"--data_dir={config.data_dir}", f"--global_batch_size={config.global_batch_size}", f"--epoch_of={window}"]
    promised = 2 * window + _BEYOND
    runs = [commands.run(COMMAND, flags).output.split() for _ in range(min(config.rounds, 3))]
    own, mapped = ([int(run[i]) for run in runs] for i in (-2, -1))
    print(
        f"peak memory, an epoch with shuffle_bytes={window / 1e6:,.0f} MB: {statistics.median(own) / 1e6:,.0f} MB and "
        f"{statistics.median(mapped) / 1e6:,.0f} MB of mapped files, against {promised / 1e6:,.0f} MB promised: "
        f"{ratio_text([one / promised for one in own])}",
        flush=True,
    )


_PARTS: dict[str, Callable[[BenchmarkConfig], None]] = {
    "read": against_reading,
    "resident": against_memory,
    "one_by_one": against_one_by_one,
    "compressed": compressed,
    "classes": classes,
    "store": store,
    "peak": peak,
}


def shuffle_bytes(config: BenchmarkConfig) -> int:
    """Returns an eighth of the bytes of the decoded training split."""
    return inputs.decoded_bytes(config.data_dir) // _WINDOWS


def batches(config: BenchmarkConfig, recipe: str, window: int, **options: Any) -> Take:
    """Returns a Take of batches of `input_fn`."""
    rows = config.global_batch_size
    dataset = inputs.train_input(config.data_dir, rows, augment=recipe, shuffle_bytes=window, **options)
    return inputs.taking_together(dataset, rows)


def _read_epoch(config: BenchmarkConfig) -> None:
    """Prints the largest number of bytes that this process owned after any batch, and of files that it mapped."""
    options = {"augment": "none", "shuffle_bytes": config.epoch_of, "epochs": 1}
    seen = [_memory() for _ in inputs.train_input(config.data_dir, config.global_batch_size, **options)]
    print(*map(max, zip(*seen, strict=True)))


def _memory() -> tuple[int, int]:
    status = pathlib.Path("/proc/self/status").read_text()
    own, mapped = (int(re.findall(rf"{name}:\s*(\d+) kB", status)[0]) << 10 for name in ("RssAnon", "RssFile"))
    return own, mapped


def _shards(config: BenchmarkConfig) -> tuple[list[str], int]:
    """Returns the training split's files and their stride, the bytes from record to record."""
    shards = manifest.load(config.data_dir).split("train").shards
    strides = {shard.stride for shard in shards}
    stride = next(iter(strides))
    if len(strides) > 1 or not stride:
        raise UsageError(f"--data_dir={config.data_dir}: records of several sizes; needs raw images of one size")
    return inputs.train_files(config.data_dir), stride


if __name__ == "__main__":
    commandline.run(COMMAND, main)
