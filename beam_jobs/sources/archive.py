"""Files read out of a .tar or .tar.gz member by member: nothing is extracted, so nothing can be put anywhere."""

from __future__ import annotations

import pathlib
import tarfile
from collections.abc import Sequence

from beam_jobs.sources import content
from pipeline.errors import DataError

MAX_FILE = 1 << 30  # 1 GiB: thirty times a published CIFAR batch
MAX_MEMBERS = 1000  # an archive of these data sets has about ten
MAX_ARCHIVE = 8 << 30  # 8 GiB of content: more is a gzip bomb or another archive


def read_bounded(path: pathlib.Path) -> bytes:
    """Returns a whole file.

    Raises:
      DataError: it is missing, unreadable or larger than 1 GiB.
    """
    with content.opened(path) as stream:
        data = content.read_at_most(stream, MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise DataError(f"{path}: is larger than {MAX_FILE} bytes, the most that a file of this data set can be")
    return data


def read_members(path: pathlib.Path, folder: str, names: Sequence[str]) -> dict[str, bytes]:
    """Returns the content of `folder/name` for each of `names`, in their order.

    Raises:
      DataError: it is no tar archive, is cut short or corrupt, lacks a file, holds one twice, as a link or with a path
        that leaves the archive, or is larger than can be.
    """
    found: dict[str, bytes] = {}
    with content.opened(path) as stream:
        try:
            # Read front to back ("r|"): the stream is decompressed once, and never sought in.
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                for number, member in enumerate(tar):
                    _check_member(path, member, number)
                    parts = pathlib.PurePosixPath(member.name).parts
                    if parts in {(folder, name) for name in names} or (len(parts) == 1 and parts[0] in names):
                        _add(found, tar, member, parts[-1], path)
        except tarfile.TarError as error:
            raise DataError(f"{path}: is no whole tar archive ({error}); get the file again") from None
    for name in names:
        if name not in found:
            raise DataError(f"{path}: holds no {folder}/{name}")
    return {name: found[name] for name in names}


def _check_member(path: pathlib.Path, member: tarfile.TarInfo, number: int) -> None:
    parts = pathlib.PurePosixPath(member.name).parts
    if member.name.startswith("/") or ".." in parts:
        raise DataError(f"{path}: member {member.name!r} has a path that leaves the archive; refused")
    if not (member.isfile() or member.isdir()):
        raise DataError(f"{path}: member {member.name!r} is a link or a device, not a file; refused")
    if number >= MAX_MEMBERS:
        raise DataError(f"{path}: has more than {MAX_MEMBERS} members; it is not the published archive")
    if member.size > MAX_FILE or member.offset + member.size > MAX_ARCHIVE:
        raise DataError(f"{path}: member {member.name!r} of {member.size} bytes is larger than can be; refused")


def _add(found: dict[str, bytes], tar: tarfile.TarFile, member: tarfile.TarInfo, name: str, path: pathlib.Path) -> None:
    if name in found:
        raise DataError(f"{path}: holds {name} twice")
    stream = tar.extractfile(member)
    found[name] = stream.read() if stream is not None else b""
    if len(found[name]) != member.size:
        raise DataError(f"{path}: is cut short inside {member.name}; get the file again")
