"""MNIST and the data sets that copy its four IDX files: 28x28 grey images, gzip or not."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import base, content, idx
from beam_jobs.sources.base import Block
from pipeline.errors import DataError, UsageError
from pipeline.manifest import SourceFile

_PREFIX_OF_SPLIT = {"train": "train", "test": "t10k"}
_SIDE = 28
CLASS_NAMES = {"mnist": tuple("0123456789")}  # a new data set of this layout is one more line


@dataclasses.dataclass(frozen=True)
class MnistSource:
    """The four files of a folder, opened and checked by `open_source`."""

    dataset: str
    folder: str
    files: tuple[SourceFile, ...]
    splits: dict[str, int]

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes, in the order of their labels."""
        return CLASS_NAMES[self.dataset]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(28, 28, 1)."""
        return _SIDE, _SIDE, 1

    @property
    def key_sizes(self) -> dict[str, int]:
        """Bytes of each split's keys."""
        return {split: len(_images_name(split)) + 1 + base.row_digits(count) for split, count in self.splits.items()}

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Returns rows of a split; see `base.Source.read`."""
        images = self._array(_images_name(split), 3)[rows]
        labels = self._array(_labels_name(split), 1)[rows].astype(np.int64)
        keys = base.row_keys(_images_name(split), rows, base.row_digits(self.splits[split]))
        return Block(images[..., None], labels, keys)

    def _array(self, name: str, rank: int) -> NDArray[np.uint8]:
        file = next(file for file in self.files if file.file == name)
        path = _find(pathlib.Path(self.folder), name)
        return idx.array(content.cached(file, str(path), lambda: {name: idx.read(path, rank)}), rank)


def open_source(dataset: str, source: str) -> MnistSource:
    """Opens and checks the four files in the folder `source`.

    Raises:
      UsageError: no folder is named.
      DataError: a file is missing, is no whole IDX file, has another image size, a label out of range, or the images
        and labels of a split differ in number.
    """
    if not source:
        raise UsageError(f"--source is missing: the folder with {dataset}'s four IDX files (gzip or not)")
    folder = pathlib.Path(source).absolute()
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "no such folder"
        raise DataError(f"{folder}: {problem}; --source of {dataset} is the folder with its four IDX files")
    found = {split: _open_split(folder, split, len(CLASS_NAMES[dataset])) for split in _PREFIX_OF_SPLIT}
    files = tuple(file for pair, _ in found.values() for file in pair)
    return MnistSource(dataset, str(folder), files, {split: count for split, (_, count) in found.items()})


def _open_split(folder: pathlib.Path, split: str, classes: int) -> tuple[list[SourceFile], int]:
    entries, arrays, paths = [], [], []
    for name, rank in ((_images_name(split), 3), (_labels_name(split), 1)):
        path = _find(folder, name)
        data = idx.read(path, rank)
        entries.append(content.describe(name, data))
        content.keep(entries[-1], data)
        arrays.append(idx.array(data, rank))
        paths.append(path)
    images, labels = arrays
    if images.shape[1:] != (_SIDE, _SIDE):
        size = "x".join(map(str, images.shape[1:]))
        raise DataError(f"{paths[0]}: its images are {size}; they must be {_SIDE}x{_SIDE}")
    if len(images) != len(labels):
        raise DataError(f"{paths[0]} has {len(images)} images, but {paths[1]} has {len(labels)} labels")
    if labels.max() >= classes:
        row = int(np.argmax(labels >= classes))
        raise DataError(f"{paths[1]}: row {row}: label {labels[row]} is not in 0..{classes - 1}")
    return entries, len(images)


def _images_name(split: str) -> str:
    return f"{_PREFIX_OF_SPLIT[split]}-images-idx3-ubyte"


def _labels_name(split: str) -> str:
    return f"{_PREFIX_OF_SPLIT[split]}-labels-idx1-ubyte"


def _find(folder: pathlib.Path, name: str) -> pathlib.Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise DataError(f"{folder / name}: no such file, and no {name}.gz either; --source must hold the four IDX files")
