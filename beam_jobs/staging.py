"""A conversion takes shape in a folder of its own inside data_dir; then the command moves it into its place.

Until then what was in data_dir is whole, whatever becomes of the conversion. Workers know the inner folder only, so a
bundle that is retried, or a worker that outlives its command, cannot touch a published data set.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import re
import secrets
import signal
import threading
from collections.abc import Iterable, Iterator

from beam_jobs import write
from pipeline import manifest, naming
from pipeline.errors import DataError
from pipeline.manifest import Manifest

_FOLDER = re.compile(r"\.converting\.tmp-[0-9a-f]{16}")


@contextlib.contextmanager
def opened(data_dir: pathlib.Path) -> Iterator[pathlib.Path]:
    """Makes an empty folder in `data_dir`, the caller's alone; at the end it is gone with what is left in it.

    Raises:
      DataError: it cannot be made.
    """
    folder = data_dir / f".converting.tmp-{secrets.token_hex(8)}"
    try:
        folder.mkdir()
    except OSError as error:
        raise DataError(f"{folder}: cannot be made: {error.strerror or error}") from None
    try:
        yield folder
    except DataError as error:  # says where the file was to be: the user knows no inner folder
        raise DataError(str(error).replace(str(folder), str(data_dir))) from error
    finally:
        with contextlib.suppress(OSError):  # the next conversion tries again
            _remove(folder)


def remove_leftovers(data_dir: pathlib.Path) -> None:
    """Removes what killed conversions left under temporary names.

    Raises:
      DataError: the folder cannot be listed, or a file cannot be removed.
    """
    write.remove_temporaries(data_dir)
    for name in write.names_in(data_dir):
        folder = data_dir / name
        if _FOLDER.fullmatch(name) and folder.is_dir() and not folder.is_symlink():
            _remove(folder)


def check_places(data_dir: pathlib.Path, names: Iterable[str]) -> None:
    """Checks that shards can be moved to `names`: a file or a link there is replaced, a folder cannot be.

    Raises:
      DataError: one of them is a folder.
    """
    for name in names:
        path = data_dir / name
        if path.is_dir() and not path.is_symlink():
            raise DataError(f"{path}: cannot be written: {os.strerror(errno.EISDIR)}; remove it")


def publish(folder: pathlib.Path, data_dir: pathlib.Path, replaced: Manifest | None) -> Manifest:
    """Moves a whole data set from `folder` up into `data_dir`, in the place of `replaced`; returns its manifest.

    The old manifest goes first and the new one comes last, so that no moment has a manifest with others' shards. Then
    go the old files that the new manifest does not list. Nothing is written but names, so no full disk can end it.

    Raises:
      DataError: the data set in `folder` is not whole, or a file cannot be moved or removed.
    """
    made = manifest.load(folder)
    names = [shard.file for split in made.splits.values() for shard in split.shards]
    check_places(data_dir, names)
    with _signals_held():
        _swap(folder, data_dir, names)
        for name in _files_of(replaced) - set(names):
            write.remove(data_dir / name)
    return made


def _swap(folder: pathlib.Path, data_dir: pathlib.Path, names: list[str]) -> None:
    pending = data_dir / write.temporary_name(naming.MANIFEST)
    _move(folder / naming.MANIFEST, pending)  # from here on the inner folder is no data set either
    write.remove(data_dir / naming.MANIFEST)
    write.sync_folder(data_dir)
    for name in names:
        _move(folder / name, data_dir / name)
    write.sync_folder(data_dir)
    _move(pending, data_dir / naming.MANIFEST)
    write.sync_folder(data_dir)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Answers Ctrl-C and SIGTERM at the end: a swap takes less time than converting again what it would lose."""
    if threading.current_thread() is not threading.main_thread():  # no signal is answered here
        yield
        return
    held: list[int] = []
    before = {number: signal.signal(number, lambda n, _: held.append(n)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if held:
        signal.raise_signal(held[0])


def _files_of(replaced: Manifest | None) -> set[str]:
    if not replaced:
        return set()
    listed = {shard.file for split in replaced.splits.values() for shard in split.shards}
    return {name for name in listed if naming.parse_shard_name(name)}  # a manifest can be made to list any file


def _move(path: pathlib.Path, place: pathlib.Path) -> None:
    try:
        os.replace(path, place)  # a link at `place` is replaced, never followed
    except OSError as error:
        raise DataError(f"{place}: cannot be written: {error.strerror or error}") from None


def _remove(folder: pathlib.Path) -> None:
    write.remove_temporaries(folder)
    for name in write.names_in(folder):
        if name == naming.MANIFEST or naming.parse_shard_name(name):
            write.remove(folder / name)
    with contextlib.suppress(OSError):  # it holds something that no conversion wrote
        folder.rmdir()
