"""A source whose rows are appended to a data set: its classes have that one's labels, and keys that it has are invalid.

Classes that the data set does not have come behind those that it has, so that no label of a stored record changes.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Self

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources.base import Block, Source
from beam_jobs.sources.known_keys import KeyTable
from pipeline.commands.text import some_of
from pipeline.errors import UsageError
from pipeline.files.paths import StoragePath
from pipeline.manifest import Feature, Manifest
from pipeline.manifest.manifest import IMAGE_FEATURES

_MOST_CLASSES = 8  # in a message


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class AppendedSource(Source):
    """The rows of a source as a data set takes them.

    Attributes:
      inner: source of the rows.
      numbers: label in the data set for each of the source's classes; empty if labels are not classes.
      known: file with the hashes of the data set's keys, which no row may have; None: rows are not compared yet.
    """

    inner: Source
    numbers: tuple[int, ...] = ()
    known: StoragePath | None = None

    @classmethod
    def of(cls, inner: Source, parent: Manifest) -> Self:
        """Returns the rows of a source for a data set.

        Raises:
          UsageError: its features or labels differ from the data set's.
        """
        _check_features(inner, parent)
        names, numbers = list(parent.class_names), tuple[int, ...]()
        if inner.label.is_class:
            names += [name for name in inner.class_names if name not in names]
            numbers = tuple(names.index(name) for name in inner.class_names)
        shared = {field.name: getattr(inner, field.name) for field in dataclasses.fields(Source)}
        return cls(**{**shared, "class_names": tuple(names)}, inner=inner, numbers=numbers)

    def chunks(self, split: str) -> NDArray[np.int64] | None:
        """Returns the source's chunks."""
        return self.inner.chunks(split)

    def hashes(self, split: str, start: int, stop: int) -> NDArray[np.uint64]:
        """Returns the rows' hashes."""
        return self.inner.hashes(split, start, stop)

    def where(self, split: str, row: int) -> tuple[str, int]:
        """Returns (file, row in it)."""
        return self.inner.where(split, row)

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Returns rows; those whose key the data set has are bad."""
        block = self.inner.read(split, rows)
        if self.numbers != tuple(range(len(self.numbers))):
            numbers, labels = np.array(self.numbers, np.int64), block.labels
            is_class = (labels >= 0) & (labels < len(numbers))
            # What is no class of the source becomes -1, which is none of the data set either.
            block = dataclasses.replace(block, labels=np.where(is_class, numbers[np.where(is_class, labels, 0)], -1))
        if self.known is None:
            return block
        keys = [bytes(key) for key in (block.keys if isinstance(block.keys, list) else block.keys.tolist())]
        there = np.flatnonzero(_table(self.known).has(keys)).tolist()
        said = {row: f"its key, {keys[row].decode(errors='backslashreplace')!r}, is in the data set" for row in there}
        return dataclasses.replace(block, bad={**said, **block.bad})


@functools.lru_cache(maxsize=1)  # a worker makes many shards of one conversion
def _table(path: StoragePath) -> KeyTable:
    return KeyTable.load(path)


def _check_features(source: Source, parent: Manifest) -> None:
    """Raises UsageError, with its name, if a feature of a source is not that of a data set."""
    there = {name: feature for name, feature in parent.features.items() if name not in IMAGE_FEATURES}
    for name in sorted(there.keys() | source.features.keys()):
        was, here = there.get(name), source.features.get(name)
        if was != here:
            advice = "" if here else f"; --keep_columns={','.join(there)} keeps what it has"
            raise UsageError(
                f"--append: feature {name!r} is {_words(was)} in the data set and {_words(here)} in the source; all "
                f"records of a data set have the same features{advice}"
            )
    label = parent.features["label"]
    if source.label != label or (not label.is_class and source.class_names != parent.class_names):
        is_same = source.label == label
        names = [some_of(list(one.class_names), _MOST_CLASSES) for one in (parent, source)]
        what = f"the labels' classes are {names[0]}" if is_same else f"labels are {label}"
        raise UsageError(
            f"--append: {what} in the data set and {names[1] if is_same else source.label} in the source; a value per "
            "class, or a number, has one form in all records"
        )


def _words(feature: Feature | None) -> str:
    if feature is None:
        return "missing"
    classes = f" of {len(feature.class_names)} classes" if feature.class_names else ""
    return f"{feature}{classes}"


def added_classes(source: Source, parent: Manifest) -> list[str]:
    """Returns a line about the classes that a data set gets by an append; empty if it has them all."""
    names = source.class_names[len(parent.class_names) :] if source.label.is_class else ()
    if not names:
        return []
    shown = [f"{name!r} = {len(parent.class_names) + number}" for number, name in enumerate(names)]
    return [f"note: classes that the data set does not have, behind those that it has: {some_of(shown, _MOST_CLASSES)}"]
