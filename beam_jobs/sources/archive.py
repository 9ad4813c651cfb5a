"""Files read from an archive member by member, under names of our own.

Paths that an archive names are never written to, and its links are not followed.
"""

from __future__ import annotations

import os
import pathlib
import tarfile
import zipfile
import zlib
from collections.abc import Collection
from typing import IO, Any

from beam_jobs.sources import streams
from beam_jobs.storage.paths import LocalPath
from pipeline.commands.text import count_of
from pipeline.errors import DataError

_OTHER_PACKINGS = {b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\3\4": "zip"}
MAX_FILE = 1 << 30  # 1 GiB: six times the largest file of these data sets, CIFAR-100's train
MAX_MEMBERS = 1000  # the archives of these data sets have about ten
_MAX_HEADER = 1 << 20  # 1 MiB, including what tarfile reads ahead
MAX_ARCHIVE = 8 << 30  # 8 GiB of content: a larger one is a gzip bomb or another archive


def unpack(path: LocalPath, members: Collection[tuple[str, str]]) -> dict[tuple[str, str], IO[bytes]]:
    """Returns the content of those of `members` that a tar, gzip or not, holds, each in an unnamed temporary file.

    Members are (folder, name); a file outside any folder is taken too.

    Raises:
      DataError: it is not a tar archive, is cut short or corrupt, holds a file twice, or is larger than allowed.
    """
    found: dict[tuple[str, str], IO[bytes]] = {}
    with streams.open_plain(path) as raw:
        start = raw.read(max(map(len, _OTHER_PACKINGS)))
    for magic, packing in _OTHER_PACKINGS.items():
        if start.startswith(magic):
            raise DataError(f"{path}: is packed by {packing}; .tar.gz and .tar are read: unpack it and give the folder")
    with streams.opened(path) as stream:
        meter = _Meter(stream, path)
        try:
            # Front to back ("r|"): the stream is decompressed once, without seeking.
            with tarfile.open(fileobj=meter, mode="r|") as tar:  # type: ignore[call-overload]
                for number, info in enumerate(tar):
                    _check_size(path, info, number)
                    meter.left = info.size + _MAX_HEADER
                    parts = pathlib.PurePosixPath(info.name).parts
                    for member in members if info.isfile() else ():
                        if parts in (member, member[1:]):
                            if member in found:
                                raise DataError(f"{path}: holds {member[1]} twice")
                            found[member] = _spool(tar, info, path)
        except tarfile.TarError as error:
            raise DataError(f"{path}: is not a whole tar archive ({error}); get the file again") from None
    return found


class _Meter:
    """A stream that raises an error if a member's header, which `tarfile` reads whole, is larger than allowed."""

    def __init__(self, stream: IO[bytes], path: LocalPath) -> None:
        self._stream = stream
        self._path = path
        self.left = _MAX_HEADER

    def read(self, size: int) -> bytes:
        """Returns the next `size` bytes, fewer at the end."""
        data = self._stream.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise DataError(f"{self._path}: a member's header has more than {_MAX_HEADER} bytes; refused")
        return data


def _check_size(path: LocalPath, member: tarfile.TarInfo, number: int) -> None:
    if number >= MAX_MEMBERS:
        raise DataError(f"{path}: has more than {MAX_MEMBERS} members; it is not the published archive")
    if member.size > MAX_FILE or member.offset + member.size > MAX_ARCHIVE:
        raise DataError(
            f"{path}: member {member.name!r} of {count_of(member.size, 'byte')} is larger than allowed; refused"
        )


def _spool(tar: tarfile.TarFile, member: tarfile.TarInfo, path: LocalPath) -> IO[bytes]:
    stream: Any = tar.extractfile(member)  # not None: it is a regular file
    handle = streams.spool(streams.blocks(stream, member.size))
    if streams.size(handle) != member.size:
        raise DataError(f"{path}: is cut short inside {member.name}; get the file again")
    return handle


def unzip(path: LocalPath, folder: str, names: Collection[str], target: pathlib.Path) -> None:
    """Extracts the files `folder/<name>` of a .zip to the folder `target`, which is made if missing.

    Raises:
      DataError: it is not a .zip, is damaged, lacks a file, or has one that is larger than allowed.
    """
    with streams.errors_of(path):
        target.mkdir(exist_ok=True)
        try:
            with zipfile.ZipFile(path) as opened:
                for name in names:
                    _write_member(opened, path, f"{folder}/{name}", target / name)
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
            raise DataError(f"{path}: is not a whole .zip ({error}); get the file again") from None


def _write_member(opened: zipfile.ZipFile, path: LocalPath, member: str, target: pathlib.Path) -> None:
    """Writes a member to `target`, whole or not at all."""
    try:
        size = opened.getinfo(member).file_size
    except KeyError:
        raise DataError(f"{path}: holds no {member}") from None
    if size > MAX_FILE:
        raise DataError(f"{path}: member {member!r} of {count_of(size, 'byte')} is larger than allowed; refused")
    with streams.partial(target.parent) as written, opened.open(member) as stream:
        written.writelines(streams.blocks(stream, size + 1))
        written.flush()
        os.replace(written.name, target)
