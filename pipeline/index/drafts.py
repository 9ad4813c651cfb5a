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
        path = self._hidden / name
        with named(self._folder / name, "cannot be written"):
            path.parent.mkdir(exist_ok=True)
        with named(self._folder / name, "cannot be written"), open(path, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def publish(self) -> None:
        """Moves the files into their folder, the manifest last; if that fails, removes those that are new.

        Raises:
          DataError: a file cannot be moved.
        """
        found = [path.relative_to(self._hidden) for path in self._hidden.rglob("*") if path.is_file()]
        names = sorted(found, key=lambda name: (name.name == naming.MANIFEST, name))
        folders = {self._folder / name.parent for name in names}
        new = [self._folder / name for name in names if not (self._folder / name).exists()]
        new_folders = [path for path in folders if not path.exists()]
        try:
            for path in folders:
                with named(path, "cannot be made"):
                    path.mkdir(exist_ok=True)
            for name in names:
                with named(self._folder / name, "cannot be written"):
                    if name.name == naming.MANIFEST:
                        for path in folders:
                            _sync(path)
                    os.replace(self._hidden / name, self._folder / name)
        except BaseException:
            for path in new:
                path.unlink(missing_ok=True)
            for path in new_folders:
                with contextlib.suppress(OSError):
                    path.rmdir()
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
