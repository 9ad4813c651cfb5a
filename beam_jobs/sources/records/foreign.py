"""TFRecords of `tf.train.Example` written by other programs: a file, a folder or a glob."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from beam_jobs.sources import digest, labels_file, listing, streams
from beam_jobs.sources.base import SourceOptions
from beam_jobs.sources.listing import SPLIT_OF_WORD
from beam_jobs.sources.records import files as record_files
from beam_jobs.sources.records import rows as record_rows
from beam_jobs.sources.records import schema as record_schema
from beam_jobs.sources.records import stream as record_stream
from beam_jobs.sources.records.columns import Columns, kind
from beam_jobs.sources.records.files import RecordFile
from beam_jobs.sources.records.rows import RecordSource
from beam_jobs.sources.seen_labels import SeenLabels
from beam_jobs.storage import paths as storage
from beam_jobs.storage.paths import StoragePath
from pipeline.commands.text import count_of
from pipeline.errors import DataError
from pipeline.manifest import SourceFile
from pipeline.records import tf_example

MAX_CLASSES = 1 << 20
_RECORD_FILE = re.compile(r"[^._].*(\.tfrec.*|-\d{5,}-of-\d{5,})", re.IGNORECASE)
_BESIDE = (
    ".offsets",
    ".crcs",
    ".index",
    ".idx",
    ".crc",
    ".json",
    ".txt",
)  # of files named after the one they are beside


def open_files(options: SourceOptions) -> RecordSource:
    """Opens, walks and digests the files of `options.source`.

    Classes are named by `labels.txt` next to the files. Without it, every record is read for its label: the classes are
    the texts that occur, sorted, or "0", "1" and so on to the highest number.

    Raises:
      UsageError: a flag does not fit the first record, or is missing.
      DataError: a file is missing, is not a TFRecord file, is cut short or corrupt, or has no record.
    """
    root, paths = _find(options.source)
    columns = record_schema.infer(*_first_records(paths), options)
    beside = (root / f"{columns.label}.{labels_file.LABELS}", root / labels_file.LABELS)  # the first is TFDS's name
    names = next(filter(None, map(labels_file.read, beside)), ())
    seen = SeenLabels(f"feature {columns.label!r}", MAX_CLASSES, "name another with --feature_map=label:NAME")

    def see_label(record: bytes, path: StoragePath) -> None:
        seen.add(_labels_of(record, columns), path)

    indexed, entries = _index(root, paths, None if names else see_label)
    return record_rows.make(
        dataset=options.dataset,
        class_names=names or seen.class_names(root),
        root=root,
        columns=columns,
        records=_by_split(indexed),
        files=entries,
        unique_keys=not columns.key,
    )


def _find(source: str) -> tuple[StoragePath, list[StoragePath]]:
    """Returns the folder that contains all files of a source, and the files, sorted by path."""
    wanted = "file like *.tfrecord* or *-00000-of-00001; name the files with a glob"
    root, names = listing.find(source, _is_records, False, wanted, "--source of tfrecord is a folder, a file or a glob")
    listing.check_packed_once(root, names)
    if not root.is_remote:
        names.sort(key=lambda name: name.split("/"))
    common = os.path.commonpath([os.path.dirname(name) for name in names])
    return (root / common if common else root), [root / name for name in names]


def _is_records(name: str) -> bool:
    return _RECORD_FILE.fullmatch(name) is not None and not name.endswith(_BESIDE)


def _index(
    root: StoragePath, paths: Sequence[StoragePath], visit: Callable[[bytes, StoragePath], None] | None
) -> tuple[list[RecordFile], tuple[SourceFile, ...]]:
    """Returns the indexed files, and their entries in the manifest; `visit` gets each record and its file."""

    def walk(path: StoragePath) -> tuple[RecordFile, SourceFile]:
        tally = digest.Tally(shown.update)
        of_file = (lambda record: visit(record, path)) if visit else None
        return record_files.index(path, of_file, tally.add), tally.entry(path.name_in(root))

    with digest.bar(sum(size for size, _ in storage.each(streams.stamp, paths, root.is_remote))) as shown:
        files, entries = zip(*storage.each(walk, paths, remote=True), strict=True)
    return list(files), tuple(sorted(entries, key=lambda entry: entry.file))


def _labels_of(record: bytes, columns: Columns) -> list[int | str]:
    """Returns the label of a record; nothing for an invalid one, which is left to the reader of rows."""
    with contextlib.suppress(ValueError):  # UnicodeDecodeError is one
        values = tf_example.decode(record, (columns.label,)).get(columns.label, [])
        if len(values) == 1 and kind(values) == ("bytes" if columns.has_text_labels else "int64"):
            return [values[0].decode() if columns.has_text_labels else int(values[0])]
    return []


def _first_records(paths: Sequence[StoragePath]) -> tuple[list[dict[str, Any]], str]:
    """Returns the first decoded Examples of the first file that has any, and the file."""
    seen = 0
    for path in paths:
        walk = record_stream.records(path, record_stream.packing_of(path))
        decoded = []
        for _, _, record in itertools.islice(walk, record_schema.FIRST_RECORDS):
            seen += 1
            with contextlib.suppress(ValueError):
                decoded.append(tf_example.decode(record))
        walk.close()  # type: ignore[attr-defined]
        if decoded := [features for features in decoded if features]:  # an empty record parses too
            return decoded, str(path)
    what = f"of {count_of(seen, 'record')} read, none is a tf.train.Example" if seen else "there is no record in it"
    raise DataError(f"{paths[0].parent}: {count_of(len(paths), 'TFRecord file')}, but {what}")


def _by_split(files: Sequence[RecordFile]) -> dict[str, tuple[RecordFile, ...]]:
    found: dict[str, list[RecordFile]] = {}
    for file in files:
        found.setdefault(split_of(file.path.name), []).append(file)
    return {split: tuple(found[split]) for split in sorted(found, key=listing.SPLITS.index)}


def split_of(name: str) -> str:
    """Returns the split of a file: that of the first word in its name that means one, else train."""
    return next((SPLIT_OF_WORD[word] for word in listing.words(name) if word in SPLIT_OF_WORD), "train")
