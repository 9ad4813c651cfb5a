"""CIFAR-10 and CIFAR-100 as published, binary or Python's version: in their folder or in the .tar.gz."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import base, download, row_files
from beam_jobs.sources.base import Block, Files, Source, SourceOptions
from beam_jobs.sources.cifar import records as cifar_records
from beam_jobs.sources.cifar.layout import CHANNELS, LABELS, PIXELS, SIDE
from beam_jobs.sources.row_files import RowFile
from beam_jobs.storage.paths import LocalPath
from pipeline.manifest import Feature

_PLANE = SIDE * SIDE
_AT_ONCE = 256  # rows: what they take stays in a core's cache between reading and turning


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class CifarSource(Source):
    """The files of a folder or an archive.

    Attributes:
      batches: {split: its files}.
    """

    batches: dict[str, tuple[RowFile, ...]]

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Returns rows of a split, the files of which lie end to end; see `base.Source.read`."""
        count = len(LABELS[self.dataset])
        images = np.empty((len(rows), _PLANE, CHANNELS), np.uint8)
        labels = np.empty((len(rows), count), np.int64)
        scratch = np.empty((min(_AT_ONCE, len(rows)), count + PIXELS), np.uint8)
        with contextlib.ExitStack() as stack:
            handles = [stack.enter_context(batch.opened()) for batch in self.batches[split]]
            for start in range(0, len(rows), _AT_ONCE):
                part = slice(start, start + _AT_ONCE)
                records = scratch[: len(rows[part])]
                for number, at, own in base.by_part(self.parts[split].counts, rows[part]):
                    row_files.gather(handles[number], 0, own, records, at)
                labels[part] = records[:, :count]
                for channel in range(CHANNELS):  # three times as fast as a transposed copy
                    begin = count + channel * _PLANE
                    images[part, :, channel] = records[:, begin : begin + _PLANE]
        extra = {name: labels[:, i] for i, name in enumerate(self.features)}
        keys = self.parts[split].keys(rows)
        return Block(images.reshape(-1, SIDE, SIDE, CHANNELS), labels[:, -1], keys, extra)


def open_source(options: SourceOptions) -> CifarSource:
    """Opens and checks the files of `options.source`; without one, downloads the archive.

    Args:
      options: its source is a folder as in the archive, the folder that holds it, or the .tar.gz.

    Raises:
      DataError: a file is missing, damaged, is not a whole number of records, or has a label out of range; or the
        archive cannot be downloaded.
    """
    dataset = options.dataset
    path = LocalPath(options.source or download.files(dataset)[0]).absolute()
    layout, found = cifar_records.find(path, dataset)
    *others, label = LABELS[dataset]
    by_name = {file.file.file: file for file in found}
    batches = {split: tuple(by_name[name] for name in names) for split, names in layout.files.items()}
    parts = {split: Files(layout.files[split], tuple(file.shape[0] for file in own)) for split, own in batches.items()}
    return CifarSource(
        dataset=dataset,
        class_names=label.class_names,
        files=tuple(file.file for file in found),
        splits=base.rows_of(parts, path),
        image_shape=(SIDE, SIDE, CHANNELS),
        features={other.feature: Feature("int64", class_names=other.class_names) for other in others},
        parts=parts,
        batches=batches,
    )
