"""The records of CIFAR's files, found where they are or unpacked: each a byte for each label, then 3,072 of pixels.

Format: https://www.cs.toronto.edu/~kriz/cifar.html. A pickle becomes a temporary file of such records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import archive, streams
from beam_jobs.sources.cifar import pickled
from beam_jobs.sources.cifar.layout import LABELS, LAYOUTS, PIXELS, Label, Layout
from beam_jobs.sources.row_files import RowFile
from beam_jobs.storage.paths import LocalPath
from pipeline.errors import DataError
from pipeline.manifest import SourceFile

_ROWS = 1024  # that are written at once, 3 MB

Found = tuple[RowFile, IO[bytes]]  # one file, checked, and the open file of its records


def find(path: LocalPath, dataset: str) -> tuple[Layout, list[Found]]:
    """Returns the layout that a folder or an archive has, and its files in the layout's order.

    Raises:
      DataError: it has none, a file is missing, damaged or not of the data set.
    """
    if not path.exists():
        folders = " or ".join(layout.folder for layout in LAYOUTS[dataset])
        raise DataError(f"{path}: no such folder or file; --source of {dataset} is the folder {folders} or its .tar.gz")
    if not path.is_dir():
        return _of_archive(path, dataset)

    def score(layout: Layout, folder: LocalPath) -> int:
        return sum((folder / name).exists() for name in layout.names)

    def folder_of(layout: Layout) -> LocalPath:
        return max(path / layout.folder, path, key=lambda folder: score(layout, folder))

    layout = _choose(path, dataset, lambda layout: score(layout, folder_of(layout)))
    return layout, [load(folder_of(layout) / name, name, layout, dataset) for name in layout.names]


def load(path: LocalPath, name: str, layout: Layout, dataset: str) -> Found:
    """Returns one file of a folder; see `find`."""
    stamp = streams.stamp(path)
    handle = streams.open_plain(path)
    with streams.errors_of(path):
        file, records = _checked(handle, name, str(path), layout, dataset)
    return RowFile(path, file, stamp, layout.is_pickled), records


def _of_archive(path: LocalPath, dataset: str) -> tuple[Layout, list[Found]]:
    members = [(layout.folder, name) for layouts in LAYOUTS.values() for layout in layouts for name in layout.names]
    stamp = streams.stamp(path)
    handles = archive.unpack(path, members)
    layout = _choose(path, dataset, lambda layout: sum((layout.folder, name) in handles for name in layout.names))
    found = []
    for name in layout.names:
        if (layout.folder, name) not in handles:
            raise DataError(f"{path}: holds no {layout.folder}/{name}")
        file, records = _checked(handles[layout.folder, name], name, f"{path}: {name}", layout, dataset)
        found.append((RowFile(path, file, stamp, packed=True), records))
    return layout, found


def _choose(path: LocalPath, dataset: str, score: Callable[[Layout], int]) -> Layout:
    """Returns the layout of which most files are present, as `score` counts them."""
    best = max(LAYOUTS[dataset], key=score)
    if score(best):
        return best
    for other, layouts in LAYOUTS.items():
        if any(map(score, layouts)):
            raise DataError(f"{path}: holds the files of --dataset={other}, not of {dataset}")
    names = " nor ".join(f"{layout.folder}/{layout.names[0]}" for layout in LAYOUTS[dataset])
    raise DataError(f"{path}: holds neither {names}")


def _checked(handle: IO[bytes], name: str, where: str, layout: Layout, dataset: str) -> tuple[SourceFile, IO[bytes]]:
    """Returns a file's description and its records, which are whole and have labels in range."""
    labels = LABELS[dataset]
    file = streams.describe(name, handle)
    records = _unpickled(handle, where, labels) if layout.is_pickled else handle
    size, length = streams.size(records), len(labels) + PIXELS
    if not size or size % length:
        raise DataError(f"{where}: has {size} bytes, not a whole number of {length}-byte records; get the file again")
    row = 0
    for block in streams.scan(records, 0, size, length):
        values = np.frombuffer(block, np.uint8, len(block) // length * length).reshape(-1, length)
        for i, label in enumerate(labels):
            _check_label(values[:, i], label, row, where)
        row += len(values)
    return file, records


def _check_label(values: NDArray[np.uint8], label: Label, row: int, where: str) -> None:
    high = len(label.class_names) - 1
    if values.max(initial=0) > high:
        at = int(np.argmax(values > high))
        kind = label.feature.replace("_", " ")
        raise DataError(f"{where}: row {row + at}: {kind} {values[at]} is not in 0..{high}")


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
