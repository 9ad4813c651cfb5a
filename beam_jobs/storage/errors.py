"""Errors of files: one line with the path, and why the system or the store refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow

from pipeline.errors import DataError

_MOST_TEXT = 400  # characters of a reason: without Java, HDFS lists 100 folders


@contextlib.contextmanager
def one_line(path: object, done: str, missing: bool = False) -> Iterator[None]:
    """Turns what the system or pyarrow raises in the block into a `DataError`: "PATH: cannot be DONE: reason".

    Args:
      path: the file or folder.
      done: what the block does to it: "read", "written".
      missing: whether a missing file stays a `FileNotFoundError`.
    """
    try:
        yield
    except (OSError, pyarrow.ArrowException) as error:
        if missing and isinstance(error, FileNotFoundError):
            raise FileNotFoundError(2, "no such file", str(path)) from None
        reason = " ".join((getattr(error, "strerror", None) or str(error)).split())
        reason = reason if len(reason) <= _MOST_TEXT else f"{reason[:_MOST_TEXT]}..."
        raise DataError(f"{path}: cannot be {done}: {reason}") from None
