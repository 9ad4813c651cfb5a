"""Grain's `MapDataset` over ArrayRecord files, with worker processes."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from benchmarks.feeds.feed import Setting
from benchmarks.rounds import Take, taking

PACKAGES = ("grain", "array_record")
MODULES = ("grain", "array_record")
AUGMENTS = "the same, image by image in NumPy"
DOCS = "https://google-grain.readthedocs.io/en/latest/tutorials/dataset_basic_tutorial.html"
_SHAPE, _CROP, _FILES = (32, 32, 3), 24, 10


def prepare(setting: Setting) -> None:
    """Writes ArrayRecord files of label and pixels."""
    from array_record.python.array_record_module import ArrayRecordWriter  # noqa: PLC0415

    images, labels = (np.load(f"{setting.arrays}/{name}.npy") for name in ("images", "labels"))
    for number, rows in enumerate(np.array_split(np.arange(len(images)), _FILES)):
        writer = ArrayRecordWriter(f"{setting.own}/train-{number:05d}.arrayrecord", "group_size:1")
        for row in rows:
            writer.write(bytes([labels[row]]) + images[row].tobytes())
        writer.close()


def take(setting: Setting) -> Take:
    """Returns a Take of batches."""
    import grain  # noqa: PLC0415

    files = sorted(map(str, pathlib.Path(setting.own).glob("*.arrayrecord")))
    dataset = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(files)).seed(1).shuffle().repeat()
    dataset = dataset.map(_decoded)
    if setting.augmented:
        dataset = dataset.random_map(_augmented)
    workers = grain.multiprocessing.MultiprocessingOptions(num_workers=setting.cores)
    return taking(iter(dataset.batch(setting.rows).to_iter_dataset().mp_prefetch(workers)), setting.rows)


def _decoded(record: bytes) -> tuple[np.ndarray, np.int64]:
    return np.frombuffer(record, np.uint8, offset=1).reshape(_SHAPE), np.int64(record[0])


def _augmented(element: tuple[np.ndarray, Any], random: np.random.Generator) -> tuple[np.ndarray, Any]:
    image, label = element
    y, x = random.integers(0, _SHAPE[0] - _CROP + 1, 2)
    image = image[y : y + _CROP, x : x + _CROP].astype(np.float32)
    if random.random() < 0.5:
        image = image[:, ::-1]
    image = image + np.float32(random.uniform(-63, 63))
    mean = image.mean((0, 1))
    image = (image - mean) * np.float32(random.uniform(0.2, 1.8)) + mean
    return (image - image.mean()) / np.maximum(image.std(), np.float32(image.size**-0.5)), label
