"""One job per run folder: two would remove each other's saves, and the weights of one would be lost."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
from collections.abc import Iterator

from pipeline.errors import RerunError, named
from pipeline.files.paths import locked
from trainer.run_folder import RunFolder

FILE = ".trainer.lock"  # in the folder; says who locked it last, and is never removed
_MOST_BYTES = 1000  # of its content


@contextlib.contextmanager
def held(folder: RunFolder, place: pathlib.Path | None = None, what: str = "is training") -> Iterator[None]:
    """Context in which no other job trains in a folder. The system frees the lock of a dead process.

    Args:
      folder: of the run.
      place: the folder with the lock; None: the run's.
      what: what the holder of the lock does there, for the error.

    Raises:
      RerunError: another job trains there. A rerun may help: a launcher may start a job while the one before is still
        ending.
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
