"""Loads a split by every way there is to read it."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np

from pipeline import RandomAccess
from pipeline import manifest as manifests
from pipeline.manifest.splits import select
from pipeline.read.corruption import Corruption
from pipeline.read.records_reader import RecordsReader
from pipeline.read.rows_reader import RowsReader, all_pieces
from pipeline.read.shards import Shards


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A split's examples: uint8 (n, height, width, channels), int64 (n,), n keys."""

    images: np.ndarray
    labels: np.ndarray
    keys: list[bytes]


def load(data_dir: pathlib.Path, split: str) -> Loaded:
    """Returns a split of raw images that are not compressed, after checking that all readers agree on it.

    Raises:
      PipelineError: of the first reader that refuses.
    """
    examples = RandomAccess(data_dir, split)[:]
    loaded = Loaded(
        np.stack([example["image"] for example in examples]),
        np.array([example["label"] for example in examples]),
        [example["key"] for example in examples],
    )
    manifest = manifests.load(data_dir)
    selection = select(manifest, split)
    shards = Shards.found(data_dir, selection.segments, Corruption(str(data_dir)))
    records = RecordsReader(shards).read(all_pieces(selection)).as_bytes()
    assert all(key in record for key, record in zip(loaded.keys, records, strict=True))
    reader = RowsReader.fit(manifest, shards, with_keys=True)
    if reader is not None:
        rows = reader.read(all_pieces(selection))
        assert np.array_equal(rows.images.reshape(loaded.images.shape), loaded.images)
        assert rows.labels.tolist() == loaded.labels.tolist()
        assert rows.keys.tolist() == loaded.keys
    return loaded
