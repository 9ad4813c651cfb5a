"""Reading TFRecords with every CRC checked, and nothing else: with `pipeline.input_fn` or `TFRecordDataset`."""

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
AUGMENTS = ""
_FILES, _BYTES = 8, 256 << 20  # of the data set
_BATCH = 4 << 20  # bytes of a batch


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
    """Returns a Take of batches, or of records, epoch after epoch."""
    tf = inputs.load_tensorflow()
    if setting.options["reader"] == "ours":
        return inputs.taking_together(_ours(setting), _rows(setting))
    records = tf.data.TFRecordDataset(_files(setting), num_parallel_reads=setting.cores).repeat()
    if setting.options["reader"] == "batched":
        return inputs.taking_together(records.batch(_rows(setting)), _rows(setting))
    return inputs.taking_together(records, 1)


def _ours(setting: Setting) -> object:
    from pipeline import input_fn  # noqa: PLC0415

    windows = {
        "remainder": "drop",
        "shuffle_bytes": _BYTES // 8,
    }  # less than the data set, which would otherwise be kept in memory
    return input_fn(setting.own, global_batch_size=_rows(setting), training=True, parse=lambda found: found, **windows)


def _rows(setting: Setting) -> int:
    return _BATCH // setting.options["size"]


def _files(setting: Setting) -> list[str]:
    return sorted(map(str, pathlib.Path(setting.own).glob("*.tfrecord")))
