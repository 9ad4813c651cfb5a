"""Files that get their names together, at the end: a run stopped before leaves only hidden temporary files."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import secrets
from collections.abc import Iterator

from pipeline.errors import DataError
from pipeline.manifest import naming

_TEMPORARY = re.compile(r"\..+\.indexing-[0-9a-f]{16}")  # no other program's look like this


class Drafts:
    """Files of a folder that are written but not yet named. Several threads may add some.

    A context manager: leaving it removes those that were not published; none may be added then.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        """Makes it empty."""
        self._folder = folder
        self._made: dict[str, pathlib.Path] = {}

    def __enter__(self) -> Drafts:
        return self

    def __exit__(self, *_: object) -> None:
        for path in self._made.values():
            path.unlink(missing_ok=True)

    def add(self, name: str, data: bytes) -> None:
        """Writes a file under a temporary name.

        Raises:
          DataError: it cannot be written.
        """
        temporary = self._folder / f".{name}.indexing-{secrets.token_hex(8)}"
        self._made[name] = temporary
        with self._errors(name), open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def publish(self) -> None:
        """Gives the files their names, the manifest last; if that fails, removes those that are new.

        Raises:
          DataError: a file cannot be renamed.
        """
        new: list[pathlib.Path] = []
        try:
            for name in sorted(self._made, key=lambda name: name == naming.MANIFEST):
                path = self._folder / name
                new += [] if path.exists() else [path]
                if name == naming.MANIFEST:
                    self._sync()
                with self._errors(name):
                    os.replace(self._made[name], path)
        except BaseException:
            for path in new:
                path.unlink(missing_ok=True)
            raise
        self._sync()

    def _sync(self) -> None:
        with self._errors(""):
            descriptor = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    @contextlib.contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(f"{self._folder / name}: cannot be written: {error.strerror or error}") from None


def remove_left(folder: pathlib.Path) -> None:
    """Removes the temporary files that killed runs left."""
    for name in os.listdir(folder):
        if _TEMPORARY.fullmatch(name):
            (folder / name).unlink(missing_ok=True)
