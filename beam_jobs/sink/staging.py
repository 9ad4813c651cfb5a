"""The folder inside data_dir that a conversion writes to, and the move of the finished data set into place.

Until that move, the data set in data_dir stays complete, however the conversion ends. Workers only know the inner
folder, so a retried bundle, or a worker that outlives its command, cannot touch a published data set. The folder is
named after the plan, so that rerunning the same command finds its finished shards.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator

from beam_jobs import drafts
from beam_jobs.shards import receipts
from beam_jobs.sink import present
from pipeline import manifest
from pipeline.commands.text import count_of
from pipeline.errors import DataError, RerunError, TransientError
from pipeline.files.paths import LocalPath, StoragePath
from pipeline.files.remote import RemotePath
from pipeline.files.write import temporary_name
from pipeline.manifest import Gone, Manifest, naming, versions

FOLDER = re.compile(rf"{re.escape(naming.CONVERTING)}[0-9a-f]{{16}}")
FIRST_PASS = "first_pass"  # the first pass's folder, inside the conversion's


def folder_name(digest: str) -> str:
    """Returns the folder name for a plan with this digest."""
    return f"{naming.CONVERTING}{digest[:16]}"


@contextlib.contextmanager
def opened(data_dir: LocalPath, digest: str) -> Iterator[LocalPath]:
    """Yields the folder of a plan in `data_dir`: a new one, or one with shards of an earlier run.

    If the block fails or is stopped, finished shards are kept, and a line on stderr says so.

    Raises:
      DataError: the folder cannot be made.
    """
    folder = data_dir / folder_name(digest)
    folder.make_folder()
    try:
        yield folder
    except BaseException as error:
        with contextlib.suppress(DataError):  # the next conversion removes what cannot be removed now
            if folder.exists():  # otherwise it was published
                for part in _folders(folder):
                    drafts.remove_temporaries(part)
                if not say_kept(folder, error):
                    _remove(folder)
        if isinstance(error, DataError) and error.path:  # users do not know the inner folder
            raise error.changed(path=error.path.replace(str(folder), str(data_dir))) from error
        raise


def remove_leftovers(data_dir: LocalPath, digest: str | None) -> None:
    """Removes files left by killed conversions, except finished shards of the plan with this digest.

    Raises:
      DataError: the folder cannot be listed, or a file cannot be removed.
    """
    drafts.remove_temporaries(data_dir)
    if (data_dir / naming.VERSIONS).is_dir():
        drafts.remove_temporaries(data_dir / naming.VERSIONS)
    remove_replaced(data_dir, _inner_folders(data_dir))
    for folder in _inner_folders(data_dir):
        if digest and folder.name == folder_name(digest):
            drafts.remove_temporaries(folder)
        else:
            _remove(folder)


def undo_interrupted_publish(data_dir: LocalPath) -> None:
    """Moves shards back to their receipts if a command was killed before it published its manifest.

    Rerunning the same command then resumes with them; the sidecars are made again.

    Raises:
      DataError: the folder cannot be listed, or a file cannot be moved or removed.
    """
    names = data_dir.names()
    pending = any(drafts.is_temporary(name) and name.startswith(f".{naming.MANIFEST}.") for name in names)
    if not pending or naming.MANIFEST in names:
        return
    for folder in _inner_folders(data_dir):
        files = receipts.files_of_shards(folder)
        if files:
            (folder / naming.SIDECARS).make_folder()
        for file in files:
            if (data_dir / file).exists() and not (folder / file).exists():
                (data_dir / file).move_to(folder / file)
    _remove_columns(data_dir / naming.COLUMNS)
    for name in drafts.BESIDE_SHARDS:
        if name != naming.REJECTS:
            (data_dir / name).remove()


def keep_replaced(folder: StoragePath, replaced: Manifest) -> None:
    """Records, in a conversion's folder, the files of the data set that it is about to replace: its newest version's.

    The manifest is removed before its shards: a command killed in between leaves files that no manifest lists, which
    the next command finds by this list.

    Raises:
      DataError: it cannot be written.
    """
    drafts.publish(folder / naming.REPLACED, replaced.to_bytes())


def remove_replaced(data_dir: StoragePath, folders: Iterable[StoragePath]) -> None:
    """Removes files left of data sets that killed commands were replacing.

    Args:
      data_dir: folder of the data set. Files that its manifest lists are kept.
      folders: folders of conversions in it.

    Raises:
      DataError: a list or the manifest cannot be read, or a file cannot be removed.
    """
    listed = [folder / naming.REPLACED for folder in folders if naming.REPLACED in folder.names()]
    if not listed:
        return
    if naming.MANIFEST in data_dir.names():
        kept = present.files_listed(manifest.load(data_dir), data_dir)
    else:
        kept = {naming.REJECTS}  # may be from a run that failed later
    for path in listed:
        for name in present.files_of(manifest.parse(path.read_text(encoding="utf-8"), str(path))) - kept:
            (data_dir / name).remove()
        path.remove()


def check_names_free(data_dir: LocalPath, names: Iterable[str], replaced: Manifest | None) -> None:
    """Checks that files can be moved to `names`; shards and links there are replaced.

    Raises:
      DataError: a folder has one of the names; or, if no data set is replaced, another program's file has the name of a
        file that a conversion writes next to its shards.
    """
    for name in names:
        path = data_dir / name
        if path.is_dir() and not path.is_symlink():
            raise DataError(f"cannot be written: {os.strerror(errno.EISDIR)}", path=path, advice="remove it")
    for place in (data_dir / naming.SIDECARS, data_dir / naming.COLUMNS):
        if place.exists() and not place.is_dir():
            raise DataError(
                "cannot be written to: it is not a folder", path=place, advice="remove it or choose another --data_dir"
            )
    for name in drafts.BESIDE_SHARDS:
        if not replaced and name != naming.REJECTS and os.path.lexists(data_dir / name):
            raise DataError(
                "was not written by a conversion", path=data_dir / name, advice="remove it or choose another --data_dir"
            )


def publish(folder: LocalPath, data_dir: LocalPath, replaced: Manifest | None) -> None:
    """Moves a complete data set from `folder` up into `data_dir`, in place of `replaced`.

    The old manifest is removed first and the new one moved last, so that a manifest is never next to another data set's
    shards. Then old files that the new manifest does not list are removed. Only names are written, so a full disk
    cannot interrupt the move.

    Raises:
      DataError: the data set in `folder` is incomplete, or a file cannot be moved or removed.
    """
    made = manifest.load(folder)
    written = set(folder.names())
    listed = [name for shard in made.shards for name in shard.files]
    listed += present.columns_of(made)
    names = [*listed, *(name for name in drafts.BESIDE_SHARDS if name in written)]
    check_names_free(data_dir, names, replaced or made)
    with _signals_held():
        if replaced:
            keep_replaced(folder, replaced)
        _swap(folder, data_dir, [name for name in names if name != naming.MANIFEST])
        for name in {naming.REJECTS, *present.files_of(replaced)} - set(names):  # rejects may be from a failed run
            (data_dir / name).remove()
        for name in (naming.SIDECARS, naming.COLUMNS):
            with contextlib.suppress(OSError):  # it holds the new sidecars, or other files
                (data_dir / name).rmdir()
        _remove(folder)


def publish_version(folder: StoragePath, data_dir: StoragePath, parent: Manifest) -> None:
    """Moves the files of an append or an edit from `folder` up into `data_dir`, as the version after `parent`.

    The new shards come first, under names that no manifest lists; then the parent's manifest is kept under its own name
    and `manifest.json` is replaced in one step. So there is a complete version at any moment. Everything that needs
    space is written before anything is moved, so a full disk changes nothing.

    Raises:
      DataError: the files in `folder` are incomplete, or one cannot be moved or written.
      RerunError: another command has made a version after `parent`; only possible in a store, as it has no lock.
    """
    made = manifest.load(folder)
    there = {shard.file for shard in parent.shards}
    own = [name for shard in made.shards if shard.file not in there for name in shard.files]
    own += sorted({*present.columns_of(made)} - {*present.columns_of(parent)})
    with _signals_held(), contextlib.ExitStack() as written:
        _check_newest(data_dir, parent)
        for each in sorted({name.rpartition("/")[0] for name in own} - {""} | {naming.VERSIONS}):
            (data_dir / each).make_folder()
        kept = written.enter_context(_drafts_of_version(data_dir, parent, made))
        for name in own:
            (folder / name).move_to(data_dir / name)
        for draft in kept:
            draft.publish()
        page = data_dir / naming.CARD
        if page.exists():  # the new one is written at the end
            page.move_to(data_dir / naming.version_name(parent.version, parent.digest, "html"))
        for name in {naming.REJECTS, naming.CROISSANT} & {*folder.names()}:
            (folder / name).move_to(data_dir / name)
        for each in (naming.SIDECARS, naming.COLUMNS, naming.VERSIONS):
            if (data_dir / each).exists():
                (data_dir / each).sync()
        data_dir.sync()  # persist the names of all shards before the manifest's
        _check_newest(data_dir, parent)
        (folder / naming.MANIFEST).move_to(data_dir / naming.MANIFEST)
        data_dir.sync()
        finish_version(data_dir)
        _remove(folder)


def _check_newest(data_dir: StoragePath, parent: Manifest) -> None:
    if data_dir.is_remote and manifest.load(data_dir).digest != parent.digest:
        raise RerunError("another command has changed it meanwhile; run this one again", path=data_dir)


def finish_version(data_dir: StoragePath) -> None:
    """Removes the files that must not stay next to the newest version if it follows another.

    These are TFDS's files, which describe a data set without appended shards, and versions with deleted records, along
    with the files that only these versions have; a `Gone` of each version stays. The newest version tells which they
    are, so the next command completes the work of one that was killed here. A version's manifest, which lists its
    files, is removed last.

    Raises:
      DataError: a manifest cannot be read, or a file cannot be written or removed.
    """
    newest = manifest.load(data_dir)
    if newest.parent:
        for name in naming.TFDS_FILES:
            (data_dir / name).remove()
    if newest.edit is None or not newest.edit.removed:
        return
    older = list(versions.older_in(data_dir))
    gone = [made for made in older if newest.has_deleted(made)]
    kept = {name for made in (newest, *older) if made not in gone for name in _own_files(made)}
    removed = newest.edit.removed
    _remove_for_good(data_dir, {name for shard in removed for name in (shard, *naming.sidecar_names(shard))})
    for made in gone:
        what = naming.version_name(made.version, made.digest, "deleted")
        left = Gone(made.digest, made.version, made.parent, versions.Made.now(newest.digest).time)
        drafts.publish(data_dir / what, (json.dumps(dataclasses.asdict(left), sort_keys=True) + "\n").encode())
        _remove_for_good(data_dir, _own_files(made) - kept)
        for ending in ("html", "json"):
            (data_dir / naming.version_name(made.version, made.digest, ending)).remove()
        (data_dir / naming.VERSIONS).sync()


def _remove_for_good(data_dir: StoragePath, names: set[str]) -> None:
    for name in sorted(names):
        (data_dir / name).remove()
    for place in (data_dir, data_dir / naming.SIDECARS, data_dir / naming.COLUMNS):
        if place.exists():
            place.sync()


def _own_files(made: Manifest) -> set[str]:
    return present.files_of(made) - {*drafts.BESIDE_SHARDS}


@contextlib.contextmanager
def _drafts_of_version(data_dir: StoragePath, parent: Manifest, made: Manifest) -> Iterator[list[drafts.Draft]]:
    """Yields drafts of `parent`'s manifest under its own name, and of the log with an entry for the new version."""
    log = data_dir / naming.LOG
    before = log.read_bytes() if log.exists() else b""
    files = {
        # As it is: an earlier release may have written it.
        data_dir / naming.version_name(parent.version, parent.digest): (data_dir / naming.MANIFEST).read_bytes(),
        log: before + versions.Made.now(made.digest).line(),
    }
    found: list[drafts.Draft] = []
    try:
        for path, content in files.items():
            found.append(drafts.Draft(path, [content]))
        yield found
    finally:
        for draft in found:
            draft.discard()  # does nothing if it has been published
        with contextlib.suppress(OSError):  # it is not empty
            if isinstance(data_dir, LocalPath):
                os.rmdir(data_dir / naming.VERSIONS)


def undo_interrupted_append(data_dir: StoragePath, digest: str | None) -> None:
    """Takes back shards of an append or an edit that was killed before it published its manifest.

    Args:
      data_dir: folder of the data set.
      digest: digest of the plan whose shards are moved back to their receipts; other shards that no manifest lists are
        removed, and so are columns.

    Raises:
      DataError: a manifest cannot be read, or a file cannot be moved or removed.
    """
    if naming.MANIFEST not in data_dir.names():
        return
    newest = manifest.load(data_dir)
    listed = present.files_listed(newest, data_dir)
    inner = data_dir / folder_name(digest) if digest else None
    for file in data_dir.files():
        if naming.version_of_shard(file) == 1 or file in listed:
            continue
        for name in (file, *naming.sidecar_names(file)):
            if not (data_dir / name).exists():
                continue
            if inner and (inner / receipts.name_of(file)).exists() and not (inner / name).exists():
                (inner / naming.SIDECARS).make_folder()
                (data_dir / name).move_to(inner / name)
            else:
                (data_dir / name).remove()
    if newest.version > 1 or manifest.version_names(data_dir):
        for name in _names_in(data_dir / naming.COLUMNS):
            if naming.is_column_name(name) and f"{naming.COLUMNS}/{name}" not in listed:
                (data_dir / naming.COLUMNS / name).remove()


def _names_in(folder: StoragePath) -> list[str]:
    is_link = isinstance(folder, LocalPath) and folder.is_symlink()
    return folder.names() if folder.is_dir() and not is_link else []


def remove_versions(data_dir: StoragePath) -> None:
    """Removes the manifests, cards, columns and replaced shards of versions before the newest, and their log.

    Raises:
      DataError: a manifest cannot be read, or a file cannot be removed.
    """
    place = data_dir / naming.VERSIONS
    older = list(versions.older_in(data_dir))
    kept = _own_files(manifest.load(data_dir)) if older and naming.MANIFEST in data_dir.names() else set()
    for name in {name for made in older for name in _own_files(made)} - kept:
        (data_dir / name).remove()
    for name in place.files() if place.is_dir() else ():
        if naming.parse_version_name(name) or f"{naming.VERSIONS}/{name}" == naming.LOG:
            (place / name).remove()
    if not data_dir.is_remote:
        with contextlib.suppress(OSError):  # it holds other files, or is missing
            os.rmdir(str(place))


def move_rejects(folder: StoragePath, data_dir: StoragePath) -> None:
    """Moves the list of invalid rows, if there is one, to `data_dir`: it may say why a conversion failed.

    Raises:
      DataError: it cannot be moved.
    """
    path, new = folder / naming.REJECTS, data_dir / naming.REJECTS
    if path.exists():
        path.move_to(new)


def say_kept(folder: StoragePath, error: BaseException) -> int:
    """Prints the number of finished shards kept in a folder, if any, and returns it.

    The line advises a rerun if the conversion was stopped or failed for a reason that may go away; with invalid data,
    the same command would fail again.
    """
    if count := len(receipts.paths_in(folder)):
        can_resume = isinstance(error, TransientError) or not isinstance(error, Exception)
        advice = ": rerun the same command to resume" if can_resume else ""
        print(f"kept {count_of(count, 'finished shard')} in {folder}{advice}", file=sys.stderr, flush=True)
    return count


def _swap(folder: LocalPath, data_dir: LocalPath, names: list[str]) -> None:
    pending = data_dir / temporary_name(naming.MANIFEST)
    (folder / naming.MANIFEST).move_to(pending)  # from here on the inner folder holds no data set either
    remove_versions(data_dir)  # before the newest manifest, which tells the files that only they have
    (data_dir / naming.MANIFEST).remove()
    inside = (naming.SIDECARS, naming.COLUMNS)
    folders = [data_dir / each for each in inside if any(name.startswith(f"{each}/") for name in names)]
    for each in folders:
        each.make_folder()
    data_dir.sync()  # persist the removal of the old manifest before replacing its first shard
    for name in names:
        (folder / name).move_to(data_dir / name)
    for each in folders:
        each.sync()
    data_dir.sync()  # persist the names of all shards before the manifest's
    pending.move_to(data_dir / naming.MANIFEST)
    data_dir.sync()


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Delays Ctrl-C and SIGTERM until the block ends: finishing a swap is faster than repairing an interrupted one."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread handles signals
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


def _inner_folders(data_dir: LocalPath) -> list[LocalPath]:
    found = [data_dir / name for name in data_dir.names() if FOLDER.fullmatch(name)]
    return [folder for folder in found if folder.is_dir() and not folder.is_symlink()]


def _folders(folder: LocalPath) -> list[LocalPath]:
    """Returns the folders with shards and sidecars in a plan's folder and in its first pass's."""
    passes = (folder, folder / FIRST_PASS)
    inside = (naming.SIDECARS, naming.COLUMNS)
    return [part for each in passes for part in (each, *(each / name for name in inside)) if part.is_dir()]


def _remove_columns(folder: LocalPath) -> None:
    """Removes the columns of a data set without a manifest; they are made again."""
    for name in _names_in(folder):
        if naming.is_column_name(name) or drafts.is_temporary(name):
            (folder / name).remove()


def _remove(folder: StoragePath) -> None:
    if isinstance(folder, RemotePath):
        folder.remove_folder()
        return
    for part in reversed(_folders(folder)):
        for name in part.names():
            if drafts.is_ours(name) or drafts.is_temporary(name):
                (part / name).remove()
        with contextlib.suppress(OSError):  # it holds a file that no conversion wrote
            part.rmdir()
