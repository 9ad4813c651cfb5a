"""The versions of a data set: one folder, where each append and edit adds shards and a manifest, and keeps the rest.

A version is a manifest. The newest is `manifest.json`; older ones are in `versions/`, as `<number>-<digest>.json`, each
with its card. A manifest names its parent by digest. A version's shards are its parent's, in the same order, followed
by its own, which have its number in their names; an edit's shards take the places of the shards that it rewrites.
`rejects.jsonl` grows, too: a version's invalid rows are its first lines, as many as its manifest counts. The author and
time of each version are in `versions/log.jsonl`; they are not part of the data, so no digest covers them.

Only a deletion removes something: versions that had a deleted record lose their files, and a `Gone` stays for each.
"""

from __future__ import annotations

import dataclasses
import datetime
import getpass
import json
import socket
from collections.abc import Iterator

from pipeline.files.paths import PathLike, StoragePath, folder
from pipeline.files.remote import RemotePath
from pipeline.manifest import loading, naming
from pipeline.manifest.manifest import Manifest


@dataclasses.dataclass(frozen=True)
class Made:
    """An entry of the log.

    Attributes:
      digest: digest of the version.
      time: time at which it was made, ISO 8601 with time zone.
      user, host: user and machine that made it.
    """

    digest: str
    time: str
    user: str
    host: str

    @classmethod
    def now(cls, digest: str) -> Made:
        """Returns the log entry for a version that this process makes."""
        try:
            user = getpass.getuser()
        except (OSError, KeyError):  # a container may run under a user id without a name
            user = ""
        time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return cls(digest, time, user, socket.gethostname())

    def line(self) -> bytes:
        """Returns the entry as a line of the log."""
        return (json.dumps(dataclasses.asdict(self), sort_keys=True) + "\n").encode()


def all_of(data_dir: PathLike | RemotePath) -> list[Manifest]:
    """Returns the manifests of all versions, the oldest first.

    Raises:
      DataError: there is no data set, or a manifest cannot be read.
    """
    place = folder(data_dir)
    found = {made.digest: made for made in (*older_in(place), loading.load(place))}
    return sorted(found.values(), key=lambda made: made.version)


def older_in(place: StoragePath) -> Iterator[Manifest]:
    """Yields the manifests in a folder's `versions/`, in no particular order.

    Raises:
      DataError: a manifest cannot be read.
    """
    for name in loading.version_names(place):
        yield loading.load_file(place, place / naming.VERSIONS / name)


def is_newest(place: StoragePath, made: Manifest) -> bool:
    """Returns whether a manifest is the newest of its folder.

    Raises:
      DataError: the newest cannot be read.
    """
    return not loading.version_names(place) or loading.load(place).digest == made.digest


def descends(place: StoragePath, made: Manifest, ancestor: str) -> bool:
    """Returns whether a version follows the one with the digest `ancestor`, over any number of versions."""
    parents = {one.digest: one.parent for one in all_of(place)}
    parents |= {one.digest: one.parent for one in loading.gone_in(place)}
    at = made.parent
    while at and at != ancestor:
        at = parents.get(at, "")
    return bool(at)


def log_of(place: StoragePath) -> dict[str, Made]:
    """Returns {digest: entry of the log}, without versions whose entry is lost or that are older than the log."""
    try:
        lines = (place / naming.LOG).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    found = {}
    for line in lines:
        try:
            entry = Made(**json.loads(line))
        except (ValueError, TypeError):  # a line that was cut by a full disk
            continue
        found[entry.digest] = entry
    return found
