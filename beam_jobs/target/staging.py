"""A conversion takes shape in a folder of its own inside data_dir; then the command moves it into its place.

Until then what was in data_dir is whole, whatever becomes of the conversion. Workers know the inner folder only, so a
bundle that is retried, or a worker that outlives its command, cannot touch a published data set. The folder is named by
the plan: the same command again finds the shards that are finished there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator

from beam_jobs.shards import receipts
from beam_jobs.storage import write
from beam_jobs.storage.paths import AnyPath
from pipeline import manifest
from pipeline.errors import DataError
from pipeline.manifest import Manifest, naming

FOLDER = re.compile(r"\.converting\.tmp-[0-9a-f]{16}")
FIRST_PASS = "first_pass"  # the folder of the first of two passes, inside that of the conversion


@contextlib.contextmanager
def opened(data_dir: pathlib.Path, digest: str) -> Iterator[pathlib.Path]:
    """Makes the folder of a plan in `data_dir`, or finds it with the shards that an earlier run finished.

    At the end it is gone; but where the conversion failed or was stopped, finished shards are kept, and a line says so.

    Args:
      data_dir: where it is made; the caller has the lock.
      digest: of the plan, hexadecimal.

    Raises:
      DataError: it cannot be made.
    """
    folder = data_dir / f".converting.tmp-{digest[:16]}"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot be made: {error.strerror or error}") from None
    try:
        yield folder
    except DataError as error:  # says where the file was to be: the user knows no inner folder
        raise DataError(str(error).replace(str(folder), str(data_dir))) from error
    finally:
        with contextlib.suppress(DataError):  # the next conversion tries again
            _leave(folder)


def remove_leftovers(data_dir: pathlib.Path, digest: str | None) -> None:
    """Removes what killed conversions left under temporary names, but for the finished shards of one plan.

    Args:
      data_dir: the folder, of which the caller has the lock.
      digest: of the plan whose shards stay; None: of no plan.

    Raises:
      DataError: the folder cannot be listed, or a file cannot be removed.
    """
    write.remove_temporaries(data_dir)
    for name in write.names_in(data_dir):
        folder = data_dir / name
        if not FOLDER.fullmatch(name) or folder.is_symlink() or not folder.is_dir():
            continue
        if digest and name.endswith(digest[:16]):
            write.remove_temporaries(folder)
        else:
            _remove(folder)


def take_back(data_dir: pathlib.Path) -> None:
    """Takes back what a killed command had moved to its place when the manifest was not in its own yet.

    Shards go back to their receipts, so the same command goes on with them; what lay beside them is made again.

    Raises:
      DataError: the folder cannot be listed, or a file cannot be moved or removed.
    """
    names = write.names_in(data_dir)
    pending = any(write.is_temporary(name) and name.startswith(f".{naming.MANIFEST}.") for name in names)
    if not pending or naming.MANIFEST in names:
        return
    for folder in (data_dir / name for name in names if FOLDER.fullmatch(name)):
        if folder.is_symlink() or not folder.is_dir():
            continue
        shards = [receipts.shard_of(name) for name in write.names_in(folder) if receipts.is_receipt(name)]
        for file in [*shards, *map(naming.offsets_name, shards)]:
            if file in names and not (folder / file).exists():
                _move(data_dir / file, folder / file)
    for name in write.BESIDE_SHARDS:
        if name != naming.REJECTS:
            write.remove(data_dir / name)


def check_places(data_dir: pathlib.Path, names: Iterable[str], replaced: Manifest | None) -> None:
    """Checks that files can be moved to `names`: a shard or a link there is replaced, a folder or what is not ours not.

    Raises:
      DataError: one of them is a folder; or a file that a conversion writes beside a manifest, and there is none.
    """
    for name in names:
        path = data_dir / name
        if path.is_dir() and not path.is_symlink():
            raise DataError(f"{path}: cannot be written: {os.strerror(errno.EISDIR)}; remove it")
    for name in write.BESIDE_SHARDS:
        if not replaced and name != naming.REJECTS and os.path.lexists(data_dir / name):
            raise DataError(
                f"{data_dir / name}: is not of a conversion of ours; remove it or choose another --data_dir"
            )


def publish(folder: pathlib.Path, data_dir: pathlib.Path, replaced: Manifest | None) -> Manifest:
    """Moves a whole data set from `folder` up into `data_dir`, in the place of `replaced`; returns its manifest.

    The old manifest goes first and the new one comes last, so that no moment has a manifest with others' shards. Then
    go the old files that the new manifest does not list. Nothing is written but names, so no full disk can end it.

    Raises:
      DataError: the data set in `folder` is not whole, or a file cannot be moved or removed.
    """
    made = manifest.load(folder)
    present = set(write.names_in(folder))
    names = [*_shard_files(made), *(name for name in write.BESIDE_SHARDS if name in present)]
    check_places(data_dir, names, replaced or made)
    with _signals_held():
        _swap(folder, data_dir, [name for name in names if name != naming.MANIFEST])
        for name in {naming.REJECTS, *files_of(replaced)} - set(names):  # a list of rejects may be of a failed run
            write.remove(data_dir / name)
        _remove(folder)
    return made


def keep_rejects(folder: AnyPath, data_dir: AnyPath) -> None:
    """Moves the list of rejected rows up, where there is one: it says what to do about a conversion that failed.

    Raises:
      DataError: it cannot be moved.
    """
    path, place = folder / naming.REJECTS, data_dir / naming.REJECTS
    if not path.exists():
        return
    if isinstance(path, pathlib.Path) and isinstance(place, pathlib.Path):
        _move(path, place)
    else:
        write.publish(place, path.read_bytes())
        write.remove(path)


def bytes_in(folder: pathlib.Path) -> int:
    """Returns the bytes of the shards that are finished in a folder, of both passes."""
    places = [place for place in (folder, folder / FIRST_PASS) if place.is_dir()]
    names = [place / name for place in places for name in write.names_in(place) if receipts.is_receipt(name)]
    found = [receipts.load(path) for path in names]
    return sum(receipt.info.num_bytes for receipt in found if receipt)


def files_of(present: Manifest | None) -> set[str]:
    """Returns the names of a data set's files, but for any that no conversion writes: a manifest can list those."""
    if not present:
        return set()
    return {*(name for name in _shard_files(present) if write.is_ours(name)), *write.BESIDE_SHARDS}


def say_kept(count: int, folder: AnyPath) -> None:
    """Prints that finished shards are kept."""
    note = f"{count} finished shards are kept in {folder}: the same command goes on from there"
    print(note, file=sys.stderr, flush=True)


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


def _shard_files(made: Manifest) -> list[str]:
    shards = [shard for split in made.splits.values() for shard in split.shards]
    return [*(s.file for s in shards), *(naming.offsets_name(s.file) for s in shards if s.offsets_crc32c)]


def _move(path: pathlib.Path, place: pathlib.Path) -> None:
    try:
        os.replace(path, place)  # a link at `place` is replaced, never followed
    except OSError as error:
        raise DataError(f"{place}: cannot be written: {error.strerror or error}") from None


def _leave(folder: pathlib.Path) -> None:
    """Keeps a folder with finished shards, for the same command; removes any other."""
    if not folder.exists():  # published
        return
    places = [place for place in (folder, folder / FIRST_PASS) if place.is_dir()]
    for place in places:
        write.remove_temporaries(place)
    kept = [name for place in places for name in write.names_in(place)]
    count = sum(receipts.is_receipt(name) for name in kept)
    if not count:
        _remove(folder)
        return
    say_kept(count, folder)


def _remove(folder: pathlib.Path) -> None:
    write.remove_temporaries(folder)
    if (folder / FIRST_PASS).is_dir():
        _remove(folder / FIRST_PASS)
    for name in write.names_in(folder):
        if write.is_ours(name):
            write.remove(folder / name)
    with contextlib.suppress(OSError):  # it holds something that no conversion wrote
        folder.rmdir()
