"""Errors of files: one line with the path, and why the system or the store refused."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pyarrow

from pipeline.errors import DataError, TransientError

_OF_STORE = re.compile(r"AWS Error|google::cloud::Status")  # in the text of pyarrow's errors, which have no errno
_MOST_TEXT = 400  # characters of a reason: without Java, HDFS lists 100 folders


@contextlib.contextmanager
def one_line(path: object, done: str, missing: bool = False) -> Iterator[None]:
    """Turns what the system or pyarrow raises in the block into a `DataError`: "PATH: cannot be DONE: reason".

    Its class is that of `kind_of`.

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
        raise kind_of(error)(f"{path}: cannot be {done}: {reason}") from None


def kind_of(error: Exception) -> type[DataError]:
    """Returns the class of our error for one of the system or pyarrow.

    It is `TransientError` if the system or a store failed, and not pyarrow on what a file holds, which raises an
    `OSError` as well.
    """
    if isinstance(error, DataError):
        return type(error)
    of_system = isinstance(error, OSError) and (error.errno is not None or _OF_STORE.search(str(error)))
    return TransientError if of_system else DataError
