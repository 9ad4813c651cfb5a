"""CIFAR-10's binary version: six files of 3,073-byte records, in their folder or in the .tar.gz as published.

Format: https://www.cs.toronto.edu/~kriz/cifar.html: a label byte, then 1,024 red, 1,024 green and 1,024 blue bytes.
"""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import archive, base, content
from beam_jobs.sources.base import Block
from pipeline.errors import DataError, UsageError
from pipeline.manifest import SourceFile

FOLDER = "cifar-10-batches-bin"
FILES = {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)}
CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_SIDE, _CHANNELS = 32, 3
_RECORD = 1 + _CHANNELS * _SIDE * _SIDE  # 3,073 bytes


@dataclasses.dataclass(frozen=True)
class Cifar10Source:
    """The six files, opened and checked by `open_source`.

    Attributes:
      path: the folder that holds them, or the archive.
      files: in the order of `FILES`.
    """

    dataset: str
    path: str
    files: tuple[SourceFile, ...]

    @property
    def class_names(self) -> tuple[str, ...]:
        """The ten classes, as in `batches.meta.txt`."""
        return CLASS_NAMES

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(32, 32, 3)."""
        return _SIDE, _SIDE, _CHANNELS

    @property
    def splits(self) -> dict[str, int]:
        """Rows of each split."""
        return {split: sum(self._counts(split)) for split in FILES}

    @property
    def key_sizes(self) -> dict[str, int]:
        """Bytes of each split's keys."""
        return {split: len(FILES[split][0]) + 1 + self._digits(split) for split in FILES}

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Returns rows of a split, the files of which lie end to end; see `base.Source.read`."""
        bounds = np.cumsum([0, *self._counts(split)])
        file_of_row = np.searchsorted(bounds, rows, side="right") - 1
        records = np.empty((len(rows), _RECORD), np.uint8)
        keys = np.empty(len(rows), f"S{self.key_sizes[split]}")
        for number, name in enumerate(FILES[split]):
            chosen = np.flatnonzero(file_of_row == number)
            own_rows = rows[chosen] - bounds[number]
            records[chosen] = self._records(name)[own_rows]
            keys[chosen] = base.row_keys(name, own_rows, self._digits(split))
        return Block(_channels_last(records[:, 1:]), records[:, 0].astype(np.int64), keys)

    def _counts(self, split: str) -> list[int]:
        sizes = {file.file: file.num_bytes for file in self.files}
        return [sizes[name] // _RECORD for name in FILES[split]]

    def _digits(self, split: str) -> int:
        return base.row_digits(max(self._counts(split)))

    def _records(self, name: str) -> NDArray[np.uint8]:
        file = next(file for file in self.files if file.file == name)
        where = f"{self.path}: {name}"
        return _as_records(content.cached(file, where, lambda: _read(pathlib.Path(self.path))))


def open_source(dataset: str, source: str) -> Cifar10Source:
    """Opens and checks the six files.

    Args:
      dataset: `cifar10`.
      source: the folder `cifar-10-batches-bin`, the folder that holds it, or the .tar.gz.

    Raises:
      UsageError: no source is named.
      DataError: a file is missing, is not a whole number of records, or has a label out of range.
    """
    if not source:
        raise UsageError(f"--source is missing: the folder {FOLDER} or the .tar.gz of it")
    path = pathlib.Path(source).absolute()
    if (path / FOLDER).is_dir():
        path = path / FOLDER
    entries = []
    for name, data in _read(path).items():
        _check(data, f"{path / name}" if path.is_dir() else f"{path}: {name}")
        entries.append(content.describe(name, data))
        content.keep(entries[-1], data)
    return Cifar10Source(dataset, str(path), tuple(entries))


def _read(path: pathlib.Path) -> dict[str, bytes]:
    names = [name for split in FILES.values() for name in split]
    if path.is_dir():
        return {name: archive.read_bounded(path / name) for name in names}
    if not path.exists():
        raise DataError(f"{path}: no such folder or file; --source of cifar10 is the folder {FOLDER} or its .tar.gz")
    return archive.read_members(path, FOLDER, names)


def _channels_last(planes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    images = np.empty((len(planes), _SIDE * _SIDE, _CHANNELS), np.uint8)
    for channel in range(_CHANNELS):  # three times as fast as a transposed copy
        images[:, :, channel] = planes[:, channel * _SIDE * _SIDE : (channel + 1) * _SIDE * _SIDE]
    return images.reshape(-1, _SIDE, _SIDE, _CHANNELS)


def _as_records(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8).reshape(-1, _RECORD)


def _check(data: bytes, where: str) -> None:
    if not data or len(data) % _RECORD:
        raise DataError(
            f"{where}: has {len(data)} bytes, not a whole number of {_RECORD}-byte records; get the file again"
        )
    labels = _as_records(data)[:, 0]
    if labels.max() >= len(CLASS_NAMES):
        row = int(np.argmax(labels >= len(CLASS_NAMES)))
        raise DataError(f"{where}: row {row}: label {labels[row]} is not in 0..{len(CLASS_NAMES) - 1}")
