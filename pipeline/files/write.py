"""Writes files that are either complete or as they were before: a temporary name beside the file, then a rename.

What a data set consists of is synced before the rename, and so is its folder after it: a crash of the machine leaves
no file in part. What only tells how a run goes is not.
"""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import secrets
from collections.abc import Iterator
from typing import IO

from pipeline.files.remote import RemotePath


class Draft:
    """A file that does not have its name yet; for an object store, its bytes in memory. Errors are `OSError`.

    Attributes:
      file: open for writing.
    """

    file: IO[bytes]

    def __init__(self, path: pathlib.Path | RemotePath, name: str = "") -> None:
        """Begins it.

        Args:
          path: that it will have.
          name: the temporary one, under which what a killed process left is overwritten; "": a new one.
        """
        self._path = path
        if isinstance(path, RemotePath):
            self.file = io.BytesIO()
        else:
            new = path.parent / (name or temporary_name(path.name))
            self.file = open(new, "wb" if name else "xb")  # noqa: SIM115, `publish` closes it

    def publish(self, sync: bool = True) -> None:
        """Gives the file its name, without syncing the folder.

        Args:
          sync: whether to sync the content first; without it a crash of the machine can leave part of the file.
        """
        if isinstance(self._path, RemotePath):
            assert isinstance(self.file, io.BytesIO)
            # `getbuffer`, in the traceback of a failed write, ends Python 3.12.0 and 3.12.1 (cpython 111049).
            self._path.write_bytes(self.file.getvalue())
            return
        self.file.flush()
        if sync:
            os.fsync(self.file.fileno())
        self.file.close()
        os.replace(self.file.name, self._path)

    def discard(self) -> None:
        """Removes what was written, unless it has its name."""
        with contextlib.suppress(OSError):
            self.file.close()
        if not isinstance(self._path, RemotePath):
            with contextlib.suppress(OSError):
                os.unlink(self.file.name)


@contextlib.contextmanager
def replaced(path: pathlib.Path, name: str = "", sync: bool = True) -> Iterator[IO[bytes]]:
    """Yields a new file, which gets its name at the end of the block. If the block fails, it is removed.

    Args:
      path: the file. Its folder is not synced.
      name: the temporary name, as `Draft` takes it.
      sync: whether a crash of the machine is to leave the old file or the new one.
    """
    draft = Draft(path, name)
    try:
        yield draft.file
        draft.publish(sync)
    except BaseException:
        draft.discard()
        raise


def replace(path: pathlib.Path, data: str | bytes, suffix: str = ".tmp") -> None:
    """Writes a file that only one process writes: readers see the old content or the new, which is not synced.

    Args:
      path: the file.
      data: its content.
      suffix: follows its name while it is written.
    """
    with replaced(path, f"{path.name}{suffix}", sync=False) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def sync(folder: pathlib.Path) -> None:
    """Syncs renames and removals in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temporary_name(name: str) -> str:
    """Returns a new temporary name for the file `name`."""
    return f".{name}.tmp-{secrets.token_hex(8)}"
