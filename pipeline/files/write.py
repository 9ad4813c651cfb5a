"""Writes files atomically: under a temporary name next to the file, which is then renamed.

`Drafts` are several files in a folder that get their final names together.

Files of a data set are synced before the rename, and their folder after it, so that no crash of the machine leaves a
partial file. Files that only report on a run are not synced.
"""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from typing import IO

from pipeline.errors import named
from pipeline.files.paths import sync
from pipeline.files.remote import RemotePath

_HIDDEN = ".pipeline.index-"  # prefix of draft folders' names


class Draft:
    """A file that does not have its final name yet, held in memory for an object store. Raises `OSError`.

    Attributes:
      file: file open for writing.
    """

    file: IO[bytes]

    def __init__(self, path: pathlib.Path | RemotePath, name: str = "") -> None:
        """Opens the draft.

        Args:
          path: final path of the file.
          name: temporary name, so that a killed process's draft is overwritten; "" for a new name.
        """
        self._path = path
        if isinstance(path, RemotePath):
            self.file = io.BytesIO()
        else:
            new = path.parent / (name or temporary_name(path.name))
            self.file = open(new, "wb" if name else "xb")  # noqa: SIM115, `publish` closes it

    def publish(self, sync: bool = True) -> None:
        """Gives the file its final name, without syncing the folder.

        Args:
          sync: whether to sync the content first; otherwise a machine crash can leave a partial file.
        """
        if isinstance(self._path, RemotePath):
            assert isinstance(self.file, io.BytesIO)
            # Not `getbuffer`: in the traceback of a failed write it crashes Python 3.12.0 and 3.12.1 (cpython 111049).
            self._path.write_bytes(self.file.getvalue())
            return
        self.file.flush()
        if sync:
            os.fsync(self.file.fileno())
        self.file.close()
        os.replace(self.file.name, self._path)

    def discard(self) -> None:
        """Removes the draft unless it is published."""
        with contextlib.suppress(OSError):
            self.file.close()
        if not isinstance(self._path, RemotePath):
            with contextlib.suppress(OSError):
                os.unlink(self.file.name)


@contextlib.contextmanager
def replaced(path: pathlib.Path, name: str = "", sync: bool = True) -> Iterator[IO[bytes]]:
    """Yields a new file, which gets its final name when the block ends and is removed if the block fails.

    Args:
      path: final path of the file. Its folder is not synced.
      name: temporary name, as in `Draft`.
      sync: whether a machine crash must leave either the old or the new file.
    """
    draft = Draft(path, name)
    try:
        yield draft.file
        draft.publish(sync)
    except BaseException:
        draft.discard()
        raise


def replace(path: pathlib.Path, data: str | bytes, suffix: str = ".tmp") -> None:
    """Replaces a file that no other process writes; readers see the old or the new content. The file is not synced."""
    with replaced(path, f"{path.name}{suffix}", sync=False) as file:
        file.write(data.encode() if isinstance(data, str) else data)


class Drafts:
    """Files that are written but have no final names yet. Several threads may add files.

    Args:
      folder: final folder of the files.
      hidden: folder in it that holds the drafts.
    """

    def __init__(self, folder: pathlib.Path, hidden: pathlib.Path) -> None:
        self._folder, self._hidden = folder, hidden

    def add(self, name: str, data: bytes) -> None:
        """Writes a file and syncs it to the disk.

        Raises:
          DataError: the file cannot be written.
        """
        path = self._hidden / name
        with named(self._folder / name, "cannot be written"):
            path.parent.mkdir(exist_ok=True)
        with named(self._folder / name, "cannot be written"), open(path, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def publish(self, last: str) -> None:
        """Moves the files into their folder, and at the end the file named `last`, which lists the others.

        If a move fails, new files are removed again.

        Raises:
          DataError: a file cannot be moved.
        """
        found = [path.relative_to(self._hidden) for path in self._hidden.rglob("*") if path.is_file()]
        names = sorted(found, key=lambda name: (name.name == last, name))
        folders = {self._folder / name.parent for name in names}
        new = [self._folder / name for name in names if not (self._folder / name).exists()]
        new_folders = [path for path in folders if not path.exists()]
        try:
            for path in folders:
                with named(path, "cannot be made"):
                    path.mkdir(exist_ok=True)
            for name in names:
                with named(self._folder / name, "cannot be written"):
                    if name.name == last:  # the files that it lists must be on disk first
                        for path in folders:
                            sync(path)
                    os.replace(self._hidden / name, self._folder / name)
        except BaseException:
            for path in new:
                path.unlink(missing_ok=True)
            for path in new_folders:
                with contextlib.suppress(OSError):
                    path.rmdir()
            raise
        sync(self._folder)


def left_in(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the hidden folders of drafts that killed runs left in a folder."""
    return sorted(path for path in folder.glob(f"{_HIDDEN}*") if path.is_dir() and not path.is_symlink())


@contextlib.contextmanager
def drafts_in(folder: pathlib.Path, advice: str = "") -> Iterator[Drafts]:
    """Context for the drafts of a folder. At the end, unpublished drafts are removed, including killed runs'.

    Args:
      folder: final folder of the files.
      advice: advice if the folder cannot be written to.

    Raises:
      DataError: the folder cannot be written to.
    """
    with named(folder, "cannot be written to", advice):
        hidden = pathlib.Path(tempfile.mkdtemp(prefix=_HIDDEN, dir=folder))
    try:
        yield Drafts(folder, hidden)
    finally:
        for path in left_in(folder):
            shutil.rmtree(path, ignore_errors=True)


def temporary_name(name: str) -> str:
    """Returns a new temporary name for the file `name`."""
    return f".{name}.tmp-{secrets.token_hex(8)}"
