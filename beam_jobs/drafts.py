"""Writes the files of a conversion: each is complete or missing, and none appears once the conversion is stopped."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError, one_line
from pipeline.files import write
from pipeline.files.paths import LocalPath, StoragePath
from pipeline.manifest import naming

Bytes: TypeAlias = bytes | NDArray[np.uint8]

BESIDE_SHARDS = (naming.MANIFEST, naming.REJECTS, *naming.TFDS_FILES, naming.CARD, naming.CROISSANT)
_TEMPORARY = re.compile(r"\.(?P<target>.+)\.tmp-[0-9a-f]{16}")


class Gate:
    """Allows writes until it is shut; shutting waits for those in progress.

    A runner's threads cannot be stopped: this keeps them from writing after the command has cleaned up.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_open = True
        self._inside = 0

    def open(self) -> None:
        """Allows writes."""
        with self._changed:
            self._is_open = True

    def shut(self) -> None:
        """Forbids new writes and waits for those in progress."""
        with self._changed:
            self._is_open = False
            self._changed.wait_for(lambda: not self._inside)

    @contextlib.contextmanager
    def passed(self) -> Iterator[None]:
        """Context manager around one write.

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


def publish(path: StoragePath, data: bytes | memoryview) -> None:
    """Writes a file atomically (except on HDFS): readers see the old content or none, then all of the new.

    Raises:
      DataError: the file cannot be written: no space, no permission, no folder.
    """
    Draft(path, [bytes(data)]).publish()
    path.parent.sync()


class Draft:
    """A file that is completely written but does not have its final name yet; for an object store, its bytes in memory.

    Args:
      path: final path of the file.
      blocks: content in pieces, bytes or uint8 (n,).

    Attributes:
      num_bytes: size of the file.
      crc32c: CRC32C of the content, 8 hexadecimal digits.

    Raises:
      DataError: the file cannot be written.
    """

    def __init__(self, path: StoragePath, blocks: Iterable[Bytes]) -> None:
        self._path = path
        self._draft: write.Draft | None = None
        self.num_bytes = 0
        crc = 0
        with self._no_remains(), gate.passed():
            self._draft = write.Draft(path)
            for block in blocks:
                data: Any = block  # arrays are buffers, as mypy knows from Python 3.12 on
                self.num_bytes += len(data)
                crc = crc32c.crc32c(data, crc)
                self._draft.file.write(data)
            self._draft.file.flush()
        self.crc32c = f"{crc:08x}"

    def publish(self, sync: bool = True) -> None:
        """Gives the file its name, without syncing the folder.

        Args:
          sync: whether to sync the content first; otherwise a machine crash can leave a partial file.

        Raises:
          DataError: the file cannot be written; it was removed.
        """
        assert self._draft is not None
        with self._no_remains(), gate.passed():
            self._draft.publish(sync)

    @contextlib.contextmanager
    def _no_remains(self) -> Iterator[None]:
        try:
            with one_line(self._path, "written"):
                yield
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Removes the bytes written, unless the file has its final name."""
        if self._draft is not None:
            self._draft.discard()


def is_temporary(name: str) -> bool:
    """Returns whether `name` is a temporary name that a conversion gives."""
    match = _TEMPORARY.fullmatch(name)
    if match is None:
        return False
    name = match["target"]
    return is_ours(name) or naming.parse_version_name(name) is not None or f"{naming.VERSIONS}/{name}" == naming.LOG


def is_ours(name: str) -> bool:
    """Returns whether a conversion writes files with this name."""
    if name in (*BESIDE_SHARDS, naming.REPLACED, naming.KNOWN_KEYS) or naming.is_column_name(name):
        return True
    return bool(naming.parse_shard_name(name.removesuffix(".receipt.json")) or naming.shard_of_sidecar(name))


def remove_temporaries(folder: LocalPath) -> None:
    """Removes temporary files left by killed conversions.

    Raises:
      DataError: the folder cannot be listed, or a file cannot be removed.
    """
    for name in folder.names():
        if is_temporary(name):
            (folder / name).remove()
