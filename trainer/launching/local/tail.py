"""A file that another process writes, line by line as it grows.

Processes write to files, not to pipes: a pipe would end them, before they have saved, where the launcher is gone.
"""

from __future__ import annotations

import collections
import pathlib

_MOST_KEPT = 20  # last lines


class Tail:
    """Follows what is added to a file.

    Attributes:
      path: of the file.
      last: the last lines of it that were read.
    """

    def __init__(self, path: pathlib.Path) -> None:
        """Follows what is added from now on; the file is made where it is not there."""
        self.path = path
        path.touch()
        self._file = path.open("rb", buffering=0)
        self._file.seek(0, 2)
        self._rest = b""
        self.last: collections.deque[str] = collections.deque(maxlen=_MOST_KEPT)

    def lines(self, is_end: bool = False) -> list[str]:
        """Returns the new lines; at the end also one that has no newline."""
        *whole, self._rest = (self._rest + self._file.readall()).split(b"\n")
        if is_end and self._rest:
            whole, self._rest = [*whole, self._rest], b""
        lines = [line.decode(errors="replace").rstrip("\r") for line in whole]
        self.last.extend(line for line in lines if line.strip())
        return lines

    def close(self) -> None:
        """Follows no longer."""
        self._file.close()
