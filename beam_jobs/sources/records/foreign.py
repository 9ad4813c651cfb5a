"""TFRecords of `tf.train.Example` that other programs wrote: a file, a folder or a glob."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from beam_jobs.sources import digest, listing, streams
from beam_jobs.sources import files as places
from beam_jobs.sources.base import SourceOptions
from beam_jobs.sources.files import Place
from beam_jobs.sources.records import files as record_files
from beam_jobs.sources.records import names as record_names
from beam_jobs.sources.records import schema as record_schema
from beam_jobs.sources.records import stream as record_stream
from beam_jobs.sources.records.files import RecordFile
from beam_jobs.sources.records.source import RecordSource
from beam_jobs.storage import paths as storage
from beam_jobs.storage.paths import AnyPath, StoragePath
from pipeline.errors import DataError
from pipeline.manifest import SourceFile
from pipeline.records import example_proto

LABELS = "labels.txt"  # the classes' names, one per line; or `<label feature>.labels.txt`, as TFDS calls it
MAX_CLASSES = 1 << 20


def open_files(options: SourceOptions) -> RecordSource:
    """Opens, walks and digests the files of `options.source`.

    Classes are named by `labels.txt` beside the files. Without one every record is read for the highest label, and the
    classes are "0", "1" and so on; this takes about as long as the files' digests.

    Raises:
      UsageError: a flag does not fit the first record, or is needed.
      DataError: a file is missing, no TFRecord file, cut short or corrupt, or has no record.
    """
    root, found = record_names.find(options.source)
    paths = [places.place(path) for path in found]
    columns = record_schema.infer(*_first_records(paths), options)
    labels = _Labels(columns.label)
    names = _class_names(root / f"{columns.label}.{LABELS}") or _class_names(root / LABELS)
    indexed, entries = _index(places.place(root), paths, None if names else labels.add)
    return RecordSource(
        dataset=options.dataset,
        class_names=names or labels.class_names(root),
        root=places.place(root),
        columns=columns,
        records=_by_split(indexed),
        files=entries,
        unique_keys=not columns.key,
    )


def _index(
    root: Place, paths: Sequence[Place], visit: Callable[[bytes], None] | None
) -> tuple[list[RecordFile], tuple[SourceFile, ...]]:
    """Returns the files, indexed, and the manifest's entries of them.

    The index of a remote file takes all of its bytes from the store, so its digest is made of these as they come.
    """
    if not places.is_remote(root):
        indexed = [record_files.index(path, visit) for path in paths]
        return indexed, describe(indexed, root)

    def walk(path: Place) -> tuple[RecordFile, SourceFile]:
        tally = digest.Tally(advance)
        return record_files.index(path, visit, tally.add), SourceFile(places.name_from(path, root), *tally.digest())

    with digest.bar(sum(size for size, _ in storage.each(places.stamp, paths, remote=True))) as advance:
        walked = list(storage.each(walk, paths, remote=True))
    return [file for file, _ in walked], tuple(sorted((entry for _, entry in walked), key=lambda entry: entry.file))


def describe(files: Sequence[RecordFile], root: Place | AnyPath) -> tuple[SourceFile, ...]:
    """Returns the manifest's entries of local `files`, named from `root`; a gzip file's is of its content."""
    found: dict[str, SourceFile] = {}
    for unpack in (False, True):
        chosen = [str(file.path) for file in files if (file.packing == "gzip") == unpack]
        entries = digest.describe([(places.name_from(path, root), path) for path in chosen], unpack) if chosen else ()
        found |= {entry.file: entry for entry in entries}
    return tuple(found[name] for name in sorted(found))


class _Labels:
    """The highest label of all records."""

    def __init__(self, feature: str) -> None:
        self._feature = feature
        self._highest = -1
        self._lock = threading.Lock()  # remote files are walked by several threads

    def add(self, record: bytes) -> None:
        """Looks at one record; an invalid one is left to the reader of rows."""
        try:
            values = example_proto.decode(record, (self._feature,)).get(self._feature, [])
        except ValueError:
            return
        if not isinstance(values, list) and len(values) == 1:
            with self._lock:
                self._highest = max(self._highest, int(values[0]))

    def class_names(self, root: StoragePath) -> tuple[str, ...]:
        """Returns "0" to the highest label.

        Raises:
          DataError: no label is 0 or more, or one is too large for a class.
        """
        if not 0 <= self._highest < MAX_CLASSES:
            found = f"the highest is {self._highest}" if self._highest >= 0 else "there is none of 0 or more"
            raise DataError(
                f"{root}: feature {self._feature!r} must hold labels of 0 to {MAX_CLASSES - 1}; {found}; name another "
                "with --feature_map=label:NAME"
            )
        return tuple(str(label) for label in range(self._highest + 1))


def _first_records(paths: Sequence[Place]) -> tuple[list[dict[str, Any]], str]:
    """Returns the first Examples, decoded, of the first file that has any, and the file."""
    seen = 0
    for path in paths:
        walk = record_stream.records(path, record_stream.packing_of(path))
        decoded = []
        for _, _, record in itertools.islice(walk, record_schema.FIRST_RECORDS):
            seen += 1
            with contextlib.suppress(ValueError):
                decoded.append(example_proto.decode(record))
        walk.close()  # type: ignore[attr-defined]
        if decoded := [features for features in decoded if features]:  # an empty record parses too
            return decoded, str(path)
    what = f"none of their first {seen} records is a tf.train.Example" if seen else "there is no record in it"
    raise DataError(f"{places.path_of(paths[0]).parent}: {len(paths)} TFRecord files, but {what}")


def _class_names(path: StoragePath) -> tuple[str, ...]:
    if not path.exists():
        return ()
    with streams.errors_of(path):
        try:
            names = tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines())
        except UnicodeDecodeError:
            raise DataError(f"{path}: is not UTF-8 text") from None
    if not names or not all(names):
        raise DataError(f"{path}: must have the name of a class in every line; it has {len(names)} lines")
    return names


def _by_split(files: Sequence[RecordFile]) -> dict[str, tuple[RecordFile, ...]]:
    found: dict[str, list[RecordFile]] = {}
    for file in files:
        found.setdefault(record_names.split_of(places.path_of(file.path).name), []).append(file)
    for split, own in found.items():
        if not any(file.num_records for file in own):
            raise DataError(f"{own[0].path}: split {split!r} has no record; leave its {len(own)} files out by a glob")
    return {split: tuple(found[split]) for split in sorted(found, key=listing.SPLITS.index)}
