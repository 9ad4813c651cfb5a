"""A lock for object stores: an object that its holder rewrites every 20 s, and that expires after a minute."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator

from beam_jobs.storage import write
from beam_jobs.storage.paths import RemotePath
from pipeline.errors import DataError, RerunError

_LEASE = ".converting.lease"
RENEW_SECONDS = 20.0
LEASE_SECONDS = 60.0
_SETTLE_SECONDS = 1.0  # longer than a store takes between reading the lease and writing it


@contextlib.contextmanager
def held(
    data_dir: RemotePath, renew_seconds: float = RENEW_SECONDS, lease_seconds: float = LEASE_SECONDS
) -> Iterator[None]:
    """Holds the lease of a folder until the block ends or this process dies.

    Args:
      data_dir: the folder.
      renew_seconds: how often the lease is rewritten.
      lease_seconds: the age at which another holder's lease has expired.

    Raises:
      RerunError: another conversion holds it, or was killed while it did.
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
        with contextlib.suppress(OSError):
            if lease.read_bytes() == mine:
                lease.remove()


def _take(lease: RemotePath, mine: bytes, lease_seconds: float) -> None:
    data_dir = lease.parent
    clock = data_dir / f"{_LEASE}-{mine.decode()}"
    write.publish(clock, mine)  # to compare times by the store's clock
    now = clock.size_and_time()[1]
    clock.remove()
    before = _written(lease)
    if before is not None and now - before < lease_seconds * 1e9:
        left = lease_seconds - (now - before) / 1e9
        raise RerunError(
            f"--data_dir={data_dir}: another conversion is writing there, or was killed less than "
            f"{lease_seconds:.0f} s ago; rerun the same command in {left:.0f} s"
        )
    write.publish(lease, mine)
    time.sleep(_SETTLE_SECONDS)  # of two that found none, the one whose lease is there afterwards continues
    if _written(lease) is None or lease.read_bytes() != mine:
        raise RerunError(
            f"--data_dir={data_dir}: another conversion began there at the same time; rerun this one after it has ended"
        )


def _remove_clocks(data_dir: RemotePath, lease_seconds: float) -> None:
    """Removes the clocks of conversions that were killed while they took the lease."""
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
        except DataError:  # the store may be back next time
            continue
    if not ended.is_set():  # this machine slept, or the store was away, and another conversion has begun
        print(f"{lease.parent}: another conversion has taken over; this one stops", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
