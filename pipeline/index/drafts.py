"""Files that get their names together, at the end: a run that is killed before leaves only a hidden folder."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from pipeline.errors import named
from pipeline.manifest import naming

_PREFIX = ".pipeline.index-"


class Drafts:
    """Files that are written but not yet in their folder. Several threads may add some."""

    def __init__(self, folder: pathlib.Path, hidden: pathlib.Path) -> None:
        """Takes the folder they are for, and the hidden one in it that holds them."""
        self._folder, self._hidden = folder, hidden

    def add(self, name: str, data: bytes) -> None:
        """Writes a file.

        Raises:
          DataError: it cannot be written.
        """
        with named(self._folder / name, "cannot be written"), open(self._hidden / name, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def publish(self) -> None:
        """Moves the files into their folder, the manifest last; if that fails, removes those that are new.

        Raises:
          DataError: a file cannot be moved.
        """
        names = sorted(os.listdir(self._hidden), key=lambda name: name == naming.MANIFEST)
        new = [self._folder / name for name in names if not (self._folder / name).exists()]
        try:
            for name in names:
                with named(self._folder / name, "cannot be written"):
                    if name == naming.MANIFEST:
                        _sync(self._folder)
                    os.replace(self._hidden / name, self._folder / name)
        except BaseException:
            for path in new:
                path.unlink(missing_ok=True)
            raise
        _sync(self._folder)


@contextlib.contextmanager
def drafts_in(folder: pathlib.Path) -> Iterator[Drafts]:
    """Context for the drafts of a folder; its end removes what was not published, also by runs that were killed.

    Raises:
      DataError: the folder cannot be written to.
    """
    with named(folder, "cannot be written to"):
        hidden = pathlib.Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
    try:
        yield Drafts(folder, hidden)
    finally:
        for path in folder.glob(f"{_PREFIX}*"):
            shutil.rmtree(path, ignore_errors=True)


def _sync(folder: pathlib.Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
