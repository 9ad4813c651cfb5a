"""Several data sets as one: classes are matched by name, features are kept, and keys begin with the data set's name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from beam_jobs.sources import base
from beam_jobs.sources.base import Block, Source, Texts
from pipeline.commands.text import shape_of
from pipeline.errors import DataError
from pipeline.files.paths import StoragePath
from pipeline.records import labels, splits


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class JoinedSource(Source):
    """The rows of several sources, concatenated within each split.

    Attributes:
      inner: {name in messages: source}.
      numbers: {name: new label of each of its classes}.
    """

    inner: dict[str, Source]
    numbers: dict[str, tuple[int, ...]]

    def chunks(self, split: str) -> NDArray[np.int64] | None:
        return base.joined_chunks([(source, split) for source in self._with(split).values()])

    def hashes(self, split: str, start: int, stop: int) -> NDArray[np.uint64]:
        made = np.empty(stop - start, np.uint64)
        rows = np.arange(start, stop, dtype=np.int64)
        for name, positions, own in self._parts(split, rows):
            made[positions] = self.inner[name].hashes(split, int(own[0]), int(own[-1]) + 1)
        return made

    def where(self, split: str, row: int) -> tuple[str, int]:
        name, _, own = self._parts(split, np.array([row], np.int64))[0]
        file, in_file = self.inner[name].where(split, int(own[0]))
        return f"{name}/{file}", in_file

    def texts(self, column: str, needed: str = "") -> Texts:
        """Returns a feature's values in all records; equal values of different data sets are one."""
        codes, rows = dict[str, int](), list[NDArray[np.int64]]()
        found = {name: source.texts(column, needed) for name, source in self.inner.items()}
        for split in self.splits:
            for name, source in self._with(split).items():
                names = [*source.splits]
                first = sum(source.splits[before] for before in names[: names.index(split)])
                numbers = np.array([codes.setdefault(value, len(codes)) for value in found[name].values], np.int64)
                rows.append(numbers[found[name].codes[first : first + source.splits[split]]])
        return Texts(np.concatenate(rows), tuple(codes))

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        found = []
        for name, positions, own in self._parts(split, rows):
            block, prefix = self.inner[name].read(split, own), f"{name}/".encode()  # as if this were the keys' folder
            are_listed = isinstance(block.keys, list)
            keys: Any = [prefix + key for key in block.keys] if are_listed else np.char.add(prefix, block.keys)
            labels = base.renumbered(block.labels, self.numbers[name])
            found.append((positions, dataclasses.replace(block, labels=labels, keys=keys)))
        return Block.joined(found)

    def _with(self, split: str) -> dict[str, Source]:
        return {name: source for name, source in self.inner.items() if split in source.splits}

    def _parts(self, split: str, rows: NDArray[np.int64]) -> list[tuple[str, NDArray[np.int64], NDArray[np.int64]]]:
        names, counts = zip(*((name, source.splits[split]) for name, source in self._with(split).items()), strict=True)
        return [(names[number], positions, own) for number, positions, own in base.by_part(counts, rows)]


def joined(dataset: str, root: StoragePath, sources: Mapping[str, Source]) -> Source:
    """Joins sources into one; keys get the name of their source as a prefix: `<name>/<key>`.

    Two sources may have equal keys, as two image folders with equal file names do. Keys are still checked to be unique,
    as one data set may be inside another.

    Args:
      dataset: name of the result, unless all sources have the same name.
      root: common folder of the sources, for errors.
      sources: {folder in it: source}, at least one.

    Raises:
      DataError: the sources differ in the form of their images or in their other features, or class names look alike.
    """
    (first, one), *others = sources.items()
    for name, other in others:
        _check_alike(root, (first, one), (name, other))
    names = list(one.class_names)
    if any(other.class_names != one.class_names for _, other in others):
        every = {name for source in sources.values() for name in source.class_names}
        for pair in labels.alike(every):
            raise DataError(
                f"its data sets have the classes {' and '.join(map(ascii, pair))}, which look alike but would be two",
                path=root,
                advice="convert one of them again with the other's name",
            )
        names = labels.in_order(every)
    numbers = {name: number for number, name in enumerate(names)}
    rows: dict[str, int] = {}
    for source in sources.values():
        for split, count in source.splits.items():
            rows[split] = rows.get(split, 0) + count
    return JoinedSource(
        dataset=one.dataset if all(other.dataset == one.dataset for _, other in others) else dataset,
        class_names=tuple(names),
        files=tuple(
            dataclasses.replace(file, file=f"{name}/{file.file}")
            for name, source in sources.items()
            for file in source.files
        ),
        splits={split: rows[split] for split in splits.in_order(rows)},
        image_shape=one.image_shape,
        features=one.features,
        unique_keys=False,
        inner=dict(sources),
        numbers={name: tuple(numbers[each] for each in source.class_names) for name, source in sources.items()},
    )


def _check_alike(root: StoragePath, one: tuple[str, Source], other: tuple[str, Source]) -> None:
    (first, source), (name, another) = one, other
    if not source.label.is_class or not another.label.is_class:
        labels_of = f"labels are {source.label} in {first} and {another.label} in {name}"
        raise DataError(f"{labels_of}; only data sets with one class per image can be joined", path=root)
    if source.image_shape != another.image_shape:
        forms = [shape_of(each.image_shape) if each.image_shape else "files" for each in (source, another)]
        raise DataError(
            f"the images of {first} are {forms[0]}, those of {name} {forms[1]}",
            path=root,
            advice="convert one of them again, with the same --image_encoding and --resize",
        )
    different = _features(source) ^ _features(another)
    if different:
        feature = min(each for each, _ in different)
        here, there = (each.features.get(feature) for each in (source, another))
        problem = f"the feature {feature!r} is {here or 'missing'} in {first} and {there or 'missing'} in {name}"
        if here and there and here.class_names != there.class_names:
            problem += f", of the classes {', '.join(here.class_names)} and {', '.join(there.class_names)}"
        raise DataError(
            problem,
            path=root,
            advice="convert one of them again, with the same --keep_columns and types (NAME:float32)",
        )


def _features(source: Source) -> set[tuple[str, str]]:
    return {(name, repr(feature)) for name, feature in source.features.items()}
