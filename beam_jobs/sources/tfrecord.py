"""TFRecords of `tf.train.Example`: a converted data set (a folder with manifest.json), or other programs' files.

Other programs' files are given as a file, a folder or a glob. Their first records tell which features are the image,
the label and the key.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from beam_jobs.sources import joined, listing, record_files, streams
from beam_jobs.sources.base import SOURCES, Source, SourceOptions
from beam_jobs.sources.record_files import RecordFile, RecordSource
from pipeline import manifest
from pipeline.commands.text import count_of
from pipeline.errors import DataError, UsageError
from pipeline.files.paths import StoragePath, each, path_of, with_version
from pipeline.manifest import Feature, Manifest, ShardInfo, SourceFile, naming, versions
from pipeline.manifest.manifest import MASK, MOST_CLASSES
from pipeline.records import schema, splits, tf_example
from pipeline.records.labels import SeenLabels, beside
from pipeline.records.schema import OWN_FEATURES, Schema, kind

_FILE_PER_SPLIT = f"write a file per split; --split_column={splits.NO_COLUMN} ignores the feature"
_NEEDS = f"a folder with {naming.MANIFEST}, or TFRecord files: a folder of them, a file, a glob"
_CHOSEN = "shards"  # name of the manifest entry for some shards of a converted data set


@SOURCES.named("tfrecord", needs=_NEEDS, remote=True)
def open_source(options: SourceOptions) -> Source:
    """Opens TFRecords by the manifest if their folder has one, else by the content of their first records.

    Several converted data sets in a glob are joined by class name.

    Raises:
      UsageError: a flag does not fit the source.
      DataError: a file is missing, cut short, corrupt or cannot be read.
    """
    named, version = with_version(options.source)
    if version is None or path_of(options.source).exists():  # a file may have such a name
        named, version = options.source, None
    folder = path_of(named)
    splits.check_flag(options.split_column, options.dataset)
    if version is not None or (folder / naming.MANIFEST).exists():
        made = manifest.load(folder if version is None else options.source)
        if made.has_images:
            return _open_ours(folder, made, options)
        # An index of arbitrary records: their content is inferred, but the split of each file is known.
        by_split = {split: [shard.file for shard in made.splits[split].shards] for split in made.splits}
        wanted = splits.among(by_split, options.splits)
        return _open_foreign(folder, {split: by_split[split] for split in wanted}, options)
    root, paths = _find(options.source)
    converted = _converted(paths)
    if len(converted) == 1 and _of_foreign(options):
        converted = {}  # with named features, they are read like any other program's records
    if not converted:
        by_split = splits.by_files(root, [path.name_in(root) for path in paths], options.splits)
        return _open_foreign(root, by_split, options, is_by_name=True)
    sources = {}
    for place, made in converted.items():
        here = {path.name for path in paths if path.parent == place}
        own = dataclasses.replace(options, splits=_splits_among(made, here, options.splits))
        if own.splits:
            sources[place.name_in(root)] = _open_ours(place, made, own, here)
    if not sources:
        splits.among(dict.fromkeys(name for made in converted.values() for name in made.splits), options.splits)
    return next(iter(sources.values())) if len(converted) == 1 else joined.joined(options.dataset, root, sources)


def _converted(paths: Sequence[StoragePath]) -> dict[StoragePath, Manifest]:
    """Returns {folder: manifest} of the converted data sets that files belong to; empty if all are other programs'."""
    found, listed = {}, set()
    for place in dict.fromkeys(path.parent for path in paths):
        if (place / naming.MANIFEST).exists() and (made := manifest.load(place)).has_images:
            shards = {place / shard.file for shard in made.shards}.intersection(paths)
            older = {place / shard.file for one in versions.all_of(place) for shard in one.shards}.intersection(paths)
            if stale := sorted(map(str, older - shards)):
                raise DataError(
                    f"is of an older version of {place}, whose labels may have been corrected since",
                    path=stale[0],
                    advice=f"give --source={place} for the newest, or {place}@VERSION",
                )
            listed |= shards
            if shards:
                found[place] = made
    strange = next((path for path in paths if path not in listed), None)
    if found and strange is not None:
        raise DataError(
            f"belongs to no converted data set, but {min(map(str, listed))} does, by the {naming.MANIFEST} beside it",
            path=strange,
            advice="name the files of one kind: their labels need not mean the same",
        )
    return found


def _of_foreign(options: SourceOptions) -> list[str]:
    """Returns the names of the given options that concern other programs' records."""
    return [one.name for one in dataclasses.fields(options) if one.metadata["foreign"] and getattr(options, one.name)]


def _splits_among(made: Manifest, names: Collection[str], wanted: Sequence[str]) -> tuple[str, ...]:
    """Returns the wanted splits of a converted data set that have records in some of its files."""
    there = [
        split
        for split, info in made.splits.items()
        if any(shard.num_examples and shard.file in names for shard in info.shards)
    ]
    known = [split for split in wanted if split in there or splits.SPLIT_OF_WORD.get(split.lower()) in there]
    return tuple(splits.among(there, known)) if known or not wanted else ()


def _open_ours(
    folder: StoragePath, made: Manifest, options: SourceOptions, names: Collection[str] | None = None
) -> RecordSource:
    """Opens a converted data set, or only its shards among `names`."""
    if given := _of_foreign(options):
        raise UsageError(f"--{given[0]}: does not apply to {folder}, whose {naming.MANIFEST} lists its features")
    labels = made.features["label"]
    placed = {name: feature for name, feature in made.features.items() if feature.convention}
    if placed and made.is_in_place:
        raise UsageError(
            f"--source={folder}: has {', '.join(placed)}, which a conversion does not carry over; use the records "
            "where they are"
        )
    image, label, key = (made.features[name].named(name) if name in made.features else "" for name in OWN_FEATURES)
    columns = Schema(
        *(image, label, key),
        labels=labels,
        image_shape=made.image_shape if made.features["image"].encoding == "raw" else None,
        extra={name: _as_stored(name, own) for name, own in made.features.items() if name not in OWN_FEATURES},
    )
    chosen = [shard for shard in made.shards if names is None or shard.file in names]
    files = [SourceFile(naming.MANIFEST, len(made.to_bytes()), made.digest)]  # it has the digests of all shards
    if len(chosen) < len(made.shards):
        files.append(_describe(chosen))
    has_labels = any(split.has_labels for split in made.splits.values())
    convertible = made.labelled(name for name, info in made.splits.items() if info.num_examples)
    source = record_files.source_of(
        dataset=made.dataset,
        class_names=made.class_names if has_labels else (),  # without labels, these are the masks' classes
        root=folder,
        columns=columns,
        records={
            name: tuple(
                each(
                    lambda shard: _shard(folder, made, shard),
                    [shard for shard in made.splits[name].shards if names is None or shard.file in names],
                    folder.is_remote,
                )
            )
            for name in splits.among(convertible, options.splits)
        },
        files=tuple(files),
    )
    varying = {
        name: dataclasses.replace(own, shape=(None, None, 1) if name == MASK else (None, *own.shape[1:]))
        for name, own in placed.items()
    }
    return dataclasses.replace(source, features={**source.features, **varying})


def _as_stored(name: str, feature: Feature) -> Feature:
    """Returns a feature as records store it; masks, boxes and points may have another form for users."""
    if not feature.convention:
        return feature
    return Feature("string") if name == MASK else Feature(feature.dtype, (None,))


def _describe(shards: Sequence[ShardInfo]) -> SourceFile:
    lines = "".join(f"{shard.file} {shard.crc32c}\n" for shard in sorted(shards, key=lambda shard: shard.file))
    return SourceFile(_CHOSEN, sum(shard.num_bytes for shard in shards), hashlib.sha256(lines.encode()).hexdigest())


def _shard(folder: StoragePath, made: Manifest, shard: ShardInfo) -> RecordFile:
    path = folder / shard.file
    stamp = streams.stamp(path)
    if stamp[0] != shard.num_bytes:
        raise DataError(
            f"{count_of(stamp[0], 'byte')}, but the manifest says {shard.num_bytes:,}",
            path=path,
            advice="convert it again",
        )
    if shard.compression:
        return RecordFile(path, stamp, shard.num_examples, shard.compression.lower())
    offsets = None if shard.offsets_crc32c is None else (folder, shard)
    return RecordFile(path, stamp, shard.num_examples, stride=shard.stride, offsets=offsets)


def _open_foreign(
    root: StoragePath, by_split: Mapping[str, Sequence[str]], options: SourceOptions, is_by_name: bool = False
) -> RecordSource:
    """Opens and walks other programs' files, and computes their digests.

    Class names come from `labels.txt` next to the files. Without it, every record's label is read: the classes are the
    texts that occur, sorted, or "0", "1" and so on to the highest number.

    Args:
      root: folder that contains all files.
      by_split: files of each split, relative to `root`.
      options: options of the source.
      is_by_name: whether splits come from file names, so that a feature may name others.
    """
    split_of = {root / name: split for split, names in by_split.items() for name in names}
    paths = sorted(split_of, key=lambda path: path.name_in(root).split("/" if not root.is_remote else None))
    records, first = _first_records(paths)
    columns = schema.infer(records, first, options.feature_map, options.image_shape, options.keep_columns)
    own, suspects = (columns.image, columns.label, columns.key), splits.SuspectFeatures()
    if is_by_name and len(by_split) == 1 and not options.split_column:
        suspects = splits.SuspectFeatures.of(records, first, own, _FILE_PER_SPLIT)
    names = beside(root, paths, columns.label, has_text_labels=columns.has_text_labels)
    seen = SeenLabels(
        f"feature {columns.label!r}", MOST_CLASSES, "name another with --feature_map=label:NAME", options.na_is_class
    )

    def see(record: bytes, path: StoragePath) -> None:
        if not names:
            seen.add(_labels_of(record, columns), path)
        suspects.see(record)

    indexed, entries = _index(root, paths, see if suspects.values or not names else None)
    suspects.check(root, by_split)
    names = names or seen.class_names(root)
    if columns.has_text_labels:
        columns = dataclasses.replace(columns, labels=Feature("int64", texts=names))
    return record_files.source_of(
        dataset=options.dataset,
        class_names=names,
        root=root,
        columns=columns,
        records={split: tuple(file for file in indexed if split_of[file.path] == split) for split in by_split},
        files=entries,
        unique_keys=not columns.key,
    )


def _find(source: str) -> tuple[StoragePath, list[StoragePath]]:
    """Returns the common folder of all files of a source, and the files, sorted by path."""
    wanted = f"{naming.FOREIGN_FILES}; name the files with a glob"
    kinds = "--source of tfrecord is a folder, a file or a glob"
    root, names = listing.find(source, naming.is_foreign_file, False, wanted, kinds)
    splits.check_packed_once(root, names)
    if not root.is_remote:
        names.sort(key=lambda name: name.split("/"))
    # Keys name files relative to their common folder, so that a glob over one folder gives the same keys as the folder.
    common = os.path.commonpath([os.path.dirname(name) for name in names])
    return (root / common if common else root), [root / name for name in names]


def _index(
    root: StoragePath, paths: Sequence[StoragePath], visit: Callable[[bytes, StoragePath], None] | None
) -> tuple[list[RecordFile], tuple[SourceFile, ...]]:

    def walk(path: StoragePath) -> tuple[RecordFile, SourceFile]:
        tally = streams.Tally(shown.update)
        of_file = (lambda record: visit(record, path)) if visit else None
        return record_files.index(path, of_file, tally.add), tally.entry(path.name_in(root))

    with streams.progress_bar(sum(size for size, _ in each(streams.stamp, paths, root.is_remote))) as shown:
        files, entries = zip(*each(walk, paths, remote=True), strict=True)
    return list(files), tuple(sorted(entries, key=lambda entry: entry.file))


def _labels_of(record: bytes, columns: Schema) -> list[int | str]:
    """Returns the labels of a record; empty if it has none (`block_of` reports why)."""
    with contextlib.suppress(ValueError):  # UnicodeDecodeError is one
        values = tf_example.decode(record, (columns.label,)).get(columns.label, [])
        if len(values) == 1 and kind(values) == ("bytes" if columns.has_text_labels else "int64"):
            return [values[0].decode() if columns.has_text_labels else int(values[0])]
    return []


def _first_records(paths: Sequence[StoragePath]) -> tuple[list[dict[str, Any]], str]:
    """Returns the first Examples, decoded, of the first file that has any, and the file."""
    seen = 0
    for path in paths:
        walk = record_files.stream_records(path, record_files.packing_of(path))
        decoded, count = schema.first_examples(record for _, _, record in walk)
        walk.close()  # type: ignore[attr-defined]
        seen += count
        if decoded:
            return decoded, str(path)
    what = f"of {count_of(seen, 'record')} read, none is a tf.train.Example" if seen else "there is no record in it"
    raise DataError(f"{count_of(len(paths), 'TFRecord file')}, but {what}", path=paths[0].parent)
