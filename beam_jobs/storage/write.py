"""Writes files that are either complete or missing: temporary name, fsync, rename, fsync of the folder."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import re
import secrets
import threading
from collections.abc import Iterable, Iterator
from typing import IO, Any, TypeAlias

import crc32c
import numpy as np
from numpy.typing import NDArray

from beam_jobs.storage.paths import LocalPath, StoragePath, one_line
from pipeline.errors import DataError
from pipeline.manifest import naming

Bytes: TypeAlias = bytes | NDArray[np.uint8]

BESIDE_SHARDS = (naming.MANIFEST, naming.REJECTS, *naming.TFDS_FILES, naming.CARD)
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
        """Context of one write.

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
    """Writes a file, which at every moment is missing, as before, or complete (except on HDFS).

    Raises:
      DataError: the file cannot be written: no space, no permission, no folder.
    """
    Draft(path, [bytes(data)]).publish()
    path.parent.sync()


class Draft:
    """A file that has all its bytes but not yet its name; for an object store, the bytes in memory.

    Args:
      path: the file.
      blocks: the content in pieces, bytes or uint8 (n,).

    Attributes:
      num_bytes: the file's size.
      crc32c: CRC32C of its bytes, 8 hexadecimal digits.

    Raises:
      DataError: the file cannot be written.
    """

    def __init__(self, path: StoragePath, blocks: Iterable[Bytes]) -> None:
        self._path = path
        self._file: Any = io.BytesIO()
        self.num_bytes = self._crc = 0
        counted = self._counted(blocks)
        with self._no_remains(), gate.passed():
            if not path.is_remote:
                self._file = open(str(path.parent / temporary_name(path.name)), "xb")  # noqa: SIM115 (`publish` closes it)
            self._file.writelines(counted)
            self._file.flush()
        self.crc32c = f"{self._crc:08x}"

    def publish(self, sync: bool = True) -> None:
        """Gives the file its name, without syncing the folder.

        Args:
          sync: whether to sync the content first; without it a crash of the machine can leave part of the file.

        Raises:
          DataError: the file cannot be written; it was removed.
        """
        with self._no_remains(), gate.passed():
            if isinstance(self._file, io.BytesIO):
                # `getbuffer`, in the traceback of a failed write, ends Python 3.12.0 and 3.12.1 (cpython 111049).
                self._path.write_bytes(self._file.getvalue())
                return
            if sync:
                os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._file.name, str(self._path))

    def _counted(self, blocks: Iterable[Any]) -> Iterator[Any]:  # arrays are buffers, as mypy knows from Python 3.12 on
        for block in blocks:
            self.num_bytes += len(block)
            self._crc = crc32c.crc32c(block, self._crc)
            yield block

    @contextlib.contextmanager
    def _no_remains(self) -> Iterator[None]:
        try:
            with one_line(self._path, "written"):
                yield
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Removes what was written, unless it has its name."""
        if isinstance(self._file, io.BufferedWriter):
            with contextlib.suppress(OSError):
                self._file.close()
            with contextlib.suppress(OSError):
                os.unlink(self._file.name)


@contextlib.contextmanager
def replaced(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """Yields a new file, which gets its name at the end of the block. If the block fails, it is removed.

    For files that are no data set's: shutting the gate does not stop this. Errors are `OSError`.
    """
    with open(path.parent / temporary_name(path.name), "xb") as made:
        try:
            yield made
            made.flush()
            os.fsync(made.fileno())
            os.replace(made.name, path)
        except BaseException:
            pathlib.Path(made.name).unlink(missing_ok=True)
            raise


def temporary_name(name: str) -> str:
    """Returns a new temporary name for the file `name`."""
    return f".{name}.tmp-{secrets.token_hex(8)}"


def is_temporary(name: str) -> bool:
    """Returns whether `name` is the temporary name of a file that a conversion writes."""
    match = _TEMPORARY.fullmatch(name)
    return match is not None and is_ours(match["target"])


def is_ours(name: str) -> bool:
    """Returns whether a conversion writes files with this name."""
    if name in BESIDE_SHARDS:
        return True
    return bool(naming.parse_shard_name(name.removesuffix(".receipt.json")) or naming.shard_of_sidecar(name))


def remove_temporaries(folder: LocalPath) -> None:
    """Removes the temporary files of killed conversions.

    Raises:
      DataError: the folder cannot be listed, or a file cannot be removed.
    """
    for name in folder.names():
        if is_temporary(name):
            (folder / name).remove()
