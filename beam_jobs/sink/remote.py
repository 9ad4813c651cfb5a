"""Conversion into an object store or HDFS: shards are written in place, and the manifest comes last.

There is no rename to rely on: an old manifest is removed before the first shard is overwritten, and receipts, from
which a rerun resumes, are in a separate folder. An append or an edit overwrites nothing until it puts its manifest over
the old one. In place of a lock there is a lease, an object that its holder rewrites every 20 s and that expires after a
minute.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from beam_jobs import drafts
from beam_jobs.plan import Plan
from beam_jobs.shards import receipts
from beam_jobs.sink import staging
from beam_jobs.sink.present import files_listed
from pipeline import manifest
from pipeline.errors import DataError, RerunError, UsageError
from pipeline.files.remote import RemotePath, is_url
from pipeline.manifest import Manifest, naming

_LEASE = ".converting.lease"
_RENEW_SECONDS = 20.0
_LEASE_SECONDS = 60.0
_SETTLE_SECONDS = 1.0  # longer than it takes to read the lease and write it


@contextlib.contextmanager
def leased(
    data_dir: RemotePath, renew_seconds: float = _RENEW_SECONDS, lease_seconds: float = _LEASE_SECONDS
) -> Iterator[None]:
    """Holds the lease of a folder until the block ends or this process dies.

    Args:
      data_dir: folder to lease.
      renew_seconds: seconds between rewrites of the lease.
      lease_seconds: age in seconds at which another holder's lease has expired.

    Raises:
      RerunError: another conversion holds the lease, or was killed while holding it.
      DataError: the lease cannot be written.
    """
    lease, mine = data_dir / _LEASE, secrets.token_hex(8).encode()
    _take(lease, mine, lease_seconds)
    ended = threading.Event()
    thread = threading.Thread(target=_renew, args=(lease, mine, ended, renew_seconds), daemon=True, name="lease")
    thread.start()
    try:
        _remove_clocks(data_dir, lease_seconds)
        yield
    finally:
        ended.set()
        thread.join()
        _release(lease, mine)


def _take(lease: RemotePath, mine: bytes, lease_seconds: float) -> None:
    data_dir = lease.parent
    clock = data_dir / f"{_LEASE}-{mine.decode()}"
    drafts.publish(clock, mine)  # times are compared by the store's clock
    now = clock.size_and_time()[1]
    clock.remove()
    before = _written(lease)
    if before is not None and now - before < lease_seconds * 1e9:
        left = lease_seconds - (now - before) / 1e9
        raise RerunError(
            f"{data_dir}: another conversion is writing there, or was killed less than "
            f"{lease_seconds:.0f} s ago; rerun the same command in {left:.0f} s"
        )
    try:
        drafts.publish(lease, mine)
        time.sleep(_SETTLE_SECONDS)  # if two found no lease, the one whose lease survives continues
    except KeyboardInterrupt:
        _release(lease, mine)
        raise
    if _written(lease) is None or lease.read_bytes() != mine:
        raise RerunError(
            f"{data_dir}: another conversion began there at the same time; rerun this one after it has ended"
        )


def _release(lease: RemotePath, mine: bytes) -> None:
    with contextlib.suppress(OSError):
        if lease.read_bytes() == mine:
            lease.remove()


def _remove_clocks(data_dir: RemotePath, lease_seconds: float) -> None:
    """Removes objects of conversions that were killed while reading the store's clock."""
    now = _written(data_dir / _LEASE)
    for clock in (data_dir / name for name in data_dir.files() if name.startswith(f"{_LEASE}-")):
        written = _written(clock)
        if now is not None and written is not None and now - written >= lease_seconds * 1e9:
            clock.remove()


def _written(lease: RemotePath) -> int | None:
    try:
        return lease.size_and_time()[1]
    except FileNotFoundError:
        return None


def _renew(lease: RemotePath, mine: bytes, ended: threading.Event, renew_seconds: float) -> None:
    while not ended.wait(renew_seconds):
        try:
            if lease.read_bytes() != mine:
                break
            lease.write_bytes(mine)
        except FileNotFoundError:
            break
        except DataError:  # the store may be back by the next attempt
            continue
    if not ended.is_set():  # while this machine slept or the store was away, another conversion began
        print(f"{lease.parent}: another conversion has taken over; this one stops", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def _telling_what_is_kept(folder: RemotePath) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(DataError):  # the store may be unreachable
            staging.say_kept(folder, error)
        raise


class RemoteSink:
    """A folder in an object store or HDFS; has the methods of `LocalSink`.

    Attributes:
      data_dir: folder that will hold the data set.
      shown: URL of the folder without the user and the store's options, which may hold a secret.
    """

    def __init__(self, data_dir: RemotePath) -> None:
        self.data_dir = data_dir
        self.shown = str(data_dir)

    def check(self, dataset: str, source: str) -> None:
        """Checks that the store is reachable and that no shard would overwrite a source file."""
        self.data_dir.files()
        if not is_url(source):
            return
        place, path = f"{self.data_dir}/", RemotePath(source)
        if str(self.data_dir) in (str(path), str(path.parent)):
            problem = "holds --source, whose files could be overwritten"
        elif f"{path}/".startswith(place):
            problem = "contains --source, which is not part of the data set"
        elif dataset == "parquet" and place.startswith(f"{path}/"):
            problem = "lies in --source, which is read with all its folders"
        else:
            return
        raise UsageError(f"--data_dir={self.data_dir}: {problem}; choose another")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds a lease until the block ends. First finishes what a killed command was deleting."""
        with leased(self.data_dir):
            if (self.data_dir / naming.VERSIONS).is_dir() and naming.MANIFEST in self.data_dir.names():
                staging.finish_version(self.data_dir)
            yield

    def check_plan(self, plan: Plan, present: Manifest | None) -> None:
        """Does nothing: a store does not fill up, and its folders cannot be in the way of files."""

    @contextlib.contextmanager
    def opened(self, plan: Plan, present: Manifest | None) -> Iterator[Plan]:
        """Yields the plan with its folders. First removes the old manifest, at the end obsolete files and receipts.

        Raises:
          DataError, RerunError: see `edited`, for an append.
        """
        if plan.base and present:
            with self.edited(plan.digest, plan.file_names, plan.num_bytes, present) as inner:
                yield dataclasses.replace(plan, data_dir=inner, receipts_dir=inner, rejects_dir=inner)
            return
        folder = self.data_dir / staging.folder_name(plan.digest)
        if present:
            staging.remove_versions(self.data_dir)  # the data set is a copy
            staging.keep_replaced(folder, present)
            (self.data_dir / naming.MANIFEST).remove()
        with _telling_what_is_kept(folder):
            yield dataclasses.replace(plan, data_dir=self.data_dir, receipts_dir=folder)
            self.tidy()

    @contextlib.contextmanager
    def edited(self, digest: str, names: Sequence[str], num_bytes: int, parent: Manifest) -> Iterator[RemotePath]:
        """Yields the folder to write the next version of a data set to, which follows `parent` when the block ends.

        Its shards are then copied into place, under names that no manifest lists, and its manifest is put over the old
        one, which is a single request. For the arguments see `LocalSink.edited`.

        Raises:
          DataError: a file cannot be read, written or removed.
          RerunError: another command has made a version in the meantime.
        """
        staging.undo_interrupted_append(self.data_dir, digest)
        folder = self.data_dir / staging.folder_name(digest)
        with _telling_what_is_kept(folder):
            yield folder
            staging.publish_version(folder, self.data_dir, parent)
            self.tidy()

    def tidy(self) -> None:
        """Removes the receipts of all conversions, and files left by killed ones or by replaced data sets."""
        folders = [self.data_dir / name for name in self.data_dir.folders() if staging.FOLDER.fullmatch(name)]
        staging.remove_replaced(self.data_dir, folders)
        kept = files_listed(manifest.load(self.data_dir), self.data_dir)
        for folder in folders:
            for name in {*receipts.files_of_shards(folder)} - kept:
                (self.data_dir / name).remove()
            folder.remove_folder()
