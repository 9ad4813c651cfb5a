"""Files in tar and zip archives: found by name, and read in place without unpacking anything else.

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
GZIPPED = (".tar.gz", ".tgz")
NOT_ONE_BY_ONE, GUNZIP = "is gzipped, so that members cannot be read one by one", "gunzip it, and give the .tar"
_PLACE = re.compile(rb"\.(?:tar|zip)(?=/)", re.IGNORECASE)
_MOST_KEPT = 4096  # archives whose members a process keeps: about 60 bytes for each member
_MAX_REST = 1 << 20  # 1 MiB: most zeros that tar pads its last record with
_BLOCK = 512  # bytes of each block in a tar
_STORED, _DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
_IS_ENCRYPTED, _IS_UTF_8 = 1, 0x800  # flags of a zip's member
_OF_DOS = 0  # number of the system that packed a zip's member
_MARK = b"PK\x03\x04"  # begins a zip's member
_ENCRYPTED, _LINK, _SPARSE = -1, -2, -3  # in place of the packing of members that cannot be read
_PROBLEMS = {
    _ENCRYPTED: "is encrypted in its {kind}; unpack it",
    _LINK: "is a link in its {kind}; unpack the {kind}",
    _SPARSE: "is stored in parts in its {kind}; pack it without --sparse, or unpack it",
}
_UTF_8, _DOS = "utf-8", "cp437"  # encodings of names in zips
_HEADER = struct.Struct("<4s22xHH")  # header of a zip's member: magic, length of its name, length of the extra field
_NO_CRC = -1


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
      packings: zip's number for the compression method of each member, int64 (n,).
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
        """{folder, "" for the top: {name in it: number of the last member with this name; None for a folder}}.

        Raises:
          DataError: a member is outside the archive's top folder, or has the name of a folder.
        """
        found: dict[bytes, dict[bytes, int | None]] = {b"": {}}
        names = self.names.to_pylist()
        for number, name in enumerate(names):
            if name.startswith(b"../"):
                problem = f"has the member {os.fsdecode(name)!r}, which unpacking would put outside of its folder"
                raise DataError(problem, path=os.fsdecode(self.path), advice="pack the files again")
            inner: int | None = number
            place, is_known = name, False
            while not is_known:
                folder, _, base = place.rpartition(b"/")
                is_known = folder in found
                found.setdefault(folder, {})[base] = inner
                place, inner = folder, None
        if both := sorted(found.keys() & {*names}):
            problem = f"has both a file and a folder of the name {os.fsdecode(both[0])!r}"
            raise DataError(problem, path=os.fsdecode(self.path), advice="pack the files again")
        return found

    def problem(self, member: int) -> str:
        """Returns why a member, such as a link, cannot be read at all; "" if it can."""
        kind = os.fsdecode(self.path[-3:].lower())
        return _PROBLEMS.get(int(self.packings[member]), "").format(kind=kind)

    def find(self, name: bytes) -> int | None:
        """Returns the number of the last member with a name, the one that unpacking leaves; None if there is none."""
        names, order = self._sorted
        end = bisect.bisect_right(range(len(names)), name, key=lambda row: names[row].as_py())
        if not end or names[end - 1].as_py() != name:
            return None
        return int(order[end - 1])

    def read(self, member: int) -> bytes:
        """Returns the content of a member.

        Raises:
          ValueError: it cannot be read; the message gives the reason.
          DataError: the archive has changed.
        """
        with streams.errors_of(os.fsdecode(self.path)), open(self.path, "rb", buffering=0, opener=opener) as stream:
            status = os.fstat(stream.fileno())
            if (status.st_size, status.st_mtime_ns) != self.stamp:
                raise streams.changed(os.fsdecode(self.path))
            start, size = int(self.starts[member]), int(self.sizes[member])
            if problem := self.problem(member):
                raise ValueError(problem)
            if not self.path.lower().endswith(b".zip"):
                data = os.pread(stream.fileno(), size, start)
                if len(data) != size:
                    raise ValueError("is cut short in its tar")
                return data
            mark, name, more = _HEADER.unpack(os.pread(stream.fileno(), _HEADER.size, start).ljust(_HEADER.size))
            if mark != _MARK:
                raise ValueError("its header in the zip is corrupt")
            data = os.pread(stream.fileno(), int(self.packed[member]), start + _HEADER.size + name + more)
        packing = int(self.packings[member])
        if packing == _DEFLATED:
            with contextlib.suppress(zlib.error):
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)
        elif packing != _STORED:
            raise ValueError(f"is packed in its zip by method {packing}; pack it again: zip -r images.zip images")
        if len(data) != size or zlib.crc32(data) != self.crcs[member]:
            raise ValueError("is damaged in its zip: its CRC-32 is wrong")
        return data


def parted(path: bytes) -> tuple[bytes, bytes]:
    """Returns (path of the archive, name in it) for a path into an archive; otherwise (the path, empty)."""
    for match in _PLACE.finditer(path):
        if _is_file(path[: match.end()]):
            return path[: match.end()], path[match.end() + 1 :]
    return path, b""


def is_archive(path: str) -> bool:
    """Returns whether a path is an archive or a folder in one."""
    return (_is_file(os.fsencode(path)) and path.lower().endswith(SUFFIXES)) or bool(parted(os.fsencode(path))[1])


@dataclasses.dataclass(frozen=True)
class Entry:
    """A file or a folder in an archive, with the methods of `os.DirEntry`.

    Attributes:
      name: name in its folder.
      path: path of the archive, with the name in it.
      archive: the archive.
      member: number of the member; None for a folder.
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
        """Returns False: links cannot be read, see `Archive.problem`."""
        return False

    def content(self) -> bytes:
        """Returns the content of a file.

        Raises:
          DataError: it cannot be read, or the archive has changed.
        """
        try:
            return self.archive.read(self.member or 0)
        except ValueError as error:
            raise DataError(str(error), path=os.fsdecode(self.path)) from None

    def stamp(self) -> tuple[int, int]:
        """Returns the size of a file, and the modification time of the archive in ns.

        Raises:
          DataError: it is a member, such as a link, that cannot be read at all.
        """
        member = self.member or 0
        if problem := self.archive.problem(member):
            raise DataError(problem, path=os.fsdecode(self.path))
        return int(self.archive.sizes[member]), self.archive.stamp[1]


def entry(path: bytes) -> Entry | None:
    """Returns the entry at a path in an archive, or the archive itself; None if no archive is on the path.

    Raises:
      DataError: the archive has nothing there, or is not an archive.
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
    """Returns the content of a folder in an archive; None if it is not in one. Raises DataError like `entry`."""
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
            for name, values in (_of_zip if is_zip else _of_tar)(path, stream):  # the fields of `Archive`
                names.append(os.path.normpath(name).lstrip(b"/"))
                numbers.extend(values)
        except (tarfile.TarError, zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
            kind = "zip" if is_zip else "tar"
            problem = f"is not a whole {kind} archive ({' '.join(str(error).split())})"
            raise DataError(problem, path=os.fsdecode(path), advice=_advice(stream, is_zip)) from None
    columns = np.array(numbers, np.int64).reshape(len(names), 5).T
    return Archive(path, stamp, pa.array(names, pa.large_binary()), *(np.ascontiguousarray(each) for each in columns))


def _advice(stream: IO[bytes], is_zip: bool) -> str:
    stream.seek(0)
    start = stream.read(_BLOCK)
    if start.startswith(streams.GZIP_MAGIC):
        return "it is gzipped: gunzip it"
    if start.startswith(_MARK) and not is_zip:
        return "it is a zip: call it .zip"
    if start[257:262] == b"ustar" and is_zip:
        return "it is a tar: call it .tar"
    return "get the file again"


def _of_tar(path: bytes, stream: IO[bytes]) -> Iterator[tuple[bytes, tuple[int, ...]]]:
    end = 0
    with tarfile.open(fileobj=stream, mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
        while info := tar.next():
            tar.members.clear()  # type: ignore[attr-defined]  # or it keeps a kilobyte for each
            end = tar.offset  # type: ignore[attr-defined]  # where the next header would be
            if info.isreg() or info.islnk() or info.issym():
                name = info.name.encode(_UTF_8, "surrogateescape")
                packing = _SPARSE if info.issparse() else _STORED if info.isreg() else _LINK
                yield name, (info.offset_data, info.size, info.size, packing, _NO_CRC)
    stream.seek(end)  # zeros alone must follow, or members may be lost unnoticed
    rest = stream.read(_MAX_REST + 1)
    if len(rest) < _BLOCK:
        raise streams.damaged(os.fsdecode(path), "is cut short: the mark at its end is missing")
    if len(rest) > _MAX_REST or rest.strip(b"\0"):
        problem = f"has more after its end, at byte {end:,}: another tar, or a part that was not copied"
        raise DataError(problem, path=os.fsdecode(path), advice="get the file again, or pack the files again")


def _of_zip(path: bytes, stream: IO[bytes]) -> Iterator[tuple[bytes, tuple[int, ...]]]:
    del path  # only tar's reader needs it
    with zipfile.ZipFile(stream) as found:
        for info in found.infolist():
            if not info.is_dir():
                packing = _ENCRYPTED if info.flag_bits & _IS_ENCRYPTED else info.compress_type
                packing = _LINK if stat.S_ISLNK(info.external_attr >> 16) else packing  # a file's mode in Unix
                numbers = info.header_offset, info.compress_size, info.file_size, packing, info.CRC
                yield _name_in_zip(info), numbers


def _name_in_zip(info: zipfile.ZipInfo) -> bytes:
    """Returns the name of a zip's member as `unzip` has it."""
    name = info.filename.encode(_UTF_8, "surrogateescape")
    if not info.flag_bits & _IS_UTF_8 and not name.isascii():
        # macOS's Finder writes UTF-8 without setting its flag, and Python then decodes the name as cp437.
        with contextlib.suppress(UnicodeError):
            stored = info.filename.encode(_DOS)
            stored.decode(_UTF_8)
            name = stored
    return name.replace(b"\\", b"/") if info.create_system == _OF_DOS and b"/" not in name else name
