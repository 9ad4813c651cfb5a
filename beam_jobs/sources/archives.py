"""Files in archives, tar and zip: found by their names, and read at their places without unpacking anything else.

Formats: https://pubs.opengroup.org/onlinepubs/9799919799/utilities/pax.html (tar),
https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT (zip).
"""

from __future__ import annotations

import array
import bisect
import contextlib
import dataclasses
import functools
import os
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from beam_jobs.sources import streams
from pipeline.errors import DataError
from pipeline.files.reading import opener

SUFFIXES = (".tar", ".zip")
_PLACE = re.compile(rb"\.(?:tar|zip)(?=/)", re.IGNORECASE)
_MOST_KEPT = 4096  # archives whose members a process keeps: about 60 bytes for each member
_MAX_REST = 1 << 20  # 1 MiB: most zeros with which tar fills its last record
_BLOCK = 512  # bytes that a tar consists of
_STORED, _DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
_ENCRYPTED = 1  # flag of a zip's member
_MARK = b"PK\x03\x04"  # begins a zip's member
_UNREADABLE = -1  # in place of the packing of an encrypted member
_LINK = -2  # in place of the packing of a tar's link
_HEADER = struct.Struct("<4s22xHH")  # of a zip's member: its mark, and the lengths of its name and of more
_NO_CRC = -1
_AGAIN = "get the file again"


@dataclasses.dataclass(frozen=True, eq=False)
class Archive:
    """The members of an archive that are files, in its order.

    Attributes:
      path: path of the archive.
      stamp: (bytes, modification time in ns) of the archive.
      names: name of each member, without `./`, large_binary (n,).
      starts: byte where a member begins, in a zip with its header, int64 (n,).
      packed: bytes of each member in the archive, int64 (n,).
      sizes: bytes of each member, int64 (n,).
      packings: zip's number of how each member is packed, int64 (n,).
      crcs: CRC-32 of each member, -1 if the archive has none, int64 (n,).
    """

    path: bytes
    stamp: tuple[int, int]
    names: pa.Array
    starts: NDArray[np.int64]
    packed: NDArray[np.int64]
    sizes: NDArray[np.int64]
    packings: NDArray[np.int64]
    crcs: NDArray[np.int64]

    @functools.cached_property
    def _sorted(self) -> tuple[pa.Array, NDArray[np.int64]]:
        order = pc.sort_indices(self.names)
        return self.names.take(order), order.to_numpy().astype(np.int64)

    @functools.cached_property
    def folders(self) -> dict[bytes, dict[bytes, int | None]]:
        """{folder: {name in it: number of the member, the last of this name; None of a folder}}; of the top, empty."""
        found: dict[bytes, dict[bytes, int | None]] = {b"": {}}
        for number, name in enumerate(self.names.to_pylist()):
            inner: int | None = number
            place, is_known = name, False
            while not is_known:
                folder, _, base = place.rpartition(b"/")
                is_known = folder in found
                found.setdefault(folder, {})[base] = inner
                place, inner = folder, None
        return found

    def is_link(self, member: int) -> bool:
        """Returns whether a member is a link, which cannot be read."""
        return int(self.packings[member]) == _LINK

    def find(self, name: bytes) -> int | None:
        """Returns the number of the member of a name, the last if there are several, as unpacking has it; or None."""
        names, order = self._sorted
        end = bisect.bisect_right(range(len(names)), name, key=lambda row: names[row].as_py())
        if not end or names[end - 1].as_py() != name:
            return None
        return int(order[end - 1])

    def read(self, member: int) -> tuple[bytes, str]:
        """Returns the content of a member, and the reason if it cannot be read; one of the two is empty.

        Raises:
          DataError: the archive has changed.
        """
        with streams.errors_of(os.fsdecode(self.path)), open(self.path, "rb", buffering=0, opener=opener) as stream:
            status = os.fstat(stream.fileno())
            if (status.st_size, status.st_mtime_ns) != self.stamp:
                raise streams.changed(os.fsdecode(self.path))
            start, size = int(self.starts[member]), int(self.sizes[member])
            if self.is_link(member):
                return b"", "is a link in its tar; unpack the tar"
            if not self.path.lower().endswith(b".zip"):
                return _whole(os.pread(stream.fileno(), size, start), size)
            mark, name, more = _HEADER.unpack(os.pread(stream.fileno(), _HEADER.size, start).ljust(_HEADER.size))
            if mark != _MARK:
                return b"", "its header in the zip is corrupt"
            data = os.pread(stream.fileno(), int(self.packed[member]), start + _HEADER.size + name + more)
        return self._unpacked(member, data, size)

    def _unpacked(self, member: int, data: bytes, size: int) -> tuple[bytes, str]:
        packing = int(self.packings[member])
        if packing == _UNREADABLE:
            return b"", "is encrypted in its zip; unpack it"
        if packing == _DEFLATED:
            with contextlib.suppress(zlib.error):
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)
        elif packing != _STORED:
            return b"", f"is packed in its zip by method {packing}; pack it again: zip -r images.zip images"
        if len(data) != size or zlib.crc32(data) != self.crcs[member]:
            return b"", "is damaged in its zip: its CRC-32 is wrong"
        return data, ""


def _whole(data: bytes, size: int) -> tuple[bytes, str]:
    return (data, "") if len(data) == size else (b"", "is cut short in its tar")


def parted(path: bytes) -> tuple[bytes, bytes]:
    """Returns (path of the archive, name in it) of a path that leads into an archive; else (the path, empty)."""
    for match in _PLACE.finditer(path):
        if _is_file(path[: match.end()]):
            return path[: match.end()], path[match.end() + 1 :]
    return path, b""


def is_archive(path: str) -> bool:
    """Returns whether a path is that of an archive, or of a folder in one."""
    return (_is_file(os.fsencode(path)) and path.lower().endswith(SUFFIXES)) or bool(parted(os.fsencode(path))[1])


@dataclasses.dataclass(frozen=True)
class Entry:
    """A file or a folder in an archive, with the methods of `os.DirEntry`.

    Attributes:
      name: name in its folder.
      path: path of the archive, with the name in it.
      archive: the archive.
      member: number of the member; None of a folder.
    """

    name: bytes
    path: bytes
    archive: Archive
    member: int | None

    def is_dir(self) -> bool:
        """Returns whether it is a folder."""
        return self.member is None

    def is_file(self) -> bool:
        """Returns whether it is a file."""
        return self.member is not None

    def is_symlink(self) -> bool:
        """Returns False: links cannot be read, see `Archive.is_link`."""
        return False

    def content(self) -> bytes:
        """Returns the content of a file.

        Raises:
          DataError: it cannot be read, or the archive has changed.
        """
        data, problem = self.archive.read(self.member or 0)
        if problem:
            raise DataError(problem, path=os.fsdecode(self.path))
        return data

    def stamp(self) -> tuple[int, int]:
        """Returns the size of a file, and the modification time of the archive in ns; raises DataError for a link."""
        member = self.member or 0
        if self.archive.is_link(member):
            self.content()
        return int(self.archive.sizes[member]), self.archive.stamp[1]


def entry(path: bytes) -> Entry | None:
    """Returns what lies at a path in an archive, or the archive itself; None if no archive is on the path.

    Raises:
      DataError: the archive has nothing there, or is no archive.
    """
    path = path.rstrip(b"/")
    place, inner = parted(path)
    if not inner and not is_archive(os.fsdecode(path)):
        return None
    archive = opened(place)
    folder, _, name = inner.rpartition(b"/")
    if inner and name not in archive.folders.get(folder, ()):
        raise DataError(f"has no {os.fsdecode(inner)!r}", path=os.fsdecode(place))
    return Entry(name, path, archive, archive.folders[folder][name] if inner else None)


def entries(folder: bytes) -> list[Entry] | None:
    """Returns what lies in a folder of an archive; None if it is not in one. Raises DataError as `entry`."""
    found = entry(folder)
    if found is None:
        return None
    inner = found.path[len(found.archive.path) + 1 :]
    return [
        Entry(name, os.path.join(folder, name), found.archive, member)
        for name, member in found.archive.folders.get(inner, {}).items()
    ]


@functools.lru_cache(maxsize=_MOST_KEPT)
def _is_file(path: bytes) -> bool:
    return os.path.isfile(path)


def opened(path: bytes) -> Archive:
    """Returns the members of an archive, which are found once per process, and again if it changes.

    Raises:
      DataError: it is missing, damaged or cut short.
    """
    with streams.errors_of(os.fsdecode(path)):
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise DataError("is not a regular file", path=os.fsdecode(path))
    return _opened(path, (status.st_size, status.st_mtime_ns))


@functools.lru_cache(maxsize=_MOST_KEPT)
def _opened(path: bytes, stamp: tuple[int, int]) -> Archive:
    is_zip = path.lower().endswith(b".zip")
    names, numbers = list[bytes](), array.array("q")
    with streams.errors_of(os.fsdecode(path)), open(path, "rb", opener=opener) as stream:
        try:
            for name, values in (_of_zip if is_zip else _of_tar)(path, stream):
                names.append(os.path.normpath(name).lstrip(b"/"))
                numbers.extend(values)
        except (tarfile.TarError, zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
            kind = "zip" if is_zip else "tar"
            problem = f"is not a whole {kind} archive ({' '.join(str(error).split())})"
            raise DataError(problem, path=os.fsdecode(path), advice=_AGAIN) from None
    columns = np.array(numbers, np.int64).reshape(len(names), 5).T
    return Archive(path, stamp, pa.array(names, pa.large_binary()), *(np.ascontiguousarray(each) for each in columns))


def _of_tar(path: bytes, stream: IO[bytes]) -> Iterator[tuple[bytes, tuple[int, ...]]]:
    """Yields (name, numbers as in `Archive`) of the files in a tar."""
    end = 0
    with tarfile.open(fileobj=stream, mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
        while info := tar.next():
            tar.members.clear()  # type: ignore[attr-defined]  # or it keeps a kilobyte for each
            end = info.offset_data + -(-info.size // _BLOCK) * _BLOCK if info.isfile() else info.offset_data
            if (info.isreg() and not info.issparse()) or info.islnk() or info.issym():
                name = info.name.encode("utf-8", "surrogateescape")
                yield name, (info.offset_data, info.size, info.size, _STORED if info.isreg() else _LINK, _NO_CRC)
    _check_end(path, end, stream)


def _check_end(path: bytes, end: int, stream: IO[bytes]) -> None:
    """Raises DataError unless zeros alone follow the last member, at `end`: else members may be lost unnoticed."""
    stream.seek(end)
    rest = stream.read(_MAX_REST + 1)
    if len(rest) < _BLOCK:
        raise DataError("is cut short: the mark at its end is missing", path=os.fsdecode(path), advice=_AGAIN)
    if len(rest) > _MAX_REST or rest.strip(b"\0"):
        problem = f"has more after its end, at byte {end:,}: another tar, or a part that was not copied"
        raise DataError(problem, path=os.fsdecode(path), advice="get the file again, or pack the files again")


def _of_zip(path: bytes, stream: IO[bytes]) -> Iterator[tuple[bytes, tuple[int, ...]]]:
    """Yields (name, numbers as in `Archive`) of the files in a zip."""
    del path
    with zipfile.ZipFile(stream) as found:
        for info in found.infolist():
            if not info.is_dir():
                packing = _UNREADABLE if info.flag_bits & _ENCRYPTED else info.compress_type
                numbers = info.header_offset, info.compress_size, info.file_size, packing, info.CRC
                yield info.filename.encode("utf-8", "surrogateescape"), numbers
