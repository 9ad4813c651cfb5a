"""One download by TensorFlow Datasets' manager, in a process of its own.

The manager has no time limits, and its threads cannot be stopped; a process can. This side watches the bytes arrive.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tqdm

PATIENCE = 20.0  # seconds: for a connection, for an answer, and between two bytes
_START_PATIENCE = 120.0  # for the process to import the manager, on a machine that is busy
_POLL_SECONDS = 0.2
_SECONDS_BETWEEN_LINES = 5.0


class FetchError(Exception):
    """Says in one line which file did not arrive, and why."""


@dataclasses.dataclass(frozen=True)
class Remote:
    """A published file: its address, its name in the cache, its size and SHA-256."""

    url: str
    name: str
    num_bytes: int
    sha256: str


def fetch(dataset: str, remotes: Sequence[Remote], folder: pathlib.Path, patience: float) -> dict[str, pathlib.Path]:
    """Returns {url: path} of `remotes`, downloaded and checked.

    Args:
      dataset: for the bar.
      remotes: the files.
      folder: an empty one; the files are somewhere in it.
      patience: seconds without a byte after which the download has failed.

    Raises:
      FetchError: a file cannot be had, or is not the registered one.
    """
    context = multiprocessing.get_context("spawn")  # not a copy of this process, with whatever it holds
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_download, args=(sender, list(remotes), str(folder), patience), daemon=True)
    process.start()
    sender.close()
    try:
        with _shown(dataset, sum(remote.num_bytes for remote in remotes)) as show:
            outcome = _watch(receiver, folder, remotes[0].url, patience, show)
    finally:
        process.kill()
        process.join()
    if isinstance(outcome, str):
        raise FetchError(outcome)
    return {url: pathlib.Path(path) for url, path in outcome.items()}


def _watch(
    receiver: multiprocessing.connection.Connection,
    folder: pathlib.Path,
    url: str,
    patience: float,
    show: Callable[[int], None],
) -> Any:
    """Returns what the process sends: {url: path}, or why it failed."""
    arrived, deadline = 0, time.monotonic() + _START_PATIENCE
    while time.monotonic() < deadline:
        if receiver.poll(_POLL_SECONDS):
            try:
                message = receiver.recv()
            except EOFError:
                return f"{url}: the process that fetched it has ended"
            if message is not None:
                return message
            deadline = time.monotonic() + 2 * patience  # a connection, then the answer
        if (now := _bytes_in(folder)) != arrived:
            arrived, deadline = now, time.monotonic() + patience
            show(arrived)
    return f"{url}: nothing came for {patience:g} s after {arrived} bytes"


def _bytes_in(folder: pathlib.Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # renamed since it was listed
            total += path.stat().st_size if path.is_file() else 0
    return total


@contextlib.contextmanager
def _shown(dataset: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields what shows so many bytes as arrived: a bar on a terminal, a line every five seconds elsewhere."""
    next_line = time.monotonic() + _SECONDS_BETWEEN_LINES

    def show(arrived: int) -> None:
        nonlocal next_line
        bar.update(min(arrived, total) - bar.n)
        if bar.disable and time.monotonic() >= next_line:
            next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            print(f"downloading {dataset}: {arrived / 1e6:.1f} of {total / 1e6:.1f} MB", flush=True)

    with tqdm.tqdm(
        total=total,
        desc=f"downloading {dataset}",
        unit="B",
        unit_scale=True,
        leave=False,
        disable=not sys.stderr.isatty(),
    ) as bar:
        yield show


def _download(sender: Any, remotes: list[Remote], folder: str, patience: float) -> None:
    """Runs in the other process: sends None when it begins, then {url: path} or one line that says why not."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command that is interrupted ends this process
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)  # its bars and warnings; `fetch` shows its own
    tqdm.tqdm.set_lock(threading.RLock())  # by default one between processes, which would outlive a killed one
    try:
        from tensorflow_datasets.core.download import checksums, download_manager  # noqa: PLC0415 (a second)
    except ImportError as error:
        sender.send(f"tensorflow_datasets cannot be imported: {error}")
        return
    sender.send(None)
    url = remotes[0].url
    try:
        _probe(url, patience)
        infos = {
            remote.url: checksums.UrlInfo(size=remote.num_bytes, checksum=remote.sha256, filename=remote.name)
            for remote in remotes
        }
        manager = download_manager.DownloadManager(
            download_dir=folder, url_infos=infos, force_checksums_validation=True
        )
        paths = manager.download({remote.url: remote.url for remote in remotes})
        sender.send({url: os.fspath(path) for url, path in paths.items()})
    except download_manager.NonMatchingChecksumError as error:
        remote = next((one for one in remotes if f" {one.url}," in str(error)), remotes[0])
        sender.send(
            f"{remote.url}: what came is not the file of {remote.num_bytes} bytes with SHA-256 {remote.sha256} that is "
            "registered"
        )
    except Exception as error:  # whatever the manager or the network raises is told by the other side
        sender.send(f"{url}: {_reason(error)}")


def _probe(url: str, patience: float) -> None:
    """Raises what is wrong with a connection: the manager would try it ten times, and wait for ever."""
    import requests  # noqa: PLC0415 (comes with the manager)

    with requests.get(url, stream=True, timeout=patience) as response:
        response.raise_for_status()


def _reason(error: BaseException) -> str:
    """Returns the innermost cause of an error of `requests`, in one line."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return f"the server says HTTP {status}"
    inner: Any = error
    while True:
        causes = [getattr(inner, "reason", None), inner.__cause__, inner.__context__, *inner.args[:2]]
        cause = next((one for one in causes if isinstance(one, BaseException)), None)
        if cause is None:
            break
        inner = cause
    text = inner.strerror if isinstance(inner, OSError) and inner.strerror else str(inner) or type(inner).__name__
    return " ".join(text.split())


def _end_with_parent(folder: str) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)
