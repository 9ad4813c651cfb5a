"""`labels.txt`: the names of a source's classes, one per line."""

from __future__ import annotations

from beam_jobs.sources import streams
from beam_jobs.storage.paths import StoragePath
from pipeline.commands.text import count_of
from pipeline.errors import DataError

LABELS = "labels.txt"


def read(path: StoragePath) -> tuple[str, ...]:
    """Returns the class names in a file; none if there is no such file.

    Raises:
      DataError: it is not UTF-8 text, or a line is empty.
    """
    if not path.exists():
        return ()
    with streams.errors_of(path):
        try:
            names = tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines())
        except UnicodeDecodeError:
            raise DataError(f"{path}: is not UTF-8 text") from None
    if not names or not all(names):
        raise DataError(f"{path}: must have the name of a class in every line; it has {count_of(len(names), 'line')}")
    return names
