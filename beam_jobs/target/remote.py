"""A conversion into an object store or HDFS: shards go to their places at once, and the manifest, the last, counts.

There is no rename to lean on. An old manifest goes before the first shard is written over; receipts lie in a folder of
their own, so the same command goes on where a killed one ended. Instead of a lock there is a lease: an object that the
conversion writes again every 20 s, and that is nobody's after a minute.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator

from beam_jobs.plan import Plan
from beam_jobs.shards import receipts
from beam_jobs.storage import write
from beam_jobs.storage.paths import RemotePath
from beam_jobs.target import staging
from pipeline import manifest
from pipeline.errors import DataError, UsageError
from pipeline.manifest import Manifest, naming

_LEASE = ".converting.lease"
_RENEW_SECONDS = 20.0
_LEASE_SECONDS = 60.0
_SETTLE_SECONDS = 1.0  # more than a store takes from a look at the lease to its writing


def check_folder(data_dir: RemotePath) -> None:
    """Checks that the store can be reached.

    Raises:
      DataError: it cannot.
    """
    data_dir.files()


@contextlib.contextmanager
def locked(data_dir: RemotePath) -> Iterator[None]:
    """Keeps other conversions out, as long as this process lives.

    Raises:
      UsageError: another conversion is writing there.
      DataError: the lease cannot be written.
    """
    lease, mine = data_dir / _LEASE, secrets.token_hex(8).encode()
    _take(lease, mine, data_dir)
    ended = threading.Event()
    thread = threading.Thread(target=_renew, args=(lease, mine, ended), daemon=True, name="lease")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(OSError):
            if lease.read_bytes() == mine:
                lease.unlink(missing_ok=True)


@contextlib.contextmanager
def opened(data_dir: RemotePath, plan: Plan, present: Manifest | None) -> Iterator[Plan]:
    """Takes the old manifest away and yields the plan; see `places.local.opened`."""
    if present:
        write.remove(data_dir / naming.MANIFEST)
    try:
        yield plan
    finally:
        folder = RemotePath(plan.receipts_dir)
        count = sum(receipts.is_receipt(name.rpartition("/")[2]) for name in folder.files(recursive=True))
        if count:
            staging.say_kept(count, folder)


def publish(plan: Plan, data_dir: RemotePath, present: Manifest | None) -> Manifest:
    """Removes what the data set that `plan` wrote does not need: receipts and the old one's files.

    Raises:
      DataError: the manifest is not there, or a file cannot be removed.
    """
    made = manifest.load(data_dir)
    for name in staging.files_of(present) - staging.files_of(made):
        write.remove(data_dir / name)
    tidy(data_dir)
    return made


def tidy(data_dir: RemotePath) -> None:
    """Removes the receipts of conversions, this one's and others'.

    Raises:
      DataError: one cannot be removed.
    """
    for name in data_dir.files(recursive=True):
        if staging.FOLDER.fullmatch(name.partition("/")[0]):
            write.remove(data_dir / name)


def _take(lease: RemotePath, mine: bytes, data_dir: RemotePath) -> None:
    clock = data_dir / f"{_LEASE}-{mine.decode()}"
    write.publish(clock, mine)  # the store's own clock, to compare with
    now = clock.size_and_time()[1]
    write.remove(clock)
    before = _written(lease)
    if before is not None and now - before < _LEASE_SECONDS * 1e9:
        raise UsageError(
            f"--data_dir={data_dir}: another conversion is writing there, or was killed less than "
            f"{_LEASE_SECONDS:.0f} s ago; wait"
        )
    write.publish(lease, mine)
    time.sleep(_SETTLE_SECONDS)  # of two that found none, the one whose lease is there then goes on
    if _written(lease) is None or lease.read_bytes() != mine:
        raise UsageError(f"--data_dir={data_dir}: another conversion began there at the same time; wait for its end")


def _written(lease: RemotePath) -> int | None:
    try:
        return lease.size_and_time()[1]
    except FileNotFoundError:
        return None


def _renew(lease: RemotePath, mine: bytes, ended: threading.Event) -> None:
    while not ended.wait(_RENEW_SECONDS):
        try:
            if lease.read_bytes() != mine:
                break
            lease.write_bytes(mine)
        except FileNotFoundError:
            break
        except DataError:  # the store may be back next time
            continue
    if not ended.is_set():  # this machine slept, or the store was away, and somebody else has begun
        print(f"{lease.parent}: another conversion has taken over; this one stops", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
