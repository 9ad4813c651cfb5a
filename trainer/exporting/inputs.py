"""Inputs of `trainer.predict`: image files and folders of them, or TFRecord files and splits of data sets."""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence

from pipeline import manifest as manifests
from pipeline.commands.text import count_of, some_of
from pipeline.errors import DataError, UsageError, named, to_run
from pipeline.files.paths import StoragePath, folder
from pipeline.files.reading import opened
from pipeline.files.remote import is_url
from pipeline.manifest.naming import IMAGE_ENDINGS, MANIFEST
from pipeline.manifest.splits import select
from pipeline.read.shards import check_present
from pipeline.records import framing
from pipeline.records.stream import records_of

_MOST_NAMED = 3  # files named in an error


def image_files(given: Sequence[str]) -> list[str]:
    """Returns the given files, and files in given folders with an image's suffix, sorted.

    It includes given files that are missing: their predictions say so, and do not affect the others.

    Raises:
      DataError: none of the given files and folders exist, a folder cannot be listed, or there is no image.
    """
    found, others = list[str](), list[str]()
    if given and not any(map(os.path.exists, given)):
        with named(some_of(given, _MOST_NAMED), "cannot be read"):
            os.stat(given[0])
    for path in given:
        if not os.path.isdir(path):
            found.append(path)
            continue
        with named(path, "cannot be read"):
            inside = sorted(
                os.path.join(place, name)
                for place, _, names in os.walk(path, onerror=_refuse)
                for name in names
                if not name.startswith(".")
            )
        chosen = [name for name in inside if name.lower().endswith(IMAGE_ENDINGS)]
        found, others = found + chosen, others + [name for name in inside if name not in set(chosen)]
    if others:
        skipped = f"{count_of(len(others), 'file')} not named like an image ({', '.join(IMAGE_ENDINGS[:3])}, ...)"
        if not found:
            records = f"; {others[0]} has records: give such files, or {to_run('pipeline.index')} the folder"
            is_records = _start_of(others[0]) is not None
            raise DataError(f"{' '.join(given)}: no images, but {skipped}{records if is_records else ''}")
        print(f"skipped {skipped}", file=sys.stderr)
    if not found:
        raise DataError(f"{' '.join(given)}: no images")
    return found


def _refuse(error: OSError) -> None:
    raise error


@dataclasses.dataclass(frozen=True)
class RecordFile:
    """Records `start` to `stop` - 1 of a file.

    Attributes:
      name: source in which records are numbered: a file, or `folder:split` for a data set.
      first: number of the record `start` in it.
      file: file to read.
      compression: compression of the file: `GZIP`, `ZLIB`, or empty.
      start, stop: range of the records; None as the stop means the end.
    """

    name: str
    first: int
    file: StoragePath
    compression: str
    start: int = 0
    stop: int | None = None

    def records(self) -> Iterator[Record]:
        """Yields the records.

        Raises:
          DataError: the file cannot be read, or a record is truncated or corrupt.
        """
        found = itertools.islice(records_of(self.file, self.compression), self.start, self.stop)
        for number, (offset, content) in enumerate(found):
            yield Record(self, number, offset, content)


@dataclasses.dataclass(frozen=True)
class ImageFile(RecordFile):
    """An image file, presented as a single record.

    Attributes:
      read: function that returns the record for the file at a path, or the reason why it cannot be read.
      bad: list to which (path, reason) is added if the file cannot be read.
    """

    read: Callable[[str], bytes | str] = str
    bad: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, path: str, read: Callable[[str], bytes | str], bad: list[tuple[str, str]]) -> ImageFile:
        """Returns the file at a path."""
        return cls(path, 0, folder(path), "", read=read, bad=bad)

    def records(self) -> Iterator[Record]:
        """Yields the record; nothing if the file cannot be read."""
        content = self.read(self.name)
        if isinstance(content, str):
            self.bad.append((self.name, content))
        else:
            yield Record(self, 0, 0, content)


@dataclasses.dataclass(frozen=True)
class Record:
    """A serialized record.

    Attributes:
      of: file that contains it.
      index: index in `of`, from 0.
      offset: offset in bytes in the uncompressed file.
      content: bytes of the record.
    """

    of: RecordFile
    index: int
    offset: int
    content: bytes

    @property
    def number(self) -> int:
        """Number of the record in the given file or split."""
        return self.of.first + self.index

    def error(self, reason: str) -> DataError:
        """Returns the error for a record that a model cannot take."""
        record, packed = self.of.start + self.index, bool(self.of.compression)
        return DataError(reason, path=self.of.file, record=record, offset=self.offset, decompressed=packed)


def are_records(given: Sequence[str]) -> bool:
    """Returns whether one of the given paths is a data set or a TFRecord file."""
    return any(_is_data_set(path) or _start_of(path) is not None for path in given)


def record_files(given: Sequence[str], split: str | None = None) -> list[RecordFile]:
    """Returns the record files at some paths.

    Args:
      given: TFRecord files, compressed or not, and data set folders, or their URLs.
      split: split of the data sets, or a part of one; None if they have only one.

    Raises:
      DataError: a file does not exist or is not a record file, or a data set is invalid.
      UsageError: the split does not exist, or none is given and there are several.
    """
    found = list[RecordFile]()
    for path in given:
        if _is_data_set(path):
            found += _of_data_set(path, split)
            continue
        with named(path, "cannot be read"):
            os.stat(path)
        if os.path.isdir(path):
            advice = f"give the TFRecord files in it, or {to_run('pipeline.index')} it"
            raise DataError("is a folder, not a data set", path=path, advice=advice)
        start = _start_of(path)
        if start is None:
            raise DataError("is not a TFRecord file", path=path)
        found.append(RecordFile(path, 0, folder(path), framing.packing_of(start[: framing.HEADER]) or ""))
    if split is not None and not any(map(_is_data_set, given)):
        raise UsageError(f"--split={split}: is for data sets, not for TFRecord files; leave it out, or give a folder")
    return found


def _of_data_set(path: str, split: str | None) -> Iterator[RecordFile]:
    manifest = manifests.load(path)
    if split is None and len(manifest.splits) > 1:
        names = list(manifest.splits)
        has = f"{path} has {', '.join(names)}"
        raise UsageError(f"--split is missing: {has}; give one, or a part of one, such as {names[0]}[:100]")
    try:
        selection = select(manifest, split or next(iter(manifest.splits)))
    except UsageError as error:
        raise UsageError(f"--split={split}: {error.reason if error.argument == 'split' else error}") from None
    check_present(path, [segment.shard for segment in selection.segments])
    first = 0
    for part in selection.segments:
        file = folder(path) / part.shard.file
        yield RecordFile(f"{path}:{selection.text}", first, file, part.shard.compression, part.start, part.stop)
        first += part.num_examples


def _is_data_set(path: str) -> bool:
    return is_url(path) or os.path.isfile(os.path.join(path, MANIFEST))


def _start_of(path: str) -> bytes | None:
    """Returns the first bytes of a record file; None if it is another kind of file or cannot be read."""
    try:
        with opened(path) as file:
            start = file.read(framing.START)
    except OSError:
        return None
    return start if framing.begins_file(start) else None
