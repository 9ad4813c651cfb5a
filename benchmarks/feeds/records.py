"""Reading TFRecords, every CRC checked, and nothing else: with `pipeline.input_fn` or with `TFRecordDataset`."""

from __future__ import annotations

import contextlib
import io
import pathlib

import numpy as np

from benchmarks import inputs
from benchmarks.feeds.feed import Setting
from benchmarks.rounds import Take

PACKAGES = ("tensorflow",)
MODULES = ("tensorflow",)
DISTORTS = ""
_FILES, _BYTES = 8, 256 << 20  # of the data set
_ROWS = 1_024


def prepare(setting: Setting) -> None:
    """Writes records of `options["size"]` bytes and indexes them."""
    tf = inputs.load_tensorflow()
    from pipeline.index.__main__ import main  # noqa: PLC0415

    size = setting.options["size"]
    for number in range(_FILES):
        data = np.random.default_rng(number).integers(0, 256, (_BYTES // _FILES // size, size), np.uint8)
        with tf.io.TFRecordWriter(f"{setting.own}/train-{number:05d}-of-{_FILES:05d}.tfrecord") as file:
            for record in data:
                file.write(record.tobytes())
    with contextlib.redirect_stdout(io.StringIO()):
        main([setting.own, "--split=train:*.tfrecord"])


def take(setting: Setting) -> Take:
    """Returns a Take of all records, in stored order."""
    tf = inputs.load_tensorflow()
    if setting.options["reader"] == "ours":
        dataset = _ours(setting)
    elif setting.options["reader"] == "batched":
        dataset = tf.data.TFRecordDataset(_files(setting), num_parallel_reads=setting.cores).batch(_ROWS)
    else:
        dataset = tf.data.TFRecordDataset(_files(setting), num_parallel_reads=setting.cores)
    count = dataset.reduce(tf.constant(0, tf.int64), lambda total, found: total + tf.size(found, tf.int64))
    del count  # reads once, so that the files are in the page cache

    @tf.function
    def read() -> object:
        return dataset.reduce(tf.constant(0, tf.int64), lambda total, found: total + tf.size(found, tf.int64))

    return lambda: (int(read()), 0.0)


def _ours(setting: Setting) -> object:
    from pipeline import input_fn  # noqa: PLC0415

    options = {"global_batch_size": _ROWS, "training": False, "remainder": "drop", "shuffle_bytes": _BYTES // 8}
    return input_fn(setting.own, parse=lambda found: found, **options).map(lambda found, _: found)


def _files(setting: Setting) -> list[str]:
    return sorted(map(str, pathlib.Path(setting.own).glob("*.tfrecord")))
