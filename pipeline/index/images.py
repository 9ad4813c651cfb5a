"""Images in another writer's records: their entries in a manifest, counted while the files are read.

The files stay unchanged, so no record can be left out: a record without a usable image or label is an error.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline import images
from pipeline.commands.text import count_of, shape_of
from pipeline.errors import DataError, UsageError, unknown
from pipeline.files.paths import StoragePath, path_of
from pipeline.index import labels
from pipeline.index.annotation import AnnotationFlags
from pipeline.index.labels import Labels, ShardLabels, SplitLabels
from pipeline.manifest import Feature, Manifest, PixelRule, ShardInfo, SplitInfo
from pipeline.manifest.columns import ORIENTATION, column_names, counted
from pipeline.manifest.manifest import (
    ANNOTATIONS_VERSION,
    CONVENTIONS,
    EXACT,
    IN_PLACE_VERSION,
    LABELS_VERSION,
    MASK,
    STORED,
    UPRIGHT,
    size_histogram,
)
from pipeline.read.statistics import PixelSums, moments
from pipeline.records import annotation, schema
from pipeline.records.annotation import ShardAnnotations
from pipeline.records.columns import Gathered, without_names
from pipeline.records.labels import beside, read_labels
from pipeline.records.schema import Schema, kind
from pipeline.records.stream import records_of

_MADE = ("bytes", "height", "width")  # columns of every data set of images
_FIRST_OF_OTHERS = 10  # records of each file after the first, to detect a different schema
_COLOURS = 3  # channels of images if some are grey and some in colour


@dataclasses.dataclass(frozen=True)
class ImageFlags:
    """Flags of the command about images, parsed.

    Attributes:
      feature_map: (name in the manifest, name in the records) of `image`, `label`, `key`, `mask`, `boxes`, `points`.
      label_offset: number to add to stored classes.
      class_names: file with a class name per line; empty for `labels.txt` next to the records, else the labels.
      keep_columns: other features to keep.
      image_shape: (height, width, channels) of raw pixels; None if the records state it, or images are encoded.
      orientation: orientation of the `PixelRule`.
      annotations: flags about masks, boxes and points.
    """

    feature_map: tuple[tuple[str, str], ...]
    label_offset: int = 0
    class_names: str = ""
    keep_columns: tuple[str, ...] = ()
    image_shape: tuple[int, int, int] | None = None
    orientation: str = STORED
    annotations: AnnotationFlags = dataclasses.field(default_factory=AnnotationFlags)

    @property
    def has_annotations(self) -> bool:
        """Whether masks, boxes or points are mapped; images then need no label."""
        return any(ours in CONVENTIONS for ours, _ in self.feature_map)

    @property
    def turns_images(self) -> bool:
        """Whether images are to be rotated by their EXIF data whenever they are decoded."""
        return self.orientation == UPRIGHT

    def named_classes(self, folder: StoragePath, files: Sequence[StoragePath], found: Schema) -> tuple[str, ...]:
        """Returns the class names of the file; empty if there is no file.

        Raises:
          UsageError: the file that the flag names is missing, or a class is named twice.
          DataError: the file is not a list of names, or files in several folders have different ones.
        """
        if self.class_names:
            names = read_labels(path_of(self.class_names), self.label_offset)
            if not names:
                raise UsageError(f"--class_names={self.class_names}: there is no such file")
        else:
            names = beside(folder, files, found.label, self.label_offset, found.has_text_labels)
        if twice := next((name for name, count in Counter(names).items() if count > 1), None):
            where = path_of(self.class_names) if self.class_names else folder
            raise UsageError(f"the class names have {twice!r} twice", path=where)
        return names


def schema_of(packings: Mapping[StoragePath, str], flags: ImageFlags) -> Schema:
    """Returns the schema of the records of all files, inferred from the first records of each.

    `packings` is the compression of each file.

    Raises:
      DataError: the records of a file are not Examples, or have a different schema than earlier files.
      UsageError: a flag does not fit the records, or their labels cannot be used.
    """
    found: dict[str, Schema] = {}
    sample: list[dict[str, Any]] = []  # records of the first file with any
    kept: list[Mapping[str, Any]] = []
    for file, packing in packings.items():
        count = _FIRST_OF_OTHERS if found else schema.FIRST_RECORDS
        records, seen = schema.first_examples((record for _, record in records_of(file, packing)), count)
        if not records:
            if seen:
                raise DataError(f"of {count_of(seen, 'record')} read, none is a tf.train.Example", path=file)
            continue
        found[str(file)] = _schema_of_file(records, str(file), flags)
        sample = sample or records
        # Without images, which would take gigabytes.
        kept += [{name: record[name] for name in flags.keep_columns if name in record} for record in records]
    if not found:
        raise DataError("the files hold no record")
    labelled = [name for name, one in found.items() if one.label]
    if not labelled and not flags.has_annotations:
        for name in _label_names(flags):
            if any(name in record for record in sample):
                raise DataError(
                    f"feature {name!r} is empty in the first records of all files",
                    path=next(iter(found)),
                    advice=labels.ANOTHER,
                )
        schema.infer(sample, next(iter(found)), flags.feature_map, flags.image_shape)  # the error lists the features
    _check_alike(found)
    first = next(iter(found))
    if flags.turns_images and found[first].image_shape:
        raise UsageError(f"--orientation={UPRIGHT}: {first}: holds raw pixels, which no EXIF data turn")
    extra = {
        name: schema.kept_feature([{**sample[0], **kept[0]}, *kept[1:]], name, first) for name in flags.keep_columns
    }
    placed = flags.annotations.features(flags.feature_map, sample, first)
    return dataclasses.replace(found[labelled[0] if labelled else first], extra=extra, placed=placed)


def _schema_of_file(records: Sequence[Mapping[str, Any]], file: str, flags: ImageFlags) -> Schema:
    names = dict(flags.feature_map)
    if other := next((ours for ours in names if ours not in (*schema.OWN_FEATURES, *CONVENTIONS)), None):
        raise unknown("--feature_map", other, (*schema.OWN_FEATURES, *CONVENTIONS))
    names = {ours: theirs for ours, theirs in names.items() if ours not in CONVENTIONS}
    label = next((name for name in _label_names(flags) if any(len(record.get(name, ())) for record in records)), None)
    if label is None:
        names.pop("label", None)
    else:
        labels.check_kind(records, label, file)
    kinds = () if label is None else labels.KINDS
    found = schema.infer(records, file, tuple(names.items()), flags.image_shape, label_kinds=kinds)
    keys = {kind(record[found.key]) for record in records if found.key in record}
    if keys - {"bytes"}:
        raise UsageError(f"--feature_map=key:{found.key}: {file}: holds {', '.join(sorted(keys))}; a key must be bytes")
    return found


def _label_names(flags: ImageFlags) -> tuple[str, ...]:
    """Returns the names of features that may be the label: the flag's, or usual ones."""
    named = dict(flags.feature_map).get("label")
    return schema.USUAL["label"] if named is None else (named,)


def _check_alike(found: Mapping[str, Schema]) -> None:
    """Raises DataError if the records of two files are not alike."""
    for field in ("image", "label", "labels", "key", "image_shape", "sizes"):
        known = {file: getattr(one, field) for file, one in found.items() if "label" not in field or one.label}
        first, usual = next(iter(known.items()), ("", None))
        for file, theirs in known.items():
            if theirs != usual:
                said, own = (repr(value) if isinstance(value, str) else str(value) for value in (theirs, usual))
                raise DataError(
                    f"its records have {field} {said}, those of {os.path.basename(first)} have {own}",
                    path=file,
                    record=0,
                    advice="index files of one schema together: choose them with --split",
                )


class ShardImages:
    """The images and labels of one file, counted record by record.

    Args:
      found: schema of the records.
      flags: flags about images.
      names: known class names; empty if the labels name themselves.
      decodes: whether to sum pixels, for their mean.
    """

    def __init__(self, found: Schema, flags: ImageFlags, names: Sequence[str], decodes: bool) -> None:
        self.schema, self._decodes, self._upright = found, decodes, flags.turns_images
        self.labels = ShardLabels(
            dataclasses.replace(found.labels, stored_as=found.label, offset=flags.label_offset), names
        )
        scalars = [name for name, feature in found.extra.items() if not feature.shape]
        self._columns = column_names(scalars, "--keep_columns")
        self.kept = {*self._columns.values()}  # kept features take precedence over computed columns
        if self._upright and ORIENTATION in self.kept:
            raise UsageError(f"--keep_columns: {ORIENTATION}: with --orientation={UPRIGHT} a column has this name")
        self.sizes: Counter[tuple[int, int, int]] = Counter()
        self.formats: set[str] = set()
        self.sums: dict[int, PixelSums] = {}  # {channels: sums}
        self.turned = 0
        self.annotations = ShardAnnotations(found.placed)
        self.keys: list[bytes] = []  # hashes of the keys
        made = (*_MADE, ORIENTATION) if self._upright else _MADE
        self._counted = [name for name in counted(found.placed) if name not in self.kept]
        self.columns = {name: Gathered() for name in (*made, *self._counted, *self._columns.values())}

    def add(self, record: bytes) -> None:
        """Counts a record.

        Raises:
          ValueError: it is not an Example with a usable image and label; the message explains why.
        """
        row = self.schema.row(record)
        self.labels.add(row.label)
        if row.key is not None:
            if not isinstance(row.key, bytes):
                raise ValueError(f"feature {self.schema.key!r}, the key, is a number; must be bytes")
            if not row.key:
                raise ValueError(f"feature {self.schema.key!r}, the key, is empty")
            self.keys.append(hashlib.blake2b(row.key, digest_size=8).digest())
        height, width = self._image(row.image)
        self.annotations.add(row.placed, (height, width))
        for name, value in zip(_MADE, (len(record), height, width), strict=True):
            if name not in self.kept:
                self.columns[name].append(value)
        counts = annotation.counts(row.placed, self.schema.placed)
        for name in self._counted:
            self.columns[name].append(counts[name])
        for name, column in self._columns.items():
            self.columns[column].append(row.extra[name])

    def _image(self, data: bytes) -> tuple[int, int]:
        if (shape := self.schema.image_shape) is not None:
            self._count(shape, "raw", np.frombuffer(data, np.uint8).reshape(1, *shape) if self._decodes else None)
            return shape[0], shape[1]
        opened = images.open_file(data)
        form = images.kept_as(opened, data)
        if form is None:
            unusual = f"a {opened.format} file of a kind that TensorFlow reads otherwise or not at all"
            found = unusual if opened.format in ("JPEG", "MPO") else f"of format {opened.format}"
            raise ValueError(f"its image is {found}; only usual PNG and JPEG files can stay as they are")
        turn = images.orientation(opened)
        self.turned += turn != 1
        height, width = opened.height, opened.width
        if self._upright:
            height, width = images.turned_size((height, width), turn)
            self.columns[ORIENTATION].append(turn)
        self._count((height, width, images.channels_of(opened)), form, images.pixels(opened) if self._decodes else None)
        return height, width

    def _count(self, shape: tuple[int, int, int], form: str, pixels: NDArray[np.uint8] | None) -> None:
        self.sizes[shape] += 1
        self.formats.add(form)
        if pixels is not None:
            self.sums.setdefault(shape[2], PixelSums(shape[2])).add(pixels)


Counted: TypeAlias = tuple[ShardInfo, ShardImages]  # a file's entry, and its counts


@dataclasses.dataclass(frozen=True)
class Described:
    """The counts of all files.

    Attributes:
      fields: fields of the manifest, by name.
      splits: entries of the splits.
      columns: {column: {split: values}}.
      turned: number of images that their EXIF data rotate.
      notes: lines about masks, boxes and points.
    """

    fields: dict[str, Any]
    splits: dict[str, SplitInfo]
    columns: dict[str, Mapping[str, Any]]
    turned: int
    notes: tuple[str, ...]


def described(
    splits: Mapping[str, Sequence[Counted]], flags: ImageFlags, names: tuple[str, ...], folder: StoragePath
) -> Described:
    """Returns the manifest's entries for the images that were counted.

    Args:
      splits: {split: (entry, counts) of each of its files}.
      flags: flags about images.
      names: class names of the file; empty if the labels name themselves.
      folder: folder of the data set, for errors.

    Raises:
      DataError: only some records of a split have labels, no split has any, or two records have the same key.
    """
    counted = [shard for shards in splits.values() for _, shard in shards]
    found = counted[0].schema
    of_splits = {split: [shard.labels for _, shard in shards] for split, shards in splits.items()}
    labelled = labels.described(of_splits, names, folder, are_needed=not found.placed)
    _check_keys(counted)
    shapes = {shape for shard in counted for shape in shard.sizes}
    image = Feature.of_images({form for shard in counted for form in shard.formats}, shapes)
    trained = [shard for split, shards in splits.items() for _, shard in shards if shard.sums]
    placed = annotation.described([shard.annotations for shard in counted], image.shape, names)
    infos = {split: _split_info(shards, labelled.splits[split]) for split, shards in splits.items()}
    class_names = labelled.class_names
    if not any(info.has_labels for info in infos.values()) and MASK in placed:
        class_names = placed[MASK].class_names
    mean, std = moments([_as_colour(shard.sums, image.shape[2] or _COLOURS) for shard in trained])
    features = {
        "image": dataclasses.replace(image, stored_as=found.image),
        "label": labelled.feature,
        **({"key": Feature("string", stored_as=found.key)} if found.key else {}),
        **found.extra,
        **placed,
    }
    is_usual = labelled.feature.is_class and not labelled.feature.texts
    version = IN_PLACE_VERSION if is_usual else LABELS_VERSION
    fields = {
        "class_names": class_names,
        "features": features,
        "image_mean": mean,
        "image_std": std,
        "format_version": ANNOTATIONS_VERSION if placed else version,
        "pixel_rule": None if image.encoding == "raw" else PixelRule(flags.orientation, EXACT),
    }
    columns = _columns_of(splits, labelled, image)
    notes = tuple(annotation.lines(placed, [shard.annotations for shard in counted]))
    return Described(fields, infos, columns, sum(shard.turned for shard in counted), notes)


def _check_keys(counted: Sequence[ShardImages]) -> None:
    keys = [key for shard in counted for key in shard.keys]
    if len(set(keys)) < len(keys):
        raise DataError(
            f"{len(keys) - len(set(keys)):,} of {count_of(len(keys), 'record')} have the key of another record",
            advice="map a feature that tells records apart, or leave key out of --feature_map",
        )


def _as_colour(sums: Mapping[int, PixelSums], channels: int) -> PixelSums:
    """Returns one sum of images; grey ones count in each channel if images are in colour."""
    whole = PixelSums(channels)
    for own in sums.values():
        repeats = channels if own.channels == 1 else 1
        whole.merge(PixelSums(channels, own.pixels, own.sums * repeats, own.squares * repeats))
    return whole


def _split_info(shards: Sequence[Counted], own: SplitLabels) -> SplitInfo:
    sizes: Counter[tuple[int, int]] = Counter()
    infos = []
    for (info, shard), bits in zip(shards, own.entropies, strict=True):
        for (height, width, _), count in shard.sizes.items():
            sizes[height, width] += count
        infos.append(dataclasses.replace(info, label_entropy=bits))
    return SplitInfo(tuple(infos), own.histogram, size_histogram(sizes), is_labelled=own.is_labelled)


def _columns_of(
    splits: Mapping[str, Sequence[Counted]], labelled: Labels, image: Feature
) -> dict[str, Mapping[str, Any]]:
    """Returns the columns that a conversion would make: labels, sizes and features with one value per record."""
    first = next(iter(splits.values()))[0][1]
    are_sized = image.encoding != "raw" and None in image.shape[:2]
    label = {split: own.column for split, own in labelled.splits.items() if own.column is not None}
    found: dict[str, Mapping[str, Any]] = {"label": label} if label else {}
    for name in first.columns:
        if name not in _MADE[1:] or are_sized or name in first.kept:
            found[name] = {split: _joined([shard.columns[name] for _, shard in own]) for split, own in splits.items()}
    return dict(without_names(found))


def _joined(parts: Iterable[Gathered]) -> Any:
    taken = [values for part in parts if len(values := part.taken())]
    if all(isinstance(values, np.ndarray) for values in taken):
        return np.concatenate(taken) if taken else []
    return [value for values in taken for value in values]


def lines(made: Manifest, found: Described) -> Iterator[str]:
    """Yields lines about the features that were found and the limits on their use."""
    image, label, turned = made.features["image"], made.features["label"], found.turned
    shifted = f" {label.offset:+d}" if label.offset else ""
    has_labels = any(split.has_labels for split in made.splits.values())
    key = f", key: {made.features['key'].stored_as}" if "key" in made.features else ""
    size = "of several sizes" if None in image.shape[:2] else shape_of(image.shape)
    named = f"label: {label.stored_as}{shifted}" if has_labels else "no label"
    yield f"  image: {image.stored_as} ({image.encoding}, {size}), {named}{key}"
    yield from found.notes
    histograms = {name: split.label_histogram for name, split in made.splits.items() if split.has_labels}
    if has_labels:
        yield from labels.lines(label, made.class_names, histograms)
    for name, split in made.splits.items():
        if has_labels and not split.has_labels:
            none = "NaN" if label.dtype == "float32" else label.no_label
            yield f"  {name}: no labels (label {none}), so it can be predicted, but neither trained nor evaluated on"
    if turned and made.turns_images:
        yield f"  {count_of(turned, 'image')} turned upright whenever they are decoded, as their EXIF data say"
    elif turned:
        yield (
            f"  note: {count_of(turned, 'image')} would be turned by EXIF data, which all readers ignore, as "
            f"tf.io.decode_jpeg does; with --orientation={UPRIGHT} all turn them, in training and in predictions"
        )
