"""Files that are whole or not there: temporary name in the same folder, fsync, rename, fsync of the folder."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import secrets
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import crc32c
import numpy as np
from numpy.typing import NDArray

from beam_jobs.storage.paths import AnyPath, RemotePath
from pipeline.errors import DataError
from pipeline.manifest import naming

Bytes: TypeAlias = bytes | NDArray[np.uint8]

BESIDE_SHARDS = (naming.MANIFEST, naming.REJECTS, *naming.TFDS_FILES, naming.CARD)
_TEMPORARY = re.compile(r"\.(?P<target>.+)\.tmp-[0-9a-f]{16}")


class Gate:
    """Lets writes begin until it is shut; shutting waits for those that have begun.

    A runner's threads cannot be stopped: this keeps them from writing on after the command has cleaned up.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_open = True
        self._inside = 0

    def open(self) -> None:
        """Lets writes begin."""
        with self._changed:
            self._is_open = True

    def shut(self) -> None:
        """Lets no more writes begin and waits for those that have."""
        with self._changed:
            self._is_open = False
            self._changed.wait_for(lambda: not self._inside)

    @contextlib.contextmanager
    def passed(self) -> Iterator[None]:
        """Encloses a write.

        Raises:
          DataError: the gate is shut.
        """
        with self._changed:
            if not self._is_open:
                raise DataError("the conversion was stopped")
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()


gate = Gate()


@dataclasses.dataclass(frozen=True)
class Written:
    """A file's size in bytes and its CRC32C, 8 hexadecimal digits."""

    num_bytes: int
    crc32c: str


def publish(path: AnyPath, data: bytes | memoryview) -> None:
    """Writes `data` to `path` so that at every moment `path` is missing, as before, or whole (but for HDFS).

    Raises:
      DataError: the file cannot be written: no space, no permission, no folder.
    """
    publish_blocks(path, [bytes(data)])
    if not isinstance(path, RemotePath):
        sync_folder(path.parent)


def publish_blocks(path: AnyPath, blocks: Iterable[Bytes], sync: bool = True) -> Written:
    """Writes a file of pieces as `publish` does, but leaves its name to the next `sync_folder` to make last.

    Args:
      path: the file.
      blocks: bytes or uint8 (n,), taken one after the other.
      sync: whether the content must last before its name is there; else a crash of the machine can leave part of it.

    Raises:
      DataError: the file cannot be written: no space, no permission, no folder.
    """
    draft = Draft(path, blocks)
    draft.publish(sync)
    return draft.written


class Draft:
    """A file that has all its bytes, but not yet its name; on an object store, the bytes in memory.

    Args:
      path, blocks: as of `publish_blocks`.

    Attributes:
      written: its size and CRC.

    Raises:
      DataError: the file cannot be written.
    """

    def __init__(self, path: AnyPath, blocks: Iterable[Bytes]) -> None:
        self._path = path
        tally = _Tally(blocks)
        with self._no_remains(), gate.passed():
            if isinstance(path, RemotePath):
                self._data = b"".join(tally)
            else:
                self._temporary = path.with_name(temporary_name(path.name))
                self._file = open(self._temporary, "xb")  # noqa: SIM115 (`publish` closes it)
                self._file.writelines(tally)
                self._file.flush()
        self.written = Written(tally.num_bytes, f"{tally.crc:08x}")

    def publish(self, sync: bool = True) -> None:
        """Gives the file its name, once its content lasts; see `publish_blocks`.

        Raises:
          DataError: the file cannot be written; nothing is left of it.
        """
        with self._no_remains(), gate.passed():
            if isinstance(self._path, RemotePath):
                self._path.write_bytes(self._data)
                return
            if sync:
                os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._temporary, self._path)

    @contextlib.contextmanager
    def _no_remains(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if hasattr(self, "_file"):
                with contextlib.suppress(OSError):
                    self._file.close()
                with contextlib.suppress(OSError):
                    self._temporary.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise DataError(f"{self._path}: cannot be written: {error.strerror or error}") from None
            raise


class _Tally:
    """Counts blocks as they pass."""

    def __init__(self, blocks: Iterable[Bytes]) -> None:
        self._blocks = blocks
        self.num_bytes = 0
        self.crc = 0

    def __iter__(self) -> Iterator[Any]:  # arrays are buffers, as mypy knows from Python 3.12 on
        for block in self._blocks:
            self.num_bytes += len(block)
            self.crc = crc32c.crc32c(block, self.crc)
            yield block


def sync_folder(folder: pathlib.Path) -> None:
    """Makes renames and removals in `folder` last.

    Raises:
      DataError: the folder cannot be opened, or the disk fails.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise DataError(f"{folder}: cannot be synced to its disk: {error.strerror or error}") from None


def names_in(folder: AnyPath) -> list[str]:
    """Returns the names in a folder; on an object store those of its files.

    Raises:
      DataError: it cannot be listed.
    """
    if isinstance(folder, RemotePath):
        return folder.files()
    try:
        return os.listdir(folder)
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed: {error.strerror or error}") from None


def temporary_name(name: str) -> str:
    """Returns a new temporary name for the file `name`."""
    return f".{name}.tmp-{secrets.token_hex(8)}"


def is_temporary(name: str) -> bool:
    """Says whether `name` is a temporary name of a file that a conversion writes: nobody else's look like that."""
    match = _TEMPORARY.fullmatch(name)
    return match is not None and is_ours(match["target"])


def is_ours(name: str) -> bool:
    """Says whether a conversion writes a file of this name."""
    if name in BESIDE_SHARDS:
        return True
    return any(naming.parse_shard_name(name.removesuffix(end)) for end in ("", ".offsets", ".receipt.json"))


def remove_temporaries(folder: pathlib.Path) -> None:
    """Removes what killed conversions left under temporary names.

    Raises:
      DataError: the folder cannot be listed, or a file cannot be removed.
    """
    for name in names_in(folder):
        if is_temporary(name):
            remove(folder / name)


def remove(path: AnyPath) -> None:
    """Removes a file; one that is gone already is fine.

    Raises:
      DataError: it cannot be removed.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be removed: {error.strerror or error}") from None
