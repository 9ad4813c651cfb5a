"""Rows whose image is a file: a table of paths, in memory, and the files as they were when it was made.

Paths are bytes, as a file name need not be valid text. A worker makes the table again, as a million paths make a large
pickle; a digest shows whether it made the same table.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from beam_jobs import flag_values
from beam_jobs.sources import archives, streams
from beam_jobs.sources.base import Block, Texts, hashes_of
from beam_jobs.sources.blocks import BatchedBuilder
from beam_jobs.sources.columns import Columns
from beam_jobs.sources.segmentations import DrawnMasks
from beam_jobs.sources.streams import Advance
from beam_jobs.sources.table import LoadedTable, TableSource, by_files
from pipeline.commands.text import count_of
from pipeline.files.paths import LocalPath
from pipeline.files.reading import opener
from pipeline.manifest import SourceFile
from pipeline.manifest.manifest import MASK
from pipeline.order import hashing
from pipeline.order.hashing import Domain

MAX_FILE = 256 << 20  # 256 MiB: no image that can be decoded is larger
_MOST_KEPT = 2  # tables per process
_AT_ONCE = 4096  # files digested at a time: a million paths as Python objects would take hundreds of MB
# Reasons why a row has no file, in place of the file's size.
UNNAMED, MISSING, IRREGULAR, OUTSIDE = -1, -2, -3, -4
_FAULTS = {UNNAMED: "{column} is empty", MISSING: "no such file", IRREGULAR: "is not a regular file"}

_lock = threading.Lock()
_kept: dict[tuple[str, str], PathTable] = {}


def extensions(text: str) -> frozenset[bytes]:
    """Returns the extensions in a text, each with its dot."""
    return frozenset(b"." + name.encode() for name in text.split())


# Images, whatever their content. No image in a class folder is left out: one that Pillow cannot read is an invalid row,
# which --max_rejects counts and rejects.jsonl lists.
IMAGES = extensions(
    """png apng jpg jpeg jpe jfif mpo bmp dib gif webp tif tiff jp2 j2k j2c jpc jpf jpx avif heic heif hif
    ppm pgm pbm pnm"""
)
# Images that cannot be read: drawings, camera raw files (Pillow would return their preview), editors' documents.
UNREADABLE = extensions(
    """svg svgz eps ai psd xcf kra tga ico cur icns pcx dds exr hdr jxl jxr wdp jng qoi dcm dicom nii fits fit
    dng nef nrw cr2 cr3 crw arw srf sr2 raf orf rw2 pef srw x3f raw 3fr iiq"""
)


@dataclasses.dataclass(frozen=True, eq=False)
class FileColumn:
    """A column of paths, and the files as they were when the table was made.

    Attributes:
      name: name of the column, for messages.
      root: folder that the paths are relative to.
      paths: the paths, large_binary (n,); null or empty if a row has none.
      sizes: file sizes in bytes, or a key of `_FAULTS` for rows without a file, int64 (n,).
      times: modification times of the files in nanoseconds, int64 (n,).
    """

    name: str
    root: bytes
    paths: pa.Array
    sizes: NDArray[np.int64]
    times: NDArray[np.int64]

    def path(self, row: int) -> bytes:
        """Returns the path of a row's file; empty if it has none."""
        path: bytes | None = self.paths[row].as_py()
        return path or b""

    def fault(self, row: int) -> str:
        """Returns the reason why a row has no file; empty if it has one."""
        return _FAULTS.get(int(self.sizes[row]), "").format(column=self.name)

    def content(self, row: int) -> bytes:
        """Returns the bytes of a row's file.

        Raises:
          ValueError: it cannot be an image; the message gives the reason.
          DataError: it has changed, or cannot be read.
        """
        size, time = int(self.sizes[row]), int(self.times[row])
        place, member = archives.parted(os.path.join(self.root, self.path(row)))
        if problem := self.fault(row):
            raise ValueError(problem)
        if size > MAX_FILE:
            raise ValueError(f"has {count_of(size, 'byte')}, above {MAX_FILE:,}, the most that an image file can be")
        if (extension := extension_of(member or place)) in UNREADABLE:
            raise ValueError(f"{extension.decode()} files cannot be read; convert it to PNG or JPEG, or move it away")
        if not member:
            return _content(place, size, time)
        archive = archives.opened(place)
        number = archive.find(member)
        if archive.stamp[1] != time or number is None:
            raise streams.changed(text(place))
        return archive.read(number)

    def named(self, row: int, reason: str) -> str:
        """Returns a reason, preceded by the path of the row's file if it has one."""
        return f"{shown(path)}: {reason}" if (path := self.path(row)) else reason

    def described(self, entry: str, advance: Advance, rows: Sequence[int] | None = None) -> SourceFile:
        """Returns the manifest entry for the files of some rows, or of all rows with a file: see `describe`."""
        chosen = np.flatnonzero(self.sizes >= 0).tolist() if rows is None else rows
        files = {path: int(self.sizes[row]) for row in chosen if (path := self.path(row))}
        return describe(self.root, entry, sorted(files.items()), advance)

    def parted(self, rows: Iterable[int]) -> tuple[list[int], set[bytes]]:
        """Returns the rows whose files are not in an archive, and the archives of the others."""
        alone, places = [], set()
        for row in rows:
            place, member = archives.parted(os.path.join(self.root, self.path(row)))
            if member:
                places.add(place)
            else:
                alone.append(row)
        return alone, places


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PathTable(LoadedTable):
    """A table whose images are files.

    Attributes:
      columns: columns to read. The image column has the paths of `images`.
      class_names: name of each class, by label.
      images: files of the images.
      again: whether an earlier row names the same file, bool (n,).
      origin: value whose `repr` determines everything but paths, sizes and times.
      masks: masks of the rows, files unless `origin` determines them; None if there are none.
    """

    columns: Columns
    class_names: tuple[str, ...]
    images: FileColumn
    again: NDArray[np.bool_]
    origin: object = None
    masks: FileColumn | DrawnMasks | None = None

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256, hexadecimal, that tells whether another process has the same table."""
        digest = hashlib.sha256(repr((self.origin, self.class_names, self.files)).encode())
        masks = [self.masks] if isinstance(self.masks, FileColumn) else []
        for files in (self.images, *masks):
            for column in (*filter(None, files.paths.buffers()[1:]), files.sizes, files.times):
                digest.update(column)
        return digest.hexdigest()

    def told(self, rows: Sequence[int], reason: str) -> str:
        """Returns a line about invalid rows of one kind; `reason` is that of the first row."""
        where = self.refused(rows[0], "").where
        return f"{where}: {reason}; invalid rows of this kind: {len(rows):,} of {len(self.again):,}"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PathSource(TableSource):
    """Rows whose images are files.

    Attributes:
      place: folder of the table.
      digest: digest that a worker's table must have.
      scan: function that makes the table.
    """

    place: str
    digest: str
    scan: Callable[[], PathTable]

    def table(self) -> PathTable:
        """Returns the table, made once per process; raises DataError if its digest has changed."""
        with _lock:
            if (self.place, self.digest) not in _kept:
                found = self.scan()
                if found.digest != self.digest:
                    raise streams.changed(self.place)
                _keep(found)
            return _kept[self.place, self.digest]

    def hashes(self, split: str, start: int, stop: int) -> NDArray[np.uint64]:
        """Returns hashes of the images' paths, so that rows that name the same file are in the same split."""
        table, rows = self.table(), self.rows(split, np.arange(start, stop))
        return hashing.derive_key(Domain.SPLIT, hashes_of(table.images.path(row) for row in rows.tolist()))

    def texts(self, column: str, needed: str = "") -> Texts:
        pattern = flag_values.path_pattern(column)
        if pattern is None:
            return super().texts(column, needed)
        table, codes, found = self.table(), dict[str, int](), list[int]()
        for row in self.rows_of_splits().tolist():
            path = text(table.images.path(row))
            match = pattern.search(path)
            value = (match[1] if pattern.groups else match[0]) if match else None
            if needed and path and not value:
                problem = f"the path {shown(table.images.path(row))!r} has no match of {column}, which {needed} needs"
                raise table.refused(row, problem, "change the expression, or give such images a part that matches")
            found.append(codes.setdefault(value or "", len(codes)))
        return Texts(np.array(found, np.int64), tuple(codes))

    def invalid(self, split: str, row: int, reason: str) -> tuple[str, int, str]:
        table, own = self.table(), int(self.rows(split, np.array([row], np.int64))[0])
        file, number = table.where(own)
        return file, number, reason if file == text(table.images.path(own)) else table.images.named(own, reason)

    def read(self, split: str, rows: NDArray[np.int64]) -> Block:
        """Returns images, with their paths as keys, or the values of the key column."""
        table, own = self.table(), self.rows(split, rows)
        builder = BatchedBuilder(len(rows), self.columns, self.class_names, None)
        table.take(own, self.columns.paths, builder.put)
        for position, row in enumerate(own.tolist()):
            path, builder.images[position] = builder.images[position], b""
            if not self.columns.key:
                builder.keys[position] = b"%b#%d" % (path, row) if table.again[row] else path
            if position not in builder.bad:
                try:
                    builder.images[position] = table.images.content(row)
                    if table.masks is not None:
                        builder.extra[MASK][position] = _mask(table.masks, row)
                except ValueError as error:
                    builder.bad[position] = str(error)
        return builder.finished()


def source_of(
    dataset: str,
    table: PathTable,
    by_split: Mapping[str, Sequence[str]],
    scan: Callable[[], PathTable],
    unique_keys: bool = True,
) -> PathSource:
    """Returns a source of files' images, without the manifest entries of its files.

    Args:
      dataset: name of the data set.
      table: the table.
      by_split: {split: names of its files in the table}.
      scan: picklable function that makes the table again.
      unique_keys: whether keys are unique by construction.
    """
    with _lock:
        _keep(table)
    return PathSource(
        dataset=dataset,
        class_names=table.class_names,
        label=table.columns.label_feature(len(table.class_names)),
        files=(),
        **by_files(table, by_split),
        features=table.columns.features,
        unique_keys=unique_keys,
        columns=table.columns,
        place=str(table.folder),
        digest=table.digest,
        scan=scan,
    )


def _keep(table: PathTable) -> None:
    while len(_kept) >= _MOST_KEPT:
        _kept.pop(next(iter(_kept)))
    _kept[str(table.folder), table.digest] = table


def text(path: bytes) -> str:
    """Returns a path for messages, with bytes that are not UTF-8 in hexadecimal."""
    return path.decode(errors="backslashreplace")


def shown(path: bytes) -> str:
    """Returns a path on one line, for messages."""
    return text(path).replace("\n", "\\n")


def _mask(masks: FileColumn | DrawnMasks, row: int) -> bytes:
    try:
        return masks.content(row)
    except ValueError as error:
        raise ValueError(f"its mask: {masks.named(row, str(error))}") from None


def _content(path: bytes, size: int, time: int) -> bytes:
    """Returns the bytes of a file that had this size and modification time when it was listed."""
    with streams.errors_of(text(path)), open(path, "rb", buffering=0, opener=opener) as stream:
        status = os.fstat(stream.fileno())
        data = stream.readall() if (status.st_size, status.st_mtime_ns) == (size, time) else b""
    if len(data) != size or status.st_mtime_ns != time:
        raise streams.changed(text(path))
    return data


def describe(folder: bytes, name: str, files: Iterable[tuple[bytes, int]], advance: Advance) -> SourceFile:
    """Returns one manifest entry for many files: their bytes, and a SHA-256 over each file's path, size and SHA-256.

    Args:
      folder: folder that the paths are relative to.
      name: name of the entry.
      files: (path, size) pairs.
      advance: function called with the number of bytes read.

    Raises:
      DataError: a file has a different size, or cannot be read.
    """
    sha256, total, rest = hashlib.sha256(), 0, iter(files)
    while some := list(itertools.islice(rest, _AT_ONCE)):
        places = [os.fsdecode(os.path.join(folder, path)) for path, _ in some]
        found = streams.digests([(place, LocalPath(place)) for place in places], advance, _open)
        for (path, size), one in zip(some, found, strict=True):
            if one.num_bytes != size:
                raise streams.changed(text(os.path.join(folder, path)))
            sha256.update(b"%b\0%d\0%b\n" % (path, size, one.sha256.encode()))
            total += size
    return SourceFile(name, total, sha256.hexdigest())


def _open(path: LocalPath) -> IO[bytes]:
    found = archives.entry(os.fsencode(str(path)))
    return streams.open_plain(path) if found is None else io.BytesIO(found.content())


def extension_of(path: bytes) -> bytes:
    """Returns a file name's extension in lower case, with its dot; empty if there is none."""
    return os.path.splitext(path)[1].lower()
