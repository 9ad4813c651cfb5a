"""The next version of a data set, with labels set and records deleted: rewrites the shards that hold these records.

A shard is a function of the parent, the edits and its number. The manifest's totals are computed from the parent's and
from the edited records: only the pixels of deleted records are decoded.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from beam_jobs import drafts
from beam_jobs.examples.records import of_serialized
from beam_jobs.shards import extended, writer
from beam_jobs.shards.extended import Sizes
from pipeline import images
from pipeline.commands.text import count_of, some_of
from pipeline.errors import DataError, UsageError
from pipeline.files.paths import StoragePath
from pipeline.manifest import EDITED_VERSION, Column, Edit, Feature, Manifest, ShardInfo, SplitInfo, croissant, naming
from pipeline.manifest.columns import Columns, encode
from pipeline.manifest.manifest import size_histogram
from pipeline.manifest.splits import select
from pipeline.read.statistics import PixelSums, entropy, label_histogram, moments
from pipeline.records import tf_example
from pipeline.records.stream import records_of

Label: TypeAlias = int | float | NDArray[np.int64]
_MOST_KEYS = 5  # in a message
_REDACTED = '{"file": "", "reason": "names a record that was deleted", "row": 0, "split": ""}\n'


@dataclasses.dataclass(frozen=True)
class Edits:
    """What to change in a data set.

    Attributes:
      labels: {key: label to set}: an int, a float, or int64 (classes,), as the records hold it.
      deleted: keys of the records to delete.
      class_names: names of the classes: the data set's, then new ones.
    """

    labels: Mapping[bytes, Label]
    deleted: frozenset[bytes]
    class_names: tuple[str, ...]

    def digest(self, parent: str) -> str:
        """Returns the SHA-256, hexadecimal, of the edits and of the digest of the version that they change."""
        labels = sorted((key.hex(), np.asarray(label).tolist()) for key, label in self.labels.items())
        content = [parent, labels, sorted(key.hex() for key in self.deleted)]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Places:
    """Where the records to edit are.

    Attributes:
      labels: {shard: {record number: label to set}}, for records that have another label.
      deleted: {shard: numbers of the records to delete}.
      removed: names of the shards, of any version, that hold records to delete.
    """

    labels: Mapping[str, Mapping[int, Label]]
    deleted: Mapping[str, frozenset[int]]
    removed: tuple[str, ...]

    def names(self, made: Manifest) -> dict[str, str]:
        """Returns {shard to rewrite: its new name}; the name is empty if none of its records stay.

        Args:
          made: manifest of the version that is edited.
        """
        found: dict[str, str] = {}
        for split, info in made.splits.items():
            edited = [shard for shard in info.shards if shard.file in self.labels or shard.file in self.deleted]
            filled = [s.file for s in edited if len(self.deleted.get(s.file, ())) < s.num_examples]
            found |= {shard.file: "" for shard in edited}
            for index, file in enumerate(filled):
                packing = made.compression
                found[file] = naming.shard_name(split, index, len(filled), packing, made.version + 1)
        return found

    @property
    def edit(self) -> Edit:
        """Summary of the edits for the manifest, without their digest."""
        labels, deleted = sum(map(len, self.labels.values())), sum(map(len, self.deleted.values()))
        return Edit("", labels, deleted, self.removed)


def find(data_dir: StoragePath, made: Manifest, older: Iterable[Manifest], edits: Edits) -> Places:
    """Returns where the records to edit are, reading all keys of the data set.

    Args:
      data_dir: folder of the data set.
      made: its newest version.
      older: its other versions, which are also searched for the records to delete.
      edits: what to change.

    Raises:
      DataError: a shard cannot be read.
      UsageError: the data set lacks some of the keys, records to label are in a split without labels, or a split would
      lose all its records.
    """
    labels, deleted, seen = dict[str, dict[int, Label]](), dict[str, frozenset[int]](), set[bytes]()
    wanted = edits.labels.keys() | edits.deleted
    for split, info in made.splits.items():
        for shard in info.shards:
            own, gone = dict[int, Label](), set[int]()
            for number, key, record in _wanted(data_dir, shard, wanted):
                seen.add(key)
                if key in edits.deleted:
                    gone.add(number)
                    continue
                if not info.has_labels:
                    raise UsageError(
                        f"--set_labels: records of the split {split!r}, such as {_shown([key])}, have no labels"
                    )
                if not np.array_equal(_label_of(record, made.features["label"]), edits.labels[key]):
                    own[number] = edits.labels[key]
            labels |= {shard.file: own} if own else {}
            deleted |= {shard.file: frozenset(gone)} if gone else {}
        if sum(len(deleted.get(shard.file, ())) for shard in info.shards) == info.num_examples:
            raise UsageError(
                f"--delete: no record of the split {split!r} would stay, and each split of a data set must have "
                "records; convert what stays into another folder, and remove this one"
            )
    for flag, keys in (("set_labels", edits.labels.keys()), ("delete", edits.deleted)):
        if missing := sorted(keys - seen):
            raise UsageError(
                f"--{flag}: the data set lacks {len(missing):,} of {count_of(len(keys), 'key')}: "
                f"{_shown(missing)}; nothing was changed"
            )
    listed = {shard.file for shard in made.shards}
    others = {shard.file: shard for one in older for shard in one.shards if shard.file not in listed}
    there = (shard.file for shard in others.values() if any(_wanted(data_dir, shard, edits.deleted)))
    return Places(labels, deleted, tuple(sorted({*deleted, *(there if edits.deleted else ())})))


def _shown(keys: list[bytes]) -> str:
    return some_of([repr(key.decode(errors="backslashreplace")) for key in keys[: _MOST_KEYS + 1]], _MOST_KEYS)


def _wanted(data_dir: StoragePath, shard: ShardInfo, keys: Iterable[bytes]) -> Iterator[tuple[int, bytes, bytes]]:
    """Yields (number, key, record) for each record of a shard that has one of the keys."""
    file, number = data_dir / shard.file, -1
    for number, (offset, record) in enumerate(records_of(file, shard.compression)):
        if (key := tf_example.key_of(record, "key", file, number, offset)) in keys:
            yield number, key, record
    if number + 1 != shard.num_examples:
        raise DataError(f"{number + 1} records, but the manifest says {shard.num_examples}", path=file)


def _label_of(record: bytes, feature: Feature) -> Any:
    values = tf_example.decode(record, ["label"]).get("label", [])
    return values[0] if len(values) == 1 and not feature.shape else values


def write(folder: StoragePath, data_dir: StoragePath, parent: Manifest, edits: Edits, places: Places) -> None:
    """Writes the shards, the columns, the list of invalid rows and the manifest of an edit.

    Args:
      folder: folder to write them to.
      data_dir: folder of the data set.
      parent: version that is edited.
      edits: what to change.
      places: where the records to edit are.

    Raises:
      DataError: a file cannot be read or written.
    """
    names = places.names(parent)
    changes = {
        shard.file: _rewritten(folder, data_dir, parent, shard, names[shard.file], edits, places)
        for shard in parent.shards
        if shard.file in names
    }
    splits = {name: _split(name, parent, edits, changes, data_dir) for name in parent.splits}
    edit = dataclasses.replace(places.edit, sha256=edits.digest(parent.digest))
    mean, std = _moments(parent, changes, data_dir)
    made = dataclasses.replace(
        parent,
        class_names=edits.class_names,
        splits=splits,
        image_mean=mean,
        image_std=std,
        format_version=EDITED_VERSION,
        columns=_columns(folder, data_dir, parent, changes),
        parent=parent.digest,
        version=parent.version + 1,
        edit=edit,
    )
    _redact(folder, data_dir, edits.deleted)
    for name, data in croissant.files(data_dir, made, is_new=True).items():
        drafts.publish(folder / name, data)
    drafts.publish(folder / naming.MANIFEST, made.to_bytes())


@dataclasses.dataclass(frozen=True)
class _Change:
    """The effect of an edit on a shard.

    Attributes:
      info: entry of the new shard in the manifest; None if no record stays.
      labels: {number in the old shard: new label}.
      num_bytes: {number in the old shard: bytes of the record}, for records with a new label.
      deleted: numbers in the old shard of the records that are deleted.
      before, after: labels of the edited records, in both versions.
      sizes: sizes of the deleted images.
      sums: sums over the pixels of the deleted images.
    """

    info: ShardInfo | None
    labels: Mapping[int, Label]
    num_bytes: Mapping[int, int]
    deleted: frozenset[int]
    before: list[Any]
    after: list[Any]
    sizes: Sizes
    sums: PixelSums


def _rewritten(
    folder: StoragePath,
    data_dir: StoragePath,
    parent: Manifest,
    shard: ShardInfo,
    name: str,
    edits: Edits,
    places: Places,
) -> _Change:
    labels, deleted = places.labels.get(shard.file, {}), places.deleted.get(shard.file, frozenset())
    feature, file = parent.features["label"], data_dir / shard.file
    sums, sizes = PixelSums(len(parent.image_mean)), Sizes()
    kept, every, before, lengths = [], [], [], dict[int, int]()
    for number, (offset, record) in enumerate(records_of(file, shard.compression)):
        label = _label_of(record, feature)
        if number in deleted or number in labels:
            before.append(label)
        if number in deleted:
            pixels = _pixels(record, parent, file, offset)
            sums.add(pixels)
            sizes[pixels.shape[0], pixels.shape[1]] += 1
            continue
        if number in labels:
            label = np.asarray(labels[number])
            kept.append(tf_example.replaced(record, "label", labels[number]))
            lengths[number] = len(kept[-1])
        else:
            kept.append(record)
        every.append(label)
    info = None
    if name:
        bits = entropy(_histogram(every, feature, edits.class_names)) if feature.is_class else None
        made, info = writer.drafted(folder, name, of_serialized(kept), parent.compression, bits)
        for draft in made:
            draft.publish()
    return _Change(info, labels, lengths, deleted, before, list(labels.values()), sizes, sums)


def _pixels(record: bytes, made: Manifest, file: StoragePath, offset: int) -> NDArray[np.uint8]:
    """Returns the pixels of a record's image as a conversion sums them: uint8 (height, width, channels)."""
    try:
        data, feature = bytes(tf_example.decode(record, ["image"])["image"][0]), made.features["image"]
        if feature.encoding == "raw":
            return tf_example.image(data, feature)
        return images.with_channels(images.pixels(images.open_file(data)), len(made.image_mean))
    except (images.BadImageError, ValueError, LookupError) as error:
        raise DataError(f"no image: {error}", path=file, offset=offset) from None


def _histogram(labels: list[Any], feature: Feature, class_names: tuple[str, ...]) -> tuple[int, ...]:
    array = np.array(labels, feature.dtype).reshape(len(labels), *feature.shape)
    return label_histogram(array, len(class_names))


def _split(
    name: str, parent: Manifest, edits: Edits, changes: Mapping[str, _Change], data_dir: StoragePath
) -> SplitInfo:
    there, feature = parent.splits[name], parent.features["label"]
    own = [changes[shard.file] for shard in there.shards if shard.file in changes]
    infos = [changes[shard.file].info if shard.file in changes else shard for shard in there.shards]
    before, after = ([label for change in own for label in getattr(change, when)] for when in ("before", "after"))
    histogram = extended.padded(there.label_histogram, edits.class_names)
    if histogram:
        less, more = (_histogram(labels, feature, edits.class_names) for labels in (before, after))
        histogram = tuple(count - a + b for count, a, b in zip(histogram, less, more, strict=True))
    removed = sum((change.sizes for change in own), Sizes())
    sizes = there.image_sizes
    if removed:
        left = extended.sizes_of(parent, name, data_dir)
        left.subtract(removed)
        sizes = size_histogram(+left)
    return dataclasses.replace(
        there, shards=tuple(info for info in infos if info), label_histogram=histogram, image_sizes=sizes
    )


def _moments(
    parent: Manifest, changes: Mapping[str, _Change], data_dir: StoragePath
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    shards = (shard.file for name in extended.trained(parent) for shard in parent.splits[name].shards)
    removed = [changes[file].sums for file in shards if file in changes and changes[file].sums.pixels]
    if not removed:
        return parent.image_mean, parent.image_std
    [left] = extended.sums_of(parent, data_dir)
    for part in removed:
        minus = PixelSums(part.channels, -part.pixels, [-s for s in part.sums], [-s for s in part.squares])
        left.merge(minus)
    return moments([left])


def _columns(
    folder: StoragePath, data_dir: StoragePath, parent: Manifest, changes: Mapping[str, _Change]
) -> dict[str, Column]:
    """Writes the columns that the edits change; returns the manifest entries of all columns."""
    found, are_deleted = dict(parent.columns), any(change.deleted for change in changes.values())
    for name, column in parent.columns.items():
        is_made = not column.is_own and (name == "label" or name not in parent.features)  # not a column of the source
        follows = {"label": "labels", "bytes": "num_bytes"}.get(name, "") if is_made else ""
        if not (are_deleted or follows):
            continue
        arrays = {}
        for split in column.files:
            values = Columns(data_dir.url, parent, select(parent, split))[name]
            values = values.astype(np.int64) if values.dtype.kind == "i" else values.copy()
            keep = np.ones(len(values), np.bool_)
            for file, first in parent.splits[split].firsts.items():
                if change := changes.get(file):
                    keep[[first + number for number in change.deleted]] = False
                    for number, value in getattr(change, follows).items() if follows else ():
                        values[first + number] = value
            arrays[split] = values[keep]
        names = column.values
        if names:  # names that only deleted records had must not stay in the manifest
            used = np.unique(np.concatenate([*arrays.values()]))
            names = tuple(names[code] for code in used.tolist())
            arrays = {split: np.searchsorted(used, codes) for split, codes in arrays.items()}
        made, files = encode(arrays, names)
        found[name] = dataclasses.replace(made, is_own=column.is_own)
        (folder / naming.COLUMNS).make_folder()
        for split, data in files.items():
            drafts.publish(folder / naming.column_name(split, name, made.files[split]), data)
    return found


def _redact(folder: StoragePath, data_dir: StoragePath, deleted: frozenset[bytes]) -> None:
    """Writes the list of invalid rows, with a placeholder for each line that names a deleted record."""
    path, keys = data_dir / naming.REJECTS, [key.decode(errors="backslashreplace") for key in deleted]
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if keys else []
    except FileNotFoundError:  # never written, or removed by its owner
        lines = []
    made = [_REDACTED if any(_names(line, key) for key in keys) else line for line in lines]
    if made != lines:
        drafts.publish(folder / naming.REJECTS, "".join(made).encode())


def _names(line: str, key: str) -> bool:
    """Returns whether a line of the invalid rows names a key: as its file, `<file>#<row>`, or in its reason."""
    try:
        row = json.loads(line)
        file, _, number = key.rpartition("#")
        is_row = row["file"] == file and number.isdecimal() and row["row"] == int(number)
        return is_row or row["file"] == key or repr(key) in row["reason"]
    except (ValueError, LookupError, TypeError):  # edited by its owner
        return key in line
