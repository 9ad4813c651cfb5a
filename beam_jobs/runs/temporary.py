"""A folder for the temporary files of one run: gone at its end, and after a kill removed by the next run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

_PREFIX = "stepfeed-run-"


@contextlib.contextmanager
def folder() -> Iterator[pathlib.Path]:
    """Yields a folder that all of this process's temporary files go to, and removes it; those of killed runs, too.

    A run keeps its folder locked. The kernel releases the lock however the process ends.
    """
    outer = tempfile.tempdir
    place = pathlib.Path(tempfile.gettempdir())
    _remove_abandoned(place)
    made, descriptor = _make_locked(place)
    tempfile.tempdir = os.fspath(made)
    try:
        yield made
    finally:
        tempfile.tempdir = outer
        shutil.rmtree(made, ignore_errors=True)  # after Ctrl-C, a runner's threads may still write there
        os.close(descriptor)


def _make_locked(place: pathlib.Path) -> tuple[pathlib.Path, int]:
    while True:
        made = pathlib.Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        with contextlib.suppress(FileNotFoundError):  # another run removed it before it was locked
            descriptor = os.open(made, os.O_RDONLY)
            if _lock(descriptor) and made.exists():
                return made, descriptor
            os.close(descriptor)


def _remove_abandoned(place: pathlib.Path) -> None:
    for path in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # it is somebody else's, or was just removed
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid == os.getuid() and _lock(descriptor):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
