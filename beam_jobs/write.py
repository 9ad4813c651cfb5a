"""Files that are whole or not there: temporary name in the same folder, fsync, rename, fsync of the folder."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import secrets
import threading
from collections.abc import Iterator

from pipeline import naming
from pipeline.errors import DataError

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


def publish(path: pathlib.Path, data: bytes | memoryview) -> None:
    """Writes `data` to `path` so that at every moment `path` is missing, as before, or whole.

    Raises:
      DataError: the file cannot be written: no space, no permission, no folder.
    """
    with gate.passed():
        _publish(path, data)


def _publish(path: pathlib.Path, data: bytes | memoryview) -> None:
    temporary = path.with_name(temporary_name(path.name))
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


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


def names_in(folder: pathlib.Path) -> list[str]:
    """Returns the names in a folder.

    Raises:
      DataError: it cannot be listed.
    """
    try:
        return os.listdir(folder)
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed: {error.strerror or error}") from None


def temporary_name(name: str) -> str:
    """Returns a new temporary name for the file `name`."""
    return f".{name}.tmp-{secrets.token_hex(8)}"


def is_temporary(name: str) -> bool:
    """Says whether `name` is a temporary name of a shard or a manifest: nobody else's files look like that."""
    match = _TEMPORARY.fullmatch(name)
    if not match:
        return False
    return match["target"] == naming.MANIFEST or naming.parse_shard_name(match["target"]) is not None


def remove_temporaries(folder: pathlib.Path) -> None:
    """Removes what killed conversions left under temporary names.

    Raises:
      DataError: the folder cannot be listed, or a file cannot be removed.
    """
    for name in names_in(folder):
        if is_temporary(name):
            remove(folder / name)


def remove(path: pathlib.Path) -> None:
    """Removes a file; one that is gone already is fine.

    Raises:
      DataError: it cannot be removed.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be removed: {error.strerror or error}") from None
