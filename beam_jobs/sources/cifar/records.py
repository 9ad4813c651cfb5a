"""The records of CIFAR's files, found where they are or unpacked: each a byte for each label, then 3,072 of pixels.

Format: https://www.cs.toronto.edu/~kriz/cifar.html. A pickle becomes a temporary file of such records.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import archive, streams
from beam_jobs.sources.cifar import pickled
from beam_jobs.sources.cifar.layout import LABELS, LAYOUTS, PIXELS, Label, Layout
from beam_jobs.sources.row_files import RowFile
from beam_jobs.storage.paths import LocalPath
from pipeline.errors import DataError

_ROWS = 1024  # that are written at once, 3 MB


def find(path: LocalPath, dataset: str) -> tuple[Layout, list[RowFile]]:
    """Returns the layout that a folder or an archive has, and its files in the layout's order.

    Raises:
      DataError: it has none, a file is missing, damaged or not of the data set.
    """
    if not path.exists():
        folders = " or ".join(layout.folder for layout in LAYOUTS[dataset])
        raise DataError(f"{path}: no such folder or file; --source of {dataset} is the folder {folders} or its .tar.gz")
    members = [(layout.folder, name) for layouts in LAYOUTS.values() for layout in layouts for name in layout.names]
    if not path.is_dir():
        stamp = streams.stamp(path)
        handles = archive.unpack(path, members)
        layout = _choose(path, dataset, handles)
        return layout, [
            _checked(path, stamp, handles[layout.folder, name], name, layout, dataset, path) for name in layout.names
        ]
    places = {(folder, name): place for folder, name in members if (place := _place(path, folder, name)).exists()}
    layout = _choose(path, dataset, places)
    found = []
    for name in layout.names:
        place = places[layout.folder, name]
        stamp = streams.stamp(place)
        found.append(_checked(place, stamp, streams.open_plain(place), name, layout, dataset, path))
    return layout, found


def _place(path: LocalPath, folder: str, name: str) -> LocalPath:
    inner = path / folder / name
    return inner if inner.exists() else path / name


def _choose(path: LocalPath, dataset: str, present: Collection[tuple[str, str]]) -> Layout:
    """Returns the layout of which most files are present, which must be all."""

    def score(layout: Layout) -> int:
        return sum((layout.folder, name) in present for name in layout.names)

    best = max(LAYOUTS[dataset], key=score)
    if not score(best):
        for other, layouts in LAYOUTS.items():
            if any(map(score, layouts)):
                raise DataError(f"{path}: holds the files of --dataset={other}, not of {dataset}")
        names = " nor ".join(f"{layout.folder}/{layout.names[0]}" for layout in LAYOUTS[dataset])
        raise DataError(f"{path}: holds neither {names}")
    for name in best.names:
        if (best.folder, name) not in present:
            raise DataError(f"{path}: holds no {name} of {best.folder}")
    return best


def _checked(
    path: LocalPath,
    stamp: tuple[int, int],
    handle: IO[bytes],
    name: str,
    layout: Layout,
    dataset: str,
    source: LocalPath,
) -> RowFile:
    """Returns a file, whose records are whole and have labels in range, and keeps it open."""
    labels = LABELS[dataset]
    length = len(labels) + PIXELS
    where = str(path) if path.name == name else f"{path}: {name}"
    with streams.errors_of(path):
        file = streams.describe(name, handle)
        records = _unpickled(handle, where, labels) if layout.is_pickled else handle
        size = streams.size(records)
    if not size or size % length:
        raise DataError(f"{where}: has {size} bytes, not a whole number of {length}-byte records; get the file again")
    unpack = functools.partial(find, source, dataset) if path == source or layout.is_pickled else None
    rows = RowFile(path, stamp, file, (size // length, length), unpack=unpack)
    rows.keep(records)
    rows.check_labels([(label.feature.replace("_", " "), 0, len(label.class_names) - 1) for label in labels])
    return rows


def _unpickled(handle: IO[bytes], where: str, labels: tuple[Label, ...]) -> IO[bytes]:
    batch = pickled.load(handle, where)
    if not isinstance(batch, dict):
        raise DataError(f"{where}: holds a {type(batch).__name__}, not the dictionary of a batch")
    batch = {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
    for key in ("data", *(label.key for label in labels)):
        if key not in batch:
            raise DataError(f"{where}: its dictionary has no {key!r}; it is not a batch of this data set")
    columns = [_column(batch[label.key], label, where) for label in labels]
    array, expected = batch["data"], (len(columns[0]), PIXELS)
    try:
        pixels = array.values() if isinstance(array, pickled.Array) else np.empty(0, np.uint8)
    except (ValueError, TypeError):
        raise DataError(
            f"{where}: its data has {len(array.data)} bytes, not those of its shape; get the file again"
        ) from None
    if pixels.shape != expected or any(len(column) != len(pixels) for column in columns):
        lengths = " and ".join(str(len(column)) for column in columns)
        raise DataError(f"{where}: its data is {pixels.shape} for {lengths} labels; must be uint8 {expected}")
    blocks = (slice(start, start + _ROWS) for start in range(0, len(pixels), _ROWS))
    labels_of_rows = np.stack(columns, axis=1)
    return streams.spool(np.concatenate([labels_of_rows[rows], pixels[rows]], axis=1).tobytes() for rows in blocks)


def _column(values: Any, label: Label, where: str) -> NDArray[np.uint8]:
    """Returns a list of labels as bytes."""
    if not isinstance(values, list) or not values:
        raise DataError(f"{where}: its {label.key} is no list of labels; it is not a batch of this data set")
    high = len(label.class_names) - 1
    for row, value in enumerate(values):
        if type(value) is not int or not 0 <= value <= high:
            shown = value if isinstance(value, int) else f"a {type(value).__name__}"
            raise DataError(f"{where}: row {row}: {label.key} has {shown}, which is not in 0..{high}")
    return np.array(values, np.uint8)
