"""A source whose rows are appended to a data set: classes get its labels, and rows with keys that it has are invalid.

New classes come after the data set's own, so that no label of a stored record changes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import base
from beam_jobs.sources.base import Block, Source
from beam_jobs.sources.known_keys import KeyTable, KnownKey
from pipeline.commands.text import count_of, some_of
from pipeline.errors import UsageError
from pipeline.files.paths import StoragePath
from pipeline.manifest import Feature, Manifest
from pipeline.manifest.manifest import BOX_LABELS, IMAGE_FEATURES, MASK
from pipeline.records import labels

_MOST_CLASSES = 8  # in a message


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class AppendedSource(Source):
    """The rows of a source in the form of the data set to append to.

    Attributes:
      inner: source of the rows.
      numbers: label in the data set for each of the source's classes; empty if labels are not classes.
      box_numbers: class in the data set for each of the source's classes of boxes; empty if they are numbers there.
      known: file with the hashes of the data set's keys, which no row may have; None until rows are compared.
    """

    inner: Source
    numbers: tuple[int, ...] = ()
    box_numbers: tuple[int, ...] = ()
    known: StoragePath | None = None

    @classmethod
    def of(cls, inner: Source, parent: Manifest) -> Self:
        """Returns the rows of a source in the form of a data set.

        Raises:
          UsageError: its features or labels differ from the data set's.
        """
        _check_features(inner, parent)
        names, numbers = parent.class_names, tuple[int, ...]()
        if MASK in parent.features and inner.label.is_class and not any(s.has_labels for s in parent.splits.values()):
            names = ()  # the names are the masks' classes
        elif inner.label.is_class:
            names, numbers = _joined_classes(parent.class_names, inner.class_names)
        features, box_numbers = dict(inner.features), tuple[int, ...]()
        for name in {MASK, BOX_LABELS} & features.keys():
            there, here = parent.features[name].class_names, features[name].class_names
            joined, box_numbers = _joined_classes(there, here) if name == BOX_LABELS else (here, box_numbers)
            if here or there != _numbered(len(there)):  # names that are numbers may differ by version
                features[name] = dataclasses.replace(features[name], class_names=joined if here else there)
        return cls.like(
            inner, class_names=names, features=features, inner=inner, numbers=numbers, box_numbers=box_numbers
        )

    def chunks(self, split: str) -> NDArray[np.int64] | None:
        return self.inner.chunks(split)

    def hashes(self, split: str, start: int, stop: int) -> NDArray[np.uint64]:
        return self.inner.hashes(split, start, stop)

    def where(self, split: str, row: int) -> tuple[str, int]:
        return self.inner.where(split, row)

    def invalid(self, split: str, row: int, reason: str) -> tuple[str, int, str]:
        return self.inner.invalid(split, row, reason)

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        block = self.inner.read(split, rows)
        if self.numbers != tuple(range(len(self.numbers))):
            block = dataclasses.replace(block, labels=base.renumbered(block.labels, self.numbers))
        if self.box_numbers != tuple(range(len(self.box_numbers))):
            of_boxes = [base.renumbered(classes, self.box_numbers) for classes in block.extra[BOX_LABELS]]
            block = dataclasses.replace(block, extra={**block.extra, BOX_LABELS: of_boxes})
        if self.known is None:
            return block
        keys = [bytes(key) for key in (block.keys if isinstance(block.keys, list) else block.keys.tolist())]
        there = np.flatnonzero(_table(self.known).has(keys)).tolist()
        return dataclasses.replace(block, bad={row: KnownKey.of(keys[row]) for row in there} | block.bad)


def _joined_classes(there: tuple[str, ...], here: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Returns the data set's classes followed by the source's new ones, and the number of each class of the source."""
    names = (*there, *(name for name in here if name not in there))
    for pair in labels.alike(names, as_numbers=True):
        if not ({*pair} <= {*there} or {*pair} <= {*here}):
            new, old = sorted(pair, key=there.__contains__)
            raise UsageError(
                f"--append: the class {new!a} of the source and {old!a} of the data set look alike (spaces, Unicode's "
                f"form of a letter, the form of a number) but would be two; call it {old!a} in the source, too"
            )
    return names, tuple(map(names.index, here))


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


@functools.lru_cache(maxsize=1)  # a worker makes many shards of one conversion
def _table(path: StoragePath) -> KeyTable:
    return KeyTable.load(path)


def _check_features(source: Source, parent: Manifest) -> None:
    """Raises UsageError, naming the feature, if one differs between a source and a data set."""
    there = {name: feature for name, feature in parent.features.items() if name not in IMAGE_FEATURES}
    for name in sorted(there.keys() | source.features.keys()):
        was, here = there.get(name), source.features.get(name)
        if _alike(name, was) != _alike(name, here):
            advice = "" if here else f"; --keep_columns={','.join(there)} keeps what it has"
            if was and here and was.dtype != here.dtype and not (was.convention or here.convention):
                advice = f"; --keep_columns={name}:{was.dtype} converts it"
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
    count, named = len(feature.class_names), some_of(list(feature.class_names), _MOST_CLASSES)
    classes = f" of {count_of(count, 'class', 'classes')}, {named}," if count else ""
    if not feature.convention:
        return f"{feature}{classes}"
    fill = f", filled with {feature.fill}" if feature.fill else ""
    return f"{feature.dtype} ({feature.convention}){classes}{fill}"


def _alike(name: str, feature: Feature | None) -> Feature | None:
    """Returns the part of a feature that must be equal: the number of boxes may differ, and classes match by name."""
    if feature is None or not feature.convention:
        return feature
    names = feature.class_names if name == MASK and feature.class_names != _numbered(len(feature.class_names)) else ()
    return dataclasses.replace(feature, shape=(), class_names=names)


def behind(what: str, there: Sequence[str], names: Sequence[str]) -> list[str]:
    """Returns a line about names that are added after a data set's own; empty if there are none."""
    shown = [f"{name!r} = {number}" for number, name in enumerate(names)][len(there) :]
    listed = some_of(shown, _MOST_CLASSES)
    return [f"note: {what} that the data set does not have, behind those that it has: {listed}"] if shown else []


def added_classes(source: Source, parent: Manifest) -> list[str]:
    """Returns lines about the classes that an append adds to a data set; empty if it adds none."""
    of_boxes = source.features.get(BOX_LABELS)
    pairs = [
        ("classes", parent.class_names, source.class_names if source.label.is_class else ()),
        ("classes of boxes", parent.features[BOX_LABELS].class_names, of_boxes.class_names) if of_boxes else None,
    ]
    found = []
    for what, there, names in filter(None, pairs):
        found += behind(what, there, names)
        new = names[len(there) :]
        if new and there and all(map(str.isdecimal, new)) and not any(map(str.isdecimal, there)):
            found.append(
                f"warning: {what} of the source are numbers, those of the data set names; if {new[0]} is "
                f"one of these, such as {there[0]!r}, convert a source with names"
            )
        found += [
            f"note: {what} {one!r} and {other!r} differ only in case"
            for one, other in labels.alike(names, ignore_case=True)
            if not {one, other} <= {*there}
        ]
    return found
