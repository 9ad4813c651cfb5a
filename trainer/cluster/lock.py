"""One job per run folder: two would tidy away each other's saves, and one's weights would be lost."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
from collections.abc import Iterator

from pipeline.errors import RerunError, named
from pipeline.files.paths import locked
from trainer.run_folder import RunFolder

FILE = ".trainer.lock"  # in the folder; holds who locked it last, and stays
_MOST_BYTES = 1000  # of what it holds


@contextlib.contextmanager
def held(folder: RunFolder, place: pathlib.Path | None = None, what: str = "is training") -> Iterator[None]:
    """Context in which no other job trains in a folder. The system frees the lock of a process that is dead.

    Args:
      folder: of the run.
      place: the folder that holds the lock; None: the same.
      what: what the holder of a lock does there, for the error.

    Raises:
      RerunError: another job trains there. Its code is that of a rerun, since a launcher may start this job while the
        end of the one before it is still under way.
      DataError: the folder cannot be written to.
    """
    path = (place or folder.path) / FILE
    with named(path, "cannot be opened"):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    with locked(descriptor) as is_free:
        if not is_free:
            holder = os.pread(descriptor, _MOST_BYTES, 0).decode(errors="replace").strip() or "another process"
            raise RerunError(f"{folder}: {holder} {what} there; wait until it ends, or use another --model_dir")
        with contextlib.suppress(OSError):  # a full disk: the lock holds without a name
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
