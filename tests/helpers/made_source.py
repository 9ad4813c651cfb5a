"""A source whose rows are made by a test: pixels or files, chunks, other features, bad rows, its own keys."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import pathlib
import pickle
from typing import Any

import numpy as np

from beam_jobs.sources import base
from beam_jobs.sources.base import Block, Files, SourceOptions
from pipeline.manifest import Feature, SourceFile


@dataclasses.dataclass
class Content:
    """The rows of a split.

    Attributes:
      images: pixels (n, height, width, channels), or a list of files.
      labels: labels; by default 0, 1, 2, ... over the classes.
      keys: keys; by default `<file>#<row>`.
      extra, bad: further features and bad rows, as in `Block`.
      chunks: number of rows in each chunk, or None.
      files: {name: rows}; one file by default.
    """

    images: Any
    labels: Any = None
    keys: list[bytes] | None = None
    extra: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
    bad: dict[int, str] = dataclasses.field(default_factory=dict)
    chunks: list[int] | None = None
    files: dict[str, int] | None = None


@dataclasses.dataclass(frozen=True)
class MadeSource:
    """Reads the output of `write_source`."""

    path: str
    dataset: str
    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int] | None
    features: dict[str, Feature]
    splits: dict[str, int]
    files: tuple[SourceFile, ...]
    unique_keys: bool
    label: Feature = base.CLASS

    def __hash__(self):
        return hash(self.path)

    def chunks(self, split):
        chunks = self._content(split).chunks
        return None if chunks is None else np.array(chunks, np.int64)

    def hashes(self, split, start, stop):
        return self._files(split).hashes(start, stop)

    def where(self, split, row):
        return self._files(split).where(row)

    def invalid(self, split, row, reason):
        return (*self.where(split, row), reason)

    def read(self, split, rows):
        content = self._content(split)
        labels = np.arange(self.splits[split]) % len(self.class_names) if content.labels is None else content.labels
        listed = isinstance(content.images, list)
        return Block(
            [content.images[row] for row in rows] if listed else content.images[rows],
            np.asarray(labels, np.int64)[rows],
            self._keys(split, rows) if content.keys is None else [content.keys[row] for row in rows],
            {name: [values[row] for row in rows] for name, values in content.extra.items()},
            {place: content.bad[row] for place, row in enumerate(rows.tolist()) if row in content.bad},
        )

    def _keys(self, split, rows):
        files = self._files(split)
        numbers, own = base.locate(files.counts, rows)
        digits = base.row_digits(files.num_rows)
        keys = [base.row_keys(files.names[n], row[None], digits)[0] for n, row in zip(numbers, own, strict=True)]
        return np.array(keys)

    def _content(self, split):
        return _load(self.path, self.files[0].sha256)[1][split]

    def _files(self, split):
        files = self._content(split).files or {f"{split}.rows": self.splits[split]}
        return Files(tuple(files), tuple(files.values()))


def write_source(
    path: pathlib.Path,
    splits: dict[str, Content],
    classes: int = 10,
    features: dict[str, Feature] | None = None,
    unique_keys: bool = True,
) -> MadeSource:
    """Writes a source to a file and opens it."""
    path.write_bytes(pickle.dumps(({"classes": classes, "features": features, "unique_keys": unique_keys}, splits)))
    return open_source(SourceOptions("made", str(path)))


def open_source(options: SourceOptions) -> MadeSource:
    """Opens a file from `write_source`."""
    data = pathlib.Path(options.source).read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    facts, splits = _load(options.source, sha256)
    images = next(iter(splits.values())).images
    return MadeSource(
        path=options.source,
        dataset=options.dataset,
        class_names=tuple(f"class {i}" for i in range(facts["classes"])),
        image_shape=None if isinstance(images, list) else images.shape[1:],
        features=facts["features"] or {},
        splits={name: len(content.images) for name, content in splits.items()},
        files=(SourceFile("made.rows", len(data), sha256),),
        unique_keys=facts["unique_keys"],
    )


@functools.lru_cache(maxsize=4)
def _load(path: str, sha256: str) -> Any:
    del sha256  # part of the cache's key: another test's file may have the same path
    return pickle.loads(pathlib.Path(path).read_bytes())
