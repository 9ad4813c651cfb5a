"""Labels of existing records: the kinds of labels, and their entries in a manifest, counted record by record.

A label is one class (a number, or its name as text), one float, or a vector of fixed length. A record without one gets
-1, or NaN if labels are floats; in a split either all records have a label or none do.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.commands.text import count_of, range_of, some_of
from pipeline.errors import DataError, UsageError, nearest
from pipeline.manifest import Feature
from pipeline.manifest.manifest import MOST_CLASSES, NO_LABEL
from pipeline.read.statistics import entropy, label_histogram
from pipeline.records.labels import MISSING, SeenLabels
from pipeline.records.schema import kind

KINDS = ("int64", "bytes", "float")  # kinds of values that may be labels
BY_PARSE = "read them with pipeline.input_fn(..., parse=FUNCTION): index them without --feature_map"
ANOTHER = "map another feature: --feature_map=label:NAME"
_MOST_SHOWN = 40  # most characters of a text in an error
_MOST_NAMED = 10  # most classes in a line


def check_kind(records: Sequence[Mapping[str, Any]], name: str, file: str) -> None:
    """Raises UsageError if the first records of a file hold labels of a kind that an index does not support.

    At least one of the records, decoded Examples, must have the feature.
    """
    values = [record[name] for record in records if len(record.get(name, ()))]
    lengths = Counter(map(len, values))
    usual, count = lengths.most_common(1)[0]
    what = ""
    if usual > 1 and kind(values[0]) == "bytes":
        what = f"records have {usual} texts"
    elif len(lengths) > 2 or len(values) - count > 1:  # a single exception is a damaged record
        what = f"records have {range_of(lengths)} values, such as the classes of an image with several"
    if what:
        raise UsageError(
            f"--feature_map=label:{name}: {file}: {what}; the label of an image in place is one class, one number, or "
            f"a vector of the same length in every record; {BY_PARSE}"
        )


def check_flags(feature: Feature, offset: int, names: Sequence[str], folder: object) -> None:
    """Raises UsageError if the feature's labels cannot have this offset or these class names."""
    if offset and not feature.is_class:
        what = "names of classes" if feature.dtype == "string" else str(feature)
        raise UsageError(f"--label_offset={offset}: is for class numbers; the labels are {what}")
    if feature.dtype != "string" and not feature.is_class and len(names) not in (0, *feature.shape):
        values = count_of(feature.shape[0] or 0, "value") if feature.shape else "one float"
        raise UsageError(
            f"there are {count_of(len(names), 'class name')}, but a label has {values}",
            path=folder,
            advice="--class_names=FILE names a class per line",
        )


class ShardLabels:
    """Labels of one file.

    Args:
      feature: dtype (string for class names), shape and offset of the stored labels.
      names: known class names; empty if the labels name themselves.
    """

    def __init__(self, feature: Feature, names: Sequence[str]) -> None:
        self.feature = feature
        self._names = {name.encode(): name for name in names}
        self._classes = len(names) or MOST_CLASSES
        self._texts: dict[bytes, bytes] = {}  # so that equal texts are one object
        self.values: list[Any] = []  # each record's label, texts as stored; for vectors, whether there is one
        self.missing: list[int] = []  # numbers of the records without a label
        self.words: set[str] = set()  # words for a missing label, such as `NA`
        # Number of records in which each value of a vector is not 0.
        self.positives = np.zeros(feature.shape[0] or 0 if feature.shape else 0, np.int64)
        self.are_parts = True  # whether all values of vectors are in 0..1
        of_dtype = {"string": self._text, "int64": self._class, "float32": self._number}
        self._checked: Callable[[Any], Any] = self._vector if feature.shape else of_dtype[feature.dtype]

    def add(self, stored: Any) -> None:
        """Counts the label of a record; None if it has none.

        Raises:
          ValueError: the label is not usable; the message explains why.
        """
        value = None if stored is None else self._checked(stored)
        if value is None:
            self.missing.append(len(self.values))
            value = False if self.feature.shape else self.feature.no_label
        self.values.append(value)

    def _class(self, stored: Any) -> int | None:
        label: int = self.feature.label_of(int(stored))
        if stored < NO_LABEL or (stored >= 0 and not 0 <= label < self._classes):
            offset = self.feature.offset
            shifted = f" (stored as {stored}, --label_offset={offset})" if offset else ""
            raise ValueError(f"label {label if stored >= 0 else stored}{shifted} is not in 0..{self._classes - 1}")
        return label if stored >= 0 else None

    def _text(self, stored: bytes) -> bytes | None:
        if stored in self._texts:
            return self._texts[stored]
        try:
            text = stored.decode()
        except UnicodeDecodeError:
            raise ValueError(f"label {stored[:_MOST_SHOWN]!r} is not UTF-8 text") from None
        if stored not in self._names:
            if text in ("", *MISSING):
                self.words |= {text} - {""}
                return None
            if self._names:
                near = nearest(text, [*self._names.values()])
                hint = f"; did you mean {near!r}?" if near else ""
                raise ValueError(
                    f"label {text[:_MOST_SHOWN]!r} is not one of the {len(self._names):,} class names{hint}"
                )
        self._texts[stored] = stored
        return stored

    def _number(self, stored: Any) -> float | None:
        if np.isinf(stored):
            raise ValueError(f"label {stored} is not a finite number")
        return None if np.isnan(stored) else float(stored)

    def _vector(self, stored: NDArray[Any]) -> bool:
        if not np.isfinite(stored).all():
            raise ValueError(f"label {stored.tolist()} has values that are not finite numbers")
        self.positives += stored != 0
        self.are_parts &= bool(((stored >= 0) & (stored <= 1)).all())
        return True


class SplitLabels(NamedTuple):
    """Labels of a split.

    Attributes:
      column: label of each record, (n,); None for vectors, or without labels.
      histogram: label histogram for `SplitInfo`.
      is_labelled: whether records have labels, if the histogram does not show it; else None.
      entropies: entropy of the classes in each file, in bits; None if labels are not classes, or missing.
    """

    column: NDArray[Any] | None
    histogram: tuple[int, ...]
    is_labelled: bool | None
    entropies: list[float | None]


@dataclasses.dataclass(frozen=True)
class Labels:
    """Labels of a data set.

    Attributes:
      feature: feature of the labels in the manifest.
      class_names: names of the classes; empty if labels are not classes.
      splits: labels of each split, by name.
    """

    feature: Feature
    class_names: tuple[str, ...]
    splits: dict[str, SplitLabels]


def described(
    splits: Mapping[str, Sequence[ShardLabels]], names: tuple[str, ...], folder: object, are_needed: bool = True
) -> Labels:
    """Returns the manifest's entries for labels that were counted.

    Args:
      splits: labels of the files of each split.
      names: class names of a file; empty if the labels name themselves.
      folder: folder of the data set, for errors.
      are_needed: whether some split must have labels; false if masks, boxes or points may take their place.

    Raises:
      DataError: only some records of a split have labels, no split has any, there are too many classes, or two names
        look alike.
    """
    for split, shards in splits.items():
        _check_whole(split, shards)
    every = [shard for shards in splits.values() for shard in shards]
    stored = every[0].feature
    if all(len(shard.missing) == len(shard.values) for shard in every):
        if are_needed:
            raise DataError("no record has a label", advice=ANOTHER)
        unlabelled = Feature("int64", stored_as=stored.stored_as or "label")
        return Labels(unlabelled, names, {split: _of_split(shards, unlabelled, 0) for split, shards in splits.items()})
    names = names or _own_names(every, stored, folder)
    feature = dataclasses.replace(stored, dtype="int64", texts=names) if stored.dtype == "string" else stored
    found = {split: _of_split(shards, feature, len(names)) for split, shards in splits.items()}
    return Labels(feature, names, found)


def _check_whole(split: str, shards: Sequence[ShardLabels]) -> None:
    count, missing = (sum(len(getattr(shard, name)) for shard in shards) for name in ("values", "missing"))
    if not 0 < missing < count:
        return
    before = 0
    for shard in shards:
        if shard.missing:
            break
        before += len(shard.values)
    advice = "choose files of one kind for each split with --split"
    if word := next((word for shard in shards for word in sorted(shard.words)), ""):
        advice = f"{word!r} is read as a missing value; where it is a class, --class_names=FILE names it"
    raise DataError(
        f"split {split!r}: {missing:,} of {count_of(count, 'record')} have no label, the first of them record "
        f"{before + shard.missing[0]:,} of the split; all must have one, or none",
        advice=advice,
    )


def _own_names(shards: Sequence[ShardLabels], stored: Feature, folder: object) -> tuple[str, ...]:
    """Returns class names if no file has any: distinct texts, or numbers; empty if labels are not classes."""
    if stored.shape:
        is_multi_hot = all(shard.are_parts for shard in shards)
        return tuple(map(str, range(stored.shape[0] or 0))) if is_multi_hot else ()
    if stored.dtype == "float32":
        return ()
    seen = SeenLabels(f"feature {stored.stored_as!r}", MOST_CLASSES, ANOTHER)
    for shard in shards:
        labels = {value for value in shard.values if value != NO_LABEL}
        seen.add((value.decode() if isinstance(value, bytes) else value for value in labels), folder)
    return seen.class_names(folder)


def _of_split(shards: Sequence[ShardLabels], feature: Feature, classes: int) -> SplitLabels:
    is_labelled = not any(shard.missing for shard in shards)
    if feature.shape:
        counts = np.sum([shard.positives for shard in shards], axis=0)
        histogram = tuple(counts.tolist()) if is_labelled and classes else ()
        return SplitLabels(None, histogram, is_labelled, [None] * len(shards))
    values = [[feature.label_of(value) if feature.texts else value for value in shard.values] for shard in shards]
    column = np.array([value for of_shard in values for value in of_shard], feature.dtype) if is_labelled else None
    if not feature.is_class:
        return SplitLabels(column, (), is_labelled, [None] * len(shards))
    bits = [entropy([*Counter(of_shard).values()]) if is_labelled else None for of_shard in values]
    return SplitLabels(column, () if column is None else label_histogram(column, classes), None, bits)


def lines(feature: Feature, class_names: Sequence[str], histograms: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Yields lines about the labels, given the `histograms` of the splits with labels."""
    if not class_names:
        yield f"  labels are numbers, not classes: {feature}"
        return
    count, ends = count_of(len(class_names), "class", "classes"), f"{class_names[0]} to {class_names[-1]}"
    yield f"  {count}: {ends}" + (f", a value for each in every label ({feature})" if feature.shape else "")
    if not feature.is_class:
        return
    totals = [sum(counts) for counts in zip(*histograms.values(), strict=True)]
    empty = [number for number, count in enumerate(totals) if not count]
    if empty == [0] and not feature.offset and not feature.texts:
        yield "  note: no label is 0; if the first class has the label 1, --label_offset=-1 makes it 0"
    if feature.offset < 0 and empty[-1:] == [len(class_names) - 1]:
        yield (
            f"  note: no record is of the last class, {class_names[-1]}; if the list of names begins with one for "
            "the stored label 0, such as a background, remove that"
        )
    trained = histograms.get("train", ())
    for split, counts in histograms.items() if trained else ():
        alone = [class_names[number] for number, count in enumerate(counts) if count and not trained[number]]
        if alone:
            some = some_of(alone, _MOST_NAMED)
            yield f"  note: {split} has records of {count_of(len(alone), 'class', 'classes')} that train lacks: {some}"
