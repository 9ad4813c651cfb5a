"""CIFAR-10 and CIFAR-100 as published, binary or Python's version: in their folder or in the .tar.gz."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import IO

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import base, download, stored, streams
from beam_jobs.sources.base import Block, Files, SourceOptions
from beam_jobs.sources.cifar import records as cifar_records
from beam_jobs.sources.cifar.layout import CHANNELS, LABELS, PIXELS, SIDE, Layout
from beam_jobs.sources.stored import Stored
from pipeline.manifest import Feature, SourceFile

_PLANE = SIDE * SIDE
_AT_ONCE = 256  # rows: what they take stays in a core's cache between reading and turning


@dataclasses.dataclass(frozen=True)
class CifarSource:
    """The files of a folder or an archive, opened and checked by `open_source`.

    Attributes:
      source: the folder or archive.
      layout: what it holds.
      stored: the files in the layout's order.
      counts: the rows of each.
    """

    dataset: str
    source: str
    layout: Layout
    stored: tuple[Stored, ...]
    counts: tuple[int, ...]

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes, in the order of their labels; CIFAR-100's fine ones."""
        return LABELS[self.dataset][-1].class_names

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(32, 32, 3)."""
        return SIDE, SIDE, CHANNELS

    @property
    def features(self) -> dict[str, Feature]:
        """CIFAR-100's `coarse_label`."""
        return {label.feature: Feature("int64", class_names=label.class_names) for label in LABELS[self.dataset][:-1]}

    @property
    def splits(self) -> dict[str, int]:
        """Rows of each split."""
        return {split: self._places(split).num_rows for split in self.layout.files}

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The batches, as published."""
        return tuple(one.file for one in self.stored)

    @property
    def unique_keys(self) -> bool:
        """Yes: a key holds the file and the row."""
        return True

    def chunks(self, split: str) -> None:
        """Any row is as cheap to read as any other."""

    def hashes(self, split: str, start: int, stop: int) -> NDArray[np.uint64]:
        """Returns a hash of rows' places; see `base.Source.hashes`."""
        return self._places(split).hashes(start, stop)

    def where(self, split: str, row: int) -> tuple[str, int]:
        """Returns (file, row in it); see `base.Source.where`."""
        return self._places(split).where(row)

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Returns rows of a split, the files of which lie end to end; see `base.Source.read`."""
        places = self._places(split)
        own = {one.file.file: one for one in self.stored}
        batches = [own[name] for name in places.names]
        handles = [stored.rows_file(batch, self._unpack(batch)) for batch in batches]
        file_of_row, row_in_file = places.place(rows)
        count = len(LABELS[self.dataset])
        images = np.empty((len(rows), _PLANE, CHANNELS), np.uint8)
        labels = np.empty((len(rows), count), np.int64)
        scratch = np.empty((min(_AT_ONCE, len(rows)), count + PIXELS), np.uint8)
        for start in range(0, len(rows), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            records = scratch[: len(rows[part])]
            self._gather(batches, handles, file_of_row[part], row_in_file[part], records)
            labels[part] = records[:, :count]
            for channel in range(CHANNELS):  # three times as fast as a transposed copy
                at = count + channel * _PLANE
                images[part, :, channel] = records[:, at : at + _PLANE]
        for number in np.unique(file_of_row).tolist():
            stored.check_unchanged(batches[number])
        extra = {label.feature: labels[:, i] for i, label in enumerate(LABELS[self.dataset][:-1])}
        keys = _keys(places, file_of_row, row_in_file)
        return Block(images.reshape(-1, SIDE, SIDE, CHANNELS), labels[:, -1], keys, extra)

    def _gather(
        self,
        batches: list[Stored],
        handles: list[IO[bytes]],
        files: NDArray[np.int64],
        rows: NDArray[np.int64],
        out: NDArray[np.uint8],
    ) -> None:
        for number, (batch, handle) in enumerate(zip(batches, handles, strict=True)):
            at = np.flatnonzero(files == number)
            with streams.errors_of(batch.path):
                if not stored.gather(handle, 0, rows[at], out, at):
                    raise batch.changed

    def _places(self, split: str) -> Files:
        counts = dict(zip(self.layout.names, self.counts, strict=True))
        names = self.layout.files[split]
        return Files(names, tuple(counts[name] for name in names))

    def _unpack(self, batch: Stored) -> Callable[[], dict[SourceFile, IO[bytes]]]:
        def unpack() -> dict[SourceFile, IO[bytes]]:
            path = pathlib.Path(batch.path)
            if path.samefile(self.source):  # an archive, of which all is read at once
                return {one.file: one.records for one in cifar_records.find(path, self.dataset)[1]}
            one = cifar_records.load(path, batch.file.file, self.layout, self.dataset)
            return {one.file: one.records}

        return unpack


def open_source(options: SourceOptions) -> CifarSource:
    """Opens and checks the files of `options.source`; without one, downloads the archive.

    Args:
      options: its source is a folder as in the archive, the folder that holds it, or the .tar.gz.

    Raises:
      DataError: a file is missing, damaged, is not a whole number of records, or has a label out of range; or the
        archive cannot be downloaded.
    """
    dataset = options.dataset
    path = pathlib.Path(options.source).absolute() if options.source else download.files(dataset)[0]
    layout, found = cifar_records.find(path, dataset)
    opened = []
    for one in found:
        opened.append(Stored(str(one.path), one.file, one.stamp, one.is_packed))
        stored.keep(opened[-1], one.records)
    length = len(LABELS[dataset]) + PIXELS
    return CifarSource(
        dataset, str(path), layout, tuple(opened), tuple(streams.size(one.records) // length for one in found)
    )


def _keys(places: Files, files: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.bytes_]:
    digits = base.row_digits(max(places.counts))
    keys = np.empty(len(rows), f"S{max(map(len, places.names)) + 1 + digits}")
    for number, name in enumerate(places.names):
        chosen = files == number
        keys[chosen] = base.row_keys(name, rows[chosen], digits)
    return keys
