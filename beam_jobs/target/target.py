"""The folder that a conversion writes to: may it, is another one at work there, and what is there already."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import pathlib
import shutil
from collections.abc import Iterator

from beam_jobs.plan import Plan
from beam_jobs.shards import receipts
from beam_jobs.storage import paths, write
from beam_jobs.storage.paths import AnyPath, RemotePath
from pipeline import manifest
from pipeline.errors import DataError, UsageError
from pipeline.manifest import Manifest, naming
from pipeline.read import shards as read


def check_folder(data_dir: pathlib.Path) -> None:
    """Checks that `data_dir` is a folder or can become one, without making it.

    Raises:
      UsageError: it, or what should be its parent, is a file, or cannot be seen, listed or written to.
    """
    try:
        _check_folder(data_dir)
    except OSError as error:
        raise UsageError(f"--data_dir={data_dir}: cannot be used: {error.strerror or error}") from None


def _check_folder(data_dir: pathlib.Path) -> None:
    existing = data_dir
    while not existing.exists() and existing != existing.parent:
        if existing.is_symlink():
            raise UsageError(f"--data_dir={data_dir}: {existing} is a link to something that is not there")
        existing = existing.parent
    if not existing.is_dir():
        raise UsageError(f"--data_dir={data_dir}: {existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"--data_dir={data_dir}: no permission to write in {existing}")
    if existing == data_dir and not os.access(existing, os.R_OK):
        raise UsageError(f"--data_dir={data_dir}: no permission to list it")


def existing_manifest(data_dir: AnyPath) -> Manifest | None:
    """Returns the manifest of the data set in a folder, or None where there is none.

    Raises:
      DataError: there is one that cannot be read.
    """
    path = data_dir / naming.MANIFEST
    if not (path.exists() if isinstance(path, RemotePath) else os.path.lexists(path)):
        return None
    try:
        return manifest.load(data_dir)
    except DataError as error:
        raise DataError(
            f"{error}; as it does not say which files are its own, nothing was removed: "
            f"remove {data_dir} yourself or choose another --data_dir"
        ) from None


def check_apart(source: str, data_dir: AnyPath, present: Manifest | None) -> None:
    """Checks that no shard can take the place of a TFRecord file that is read.

    Args:
      source: of TFRecords, as the user gave it.
      data_dir: the folder.
      present: the data set that is there; a local one can replace itself, as it stays until the new one is whole.

    Raises:
      UsageError: the source lies in the folder.
    """
    if isinstance(data_dir, RemotePath):
        place = RemotePath(source)
        is_apart = not paths.is_url(source) or str(data_dir) not in (str(place), str(place.parent))
    else:
        is_apart = bool(present) or paths.is_url(source) or not _lies_in(pathlib.Path(source), data_dir)
    if not is_apart:
        raise UsageError(f"--data_dir={data_dir}: holds --source, whose files could be written over; choose another")


def check_outside(source: str, data_dir: pathlib.Path) -> None:
    """Checks that a folder does not lie in the folder of images that is read, where it would be a class.

    Raises:
      UsageError: it does.
    """
    if source and pathlib.Path(source).resolve() in data_dir.resolve().parents:
        raise UsageError(
            f"--data_dir={data_dir}: lies in --source={source}, and would be a class of it; choose another"
        )


def _lies_in(source: pathlib.Path, folder: pathlib.Path) -> bool:
    if source.is_dir():
        return source.samefile(folder)
    files = [source, *map(pathlib.Path, glob.iglob(str(source), recursive=True))]
    return any(file.exists() and file.parent.samefile(folder) for file in files)


def check_same(plan: Plan, present: Manifest) -> None:
    """Checks that the data set which is there is what `plan` would write.

    Raises:
      UsageError: it was made with other options or of another source; the message has both values of each.
      DataError: a shard is missing or has another size or other bytes.
    """
    differences = [f"{name} is {there} there and {here} here" for name, there, here in _differences(plan, present)]
    if differences:
        raise UsageError(
            f"{paths.path_of(plan.data_dir)}: holds another data set: {'; '.join(differences)}; "
            "choose another --data_dir, or --overwrite to replace it"
        )
    shards = [shard for split in present.splits.values() for shard in split.shards]
    if not paths.is_url(plan.data_dir):
        read.check_present(plan.data_dir, tuple(shards))
    for shard in shards:
        _check_content(plan.data_dir, shard.file, shard.crc32c)
        if shard.offsets_crc32c:
            _check_content(plan.data_dir, naming.offsets_name(shard.file), shard.offsets_crc32c)


def _check_content(data_dir: str, file: str, expected: str) -> None:
    path = paths.path_of(data_dir) / file
    crc = receipts.file_crc32c(path)
    if crc is None:
        raise DataError(f"{path}: cannot be read; --overwrite converts it again")
    if crc != expected:
        raise DataError(f"{path}: its CRC32C is {crc}, but the manifest says {expected}; --overwrite converts it again")


def _differences(plan: Plan, present: Manifest) -> Iterator[tuple[str, object, object]]:
    if present.dataset != plan.source.dataset:
        yield "--dataset", present.dataset, plan.source.dataset
        return
    for name in sorted(plan.options.keys() | present.options.keys()):
        there, here = present.options.get(name), plan.options.get(name)
        if there != here:
            yield f"--{name}", _text(there), _text(here)
    before = {file.file: file.sha256 for file in present.source}
    now = {file.file: file.sha256 for file in plan.source.files}
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            yield f"the SHA-256 of --source's {name}", _digest(before.get(name)), _digest(now.get(name))


def _text(value: object) -> str:
    if value is None:
        return "not given"
    return ",".join(f"{k}:{v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def _digest(value: str | None) -> str:
    return f"{value[:12]}..." if value else "none"


def check_space(plan: Plan, replaced: Manifest | None, finished: int) -> None:
    """Checks that the shards fit on the disk, beside the data set that they replace: it goes when they are there.

    Args:
      plan: what will be written.
      replaced: the data set that is there.
      finished: bytes of shards that an earlier run wrote already.

    Raises:
      DataError: they do not; nothing was written or removed yet.
    """
    free = shutil.disk_usage(plan.data_dir).free
    needed = plan.num_bytes * plan.flags.get("passes", 1) - finished
    if needed > free and not plan.compression:
        beside = ", beside the one that it replaces" if replaced else ""
        raise DataError(
            f"{plan.data_dir}: the data set takes {needed} bytes{beside}, its disk has {free} free; make room"
        )


def stray_shards(data_dir: AnyPath, present: Manifest) -> list[str]:
    """Returns the names in a folder that are shards of ours by their form, but that its manifest does not list."""
    listed = {shard.file for split in present.splits.values() for shard in split.shards}
    return sorted(name for name in write.names_in(data_dir) if naming.parse_shard_name(name) and name not in listed)


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
    """Makes the folder and keeps other conversions out of it; what is in it is to be looked at from here on.

    Raises:
      UsageError: another conversion is writing to the folder, or it cannot be opened.
      DataError: the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot be made: {error.strerror or error}") from None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UsageError(f"--data_dir={folder}: cannot be opened: {error.strerror or error}") from None
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: pathlib.Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"--data_dir={folder}: another conversion is writing there; wait for its end") from None
    except OSError:
        pass  # some network file systems lock no folders; each conversion has its own inner folder there too
