"""The folder that a conversion writes to: what is there already, and what of it may be removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import shutil
from collections.abc import Iterator

from beam_jobs import write
from beam_jobs.plan import Plan
from pipeline import manifest, naming
from pipeline.errors import DataError, UsageError
from pipeline.manifest import Manifest


def check_folder(data_dir: pathlib.Path) -> None:
    """Checks that `data_dir` is a folder or can become one, without making it.

    Raises:
      UsageError: it, or what should be its parent, is a file, or cannot be written to.
    """
    existing = data_dir
    while not existing.exists() and existing != existing.parent:
        if existing.is_symlink():
            raise UsageError(f"--data_dir={data_dir}: {existing} is a link to something that is not there")
        existing = existing.parent
    if not existing.is_dir():
        raise UsageError(f"--data_dir={data_dir}: {existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"--data_dir={data_dir}: no permission to write in {existing}")


def existing_manifest(data_dir: pathlib.Path) -> Manifest | None:
    """Returns the manifest of the data set in a folder, or None where there is none.

    Raises:
      DataError: there is one that cannot be read.
    """
    path = data_dir / naming.MANIFEST
    if not os.path.lexists(path):
        return None
    try:
        return manifest.load(data_dir)
    except DataError as error:
        raise DataError(
            f"{error}; as it does not say which files are its own, nothing was removed: "
            f"remove {data_dir} yourself or choose another --data_dir"
        ) from None


def check_same(plan: Plan, present: Manifest) -> None:
    """Checks that the data set which is there is what `plan` would write.

    Raises:
      UsageError: it was made with other options or of another source; the message has both values of each.
      DataError: a shard is missing or of another size.
    """
    differences = [f"{name} is {there} there and {here} here" for name, there, here in _differences(plan, present)]
    if differences:
        raise UsageError(
            f"{plan.data_dir}: holds another data set: {'; '.join(differences)}; "
            "choose another --data_dir, or --overwrite to replace it"
        )
    for split in present.splits.values():
        for shard in split.shards:
            path = pathlib.Path(plan.data_dir) / shard.file
            size = path.stat().st_size if path.is_file() else None
            if size != shard.num_bytes:
                found = "is missing" if size is None else f"has {size} bytes, not {shard.num_bytes}"
                raise DataError(f"{path}: {found}, as the manifest says; --overwrite converts it again")


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
    return ",".join(f"{k}:{v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def _digest(value: str | None) -> str:
    return f"{value[:12]}..." if value else "none"


def check_space(plan: Plan, replaced: Manifest | None) -> None:
    """Checks that the shards fit on the disk, counting the data set that they replace as free.

    Raises:
      DataError: they do not; nothing was written or removed yet.
    """
    folder = pathlib.Path(plan.data_dir)
    while not folder.exists():
        folder = folder.parent
    freed = sum(split.num_bytes for split in replaced.splits.values()) if replaced else 0
    free = shutil.disk_usage(folder).free + freed
    if plan.num_bytes > free:
        raise DataError(
            f"{plan.data_dir}: the data set takes {plan.num_bytes} bytes, its disk has {free} free; make room"
        )


def stray_shards(data_dir: pathlib.Path, present: Manifest) -> list[str]:
    """Returns the names in a folder that are shards of ours by their form, but that its manifest does not list."""
    listed = {shard.file for split in present.splits.values() for shard in split.shards}
    return sorted(name for name in os.listdir(data_dir) if naming.parse_shard_name(name) and name not in listed)


@contextlib.contextmanager
def prepared(plan: Plan, replaced: Manifest | None) -> Iterator[None]:
    """Makes the folder, removes what `replaced` lists and old temporary files, and keeps other conversions out.

    Raises:
      UsageError: another conversion is writing to the folder.
      DataError: the folder cannot be made, or a file cannot be removed.
    """
    folder = pathlib.Path(plan.data_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot be made: {error.strerror or error}") from None
    with _locked(folder):
        if replaced:
            _remove(folder, replaced)
        write.remove_temporaries(folder)
        try:
            yield
        finally:
            write.remove_temporaries(folder)


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(f"--data_dir={folder}: another conversion is writing there; wait for its end") from None
    except OSError:
        pass  # some network file systems lock no folders; the temporary names keep files whole there too
    try:
        yield
    finally:
        os.close(descriptor)


def _remove(folder: pathlib.Path, present: Manifest) -> None:
    # The manifest goes first and for good: what a kill leaves from here on is no data set.
    write.remove(folder / naming.MANIFEST)
    write.sync_folder(folder)
    for split in present.splits.values():
        for shard in split.shards:
            if naming.parse_shard_name(shard.file):
                write.remove(folder / shard.file)
