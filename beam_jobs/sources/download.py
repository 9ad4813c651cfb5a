"""The official files of a data set, downloaded once where no --source is given.

They come by the download manager of TensorFlow Datasets, which checks them against the SHA-256 checksums that it has
registered, and stay in `$XDG_CACHE_HOME/stepfeed/downloads/<data set>` (by default under `~/.cache`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import pathlib
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence

from beam_jobs.sources import content, fetch
from beam_jobs.sources.fetch import Remote
from pipeline.errors import DataError

_PACKAGE = "tensorflow_datasets"
_PARTIAL = ".partial-"  # folders of downloads that have not ended
_ABANDONED_SECONDS = 24 * 3600.0  # after which such a folder is one of a process that was killed
_LINE = re.compile(r"(?P<url>\S+)\t(?P<num_bytes>\d+)\t(?P<sha256>[0-9a-f]{64})\t(?P<name>[\w.-]+)")


def files(dataset: str) -> list[pathlib.Path]:
    """Returns the official files of a data set, from the cache or downloaded into it; they lie in one folder.

    Raises:
      DataError: they cannot be downloaded, are not what is registered, or the cache cannot hold them.
    """
    return cached(dataset, registered(dataset), cache_folder() / dataset)


def cache_folder() -> pathlib.Path:
    """Returns where downloads are kept."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = pathlib.Path(home) if os.path.isabs(home) else pathlib.Path(os.path.expanduser("~")) / ".cache"
    return base / "stepfeed" / "downloads"


def registered(dataset: str) -> list[Remote]:
    """Returns what TensorFlow Datasets has registered for a data set: addresses, sizes, checksums.

    They are read from the table that it is installed with, without importing it.

    Raises:
      DataError: the package is not installed, or has no such table.
    """
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise _failed(dataset, f"the download needs {_PACKAGE}: pip install 'stepfeed[convert]'")
    table = pathlib.Path(found.submodule_search_locations[0]) / "url_checksums" / f"{dataset}.txt"
    try:
        lines = table.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    matches = [_LINE.fullmatch(line.strip()) for line in lines if line.strip()]
    if not matches or not all(matches):
        raise _failed(dataset, f"the {_PACKAGE} that is installed has no checksums for it")
    return [Remote(m["url"], m["name"], int(m["num_bytes"]), m["sha256"]) for m in matches if m]


def cached(
    dataset: str, remotes: Sequence[Remote], folder: pathlib.Path, patience: float = fetch.PATIENCE
) -> list[pathlib.Path]:
    """Returns `folder/<name>` of each of `remotes`, after downloading those that are not there whole.

    A file comes there by a rename, when all of it has arrived and its checksum is right.

    Args:
      dataset: for errors.
      remotes: the files.
      folder: made if missing.
      patience: seconds without a byte after which a download has failed.

    Raises:
      DataError: as `files`.
    """
    missing = [remote for remote in remotes if not _is_whole(folder / remote.name, remote)]
    if missing:
        with _partial_folder(folder) as partial:
            try:
                fetched = fetch.fetch(dataset, missing, partial, patience)
            except fetch.FetchError as error:
                raise _failed(dataset, str(error)) from None
            for remote in missing:
                os.replace(fetched[remote.url], folder / remote.name)
    return [folder / remote.name for remote in remotes]


def _failed(dataset: str, reason: str) -> DataError:
    return DataError(
        f"{dataset}: cannot be downloaded: {reason}; give its files with --source=PATH, or try --dataset=digits, which "
        "needs no download"
    )


def _is_whole(path: pathlib.Path, remote: Remote) -> bool:
    if not path.is_file() or path.stat().st_size != remote.num_bytes:
        return False
    with content.open_plain(path) as handle:
        return dataclasses.astuple(content.describe(remote.name, handle))[1:] == (remote.num_bytes, remote.sha256)


@contextlib.contextmanager
def _partial_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields an empty folder in `folder` that no other download uses, and removes it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"{_PARTIAL}*"):
            if time.time() - old.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(old, ignore_errors=True)
        partial = pathlib.Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=folder))
    except OSError as error:
        raise DataError(
            f"{folder}: cannot hold the download: {error.strerror or error}; set XDG_CACHE_HOME to a folder that can, "
            "or give --source"
        ) from None
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
