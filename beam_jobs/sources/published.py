"""Official files of a data set: downloaded once if no --source is given, and read from their archives.

Addresses, sizes and SHA-256 checksums are the ones that TensorFlow Datasets has registered. Files are kept in
`$XDG_CACHE_HOME/stepfeed/downloads/<data set>` (by default under `~/.cache`). Members of archives are read one by one
under our own names: paths in an archive are never written to, and its links are not followed.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import hashlib
import importlib.util
import os
import pathlib
import re
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import IO, Any

from beam_jobs.sources import streams
from pipeline.commands.text import count_of, size_of
from pipeline.errors import DataError, UsageError, named, reason_of
from pipeline.files import write
from pipeline.files.paths import LocalPath

_OTHER_PACKINGS = {b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\3\4": "zip"}
MAX_FILE = 1 << 30  # 1 GiB: six times the largest file of these data sets, CIFAR-100's train
_MAX_MEMBERS = 1000  # the archives of these data sets have about ten
_MAX_HEADER = 1 << 20  # 1 MiB, including what tarfile reads ahead
_MAX_ARCHIVE = 8 << 30  # 8 GiB of content: anything larger is a gzip bomb or the wrong archive
_PACKAGE = "tensorflow_datasets"
_PATIENCE = 20.0  # seconds to wait for a connection, for an answer, and between two bytes
_RETRIES = 3  # if the server is busy
_BUSY = (429, 500, 502, 503, 504)
_ABANDONED_SECONDS = 24 * 3600.0  # a partial file of this age must be from a killed process
_SECONDS_BETWEEN_LINES = 5.0
_BLOCK = 64 << 10  # 64 KiB
_LINE = re.compile(r"(?P<url>\S+)\t(?P<num_bytes>\d+)\t(?P<sha256>[0-9a-f]{64})\t(?P<name>[\w.-]+)")


_is_dry = contextvars.ContextVar("_is_dry", default=False)


@dataclasses.dataclass(frozen=True)
class Remote:
    """A published file: its address, name in the cache, size and SHA-256."""

    url: str
    name: str
    num_bytes: int
    sha256: str


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Context manager for dry runs, in which a file that needs downloading raises a UsageError with advice."""
    token = _is_dry.set(True)
    try:
        yield
    finally:
        _is_dry.reset(token)


def files(dataset: str) -> list[pathlib.Path]:
    """Returns the official files of a data set, all in one folder of the cache; downloads those that are missing.

    Raises:
      DataError: they cannot be downloaded, do not match the registered checksums, or the cache cannot hold them.
    """
    return cached(dataset, registered(dataset), cache_folder() / dataset)


def cache_folder() -> pathlib.Path:
    """Returns the folder of downloads."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = pathlib.Path(home) if os.path.isabs(home) else pathlib.Path(os.path.expanduser("~")) / ".cache"
    return base / "stepfeed" / "downloads"


def registered(dataset: str) -> list[Remote]:
    """Returns the files that TensorFlow Datasets has registered for a data set, from a table of its package.

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
        raise _failed(dataset, f"the installed {_PACKAGE} has no checksums for it")
    return [Remote(m["url"], m["name"], int(m["num_bytes"]), m["sha256"]) for m in matches if m]


def cached(
    dataset: str, remotes: Sequence[Remote], folder: pathlib.Path, patience: float = _PATIENCE
) -> list[pathlib.Path]:
    """Returns `folder/<name>` for each of `remotes`, after downloading missing and damaged files.

    A file gets its name once it is complete and its checksum matches, and stays even if another one fails. A download
    fails after `patience` seconds without a byte. Raises DataError like `files`.
    """
    missing = [remote for remote in remotes if not _is_whole(folder / remote.name, remote)]
    if missing and _is_dry.get():
        size = size_of(sum(remote.num_bytes for remote in missing))
        raise UsageError(
            f"--dry_run: writes nothing, but {dataset} would have to be downloaded first "
            f"({count_of(len(missing), 'file')}, {size}, to {folder}); give its files with --source=PATH"
        )
    if missing:
        with _cache_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob(".*.tmp-*"):
                if time.time() - old.stat().st_mtime > _ABANDONED_SECONDS:
                    old.unlink(missing_ok=True)
        with _shown(dataset, sum(remote.num_bytes for remote in missing)) as show, _session() as session:
            for remote in missing:
                _download(dataset, session, remote, folder, patience, show)
    return [folder / remote.name for remote in remotes]


def _session() -> Any:
    import requests  # noqa: PLC0415 (only a download needs it)
    from requests.adapters import HTTPAdapter  # noqa: PLC0415
    from urllib3.util import Retry  # noqa: PLC0415

    session = requests.Session()
    session.headers["Accept-Encoding"] = "identity"  # the registered bytes, not compressed by the server
    busy = Retry(None, 0, 0, status=_RETRIES, status_forcelist=_BUSY, backoff_factor=0.2, raise_on_status=False)
    busy.respect_retry_after_header = False
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=busy))
    return session


def _download(
    dataset: str, session: Any, remote: Remote, folder: pathlib.Path, patience: float, show: Callable[[int], None]
) -> None:
    import requests  # noqa: PLC0415 (as above)

    sha256, size = hashlib.sha256(), 0
    with _cache_errors(folder), write.replaced(folder / remote.name) as partial:
        try:
            with session.get(remote.url, stream=True, timeout=patience) as response:
                response.raise_for_status()
                for block in response.iter_content(_BLOCK):
                    partial.write(block)
                    sha256.update(block)
                    size += len(block)
                    show(len(block))
        except requests.RequestException as error:
            raise _failed(dataset, f"{remote.url}: {_reason(error)} (after {count_of(size, 'byte')})") from None
        if (size, sha256.hexdigest()) != (remote.num_bytes, remote.sha256):
            expected = f"the registered file of {remote.num_bytes:,} bytes with SHA-256 {remote.sha256}"
            raise _failed(dataset, f"{remote.url}: received {count_of(size, 'byte')}, not {expected}")


def _failed(dataset: str, reason: str) -> DataError:
    return DataError(
        f"{dataset}: cannot be downloaded: {reason}",
        advice="give its files with --source=PATH, or try --dataset=digits, which needs no download",
    )


def _reason(error: Any) -> str:
    """Returns the innermost cause of an error raised by `requests`."""
    if error.response is not None:
        return f"the server says HTTP {error.response.status_code}"
    inner: Any = error
    while isinstance(cause := getattr(inner, "reason", None) or inner.__context__, BaseException):
        inner = cause
    return reason_of(inner)


def _is_whole(path: pathlib.Path, remote: Remote) -> bool:
    if not path.is_file() or path.stat().st_size != remote.num_bytes:
        return False
    with streams.open_plain(LocalPath(path)) as handle:
        return streams.entry_of(remote.name, handle).sha256 == remote.sha256


def _cache_errors(folder: pathlib.Path) -> contextlib.AbstractContextManager[None]:
    return named(folder, "cannot hold the download", "set XDG_CACHE_HOME to a folder that can, or give --source")


@contextlib.contextmanager
def _shown(dataset: str, total: int) -> Iterator[Callable[[int], None]]:
    arrived, next_line = 0, time.monotonic() + _SECONDS_BETWEEN_LINES

    def show(count: int) -> None:
        nonlocal arrived, next_line
        arrived += count
        shown.update(count)
        if quiet and time.monotonic() >= next_line:
            next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            print(f"downloading {dataset}: {arrived / 1e6:.1f} of {total / 1e6:.1f} MB", flush=True)

    quiet = not sys.stderr.isatty()
    with streams.progress_bar(total, f"downloading {dataset}") as shown:
        yield show


def unpack(path: LocalPath, members: Collection[tuple[str, str]]) -> dict[tuple[str, str], IO[bytes]]:
    """Returns the `members` found in a tar file, plain or gzip, each as an unnamed temporary file.

    Members are (folder, name); a file outside any folder is accepted, too.

    Raises:
      DataError: it is not a tar archive, is cut short or corrupt, holds a file twice, or is larger than allowed.
    """
    found: dict[tuple[str, str], IO[bytes]] = {}
    with streams.open_plain(path) as raw:
        start = raw.read(max(map(len, _OTHER_PACKINGS)))
    for magic, packing in _OTHER_PACKINGS.items():
        if start.startswith(magic):
            raise DataError(
                f"is packed by {packing}; .tar.gz and .tar are read: unpack it and give the folder", path=path
            )
    with streams.opened(path) as stream:
        meter = _Meter(stream, path)
        try:
            # "r|" reads front to back: the stream is decompressed once, without seeking.
            with tarfile.open(fileobj=meter, mode="r|") as tar:  # type: ignore[call-overload]
                for number, info in enumerate(tar):
                    _check_size(path, info, number)
                    meter.left = info.size + _MAX_HEADER
                    parts = pathlib.PurePosixPath(info.name).parts
                    for member in members if info.isfile() else ():
                        if parts in (member, member[1:]):
                            if member in found:
                                raise DataError(f"holds {member[1]} twice", path=path)
                            found[member] = _spool(tar, info, path)
        except tarfile.TarError as error:
            raise streams.damaged(path, f"is not a whole tar archive ({error})") from None
    return found


class _Meter:
    """A stream that raises an error if a member's header, which `tarfile` reads at once, is larger than allowed."""

    def __init__(self, stream: IO[bytes], path: LocalPath) -> None:
        self._stream = stream
        self._path = path
        self.left = _MAX_HEADER

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise DataError(f"a member's header has more than {_MAX_HEADER} bytes; refused", path=self._path)
        return data


def _check_size(path: LocalPath, member: tarfile.TarInfo, number: int) -> None:
    if number >= _MAX_MEMBERS:
        raise DataError(f"has more than {_MAX_MEMBERS} members; it is not the published archive", path=path)
    if member.size > MAX_FILE or member.offset + member.size > _MAX_ARCHIVE:
        raise DataError(
            f"member {member.name!r} of {count_of(member.size, 'byte')} is larger than allowed; refused", path=path
        )


def _spool(tar: tarfile.TarFile, member: tarfile.TarInfo, path: LocalPath) -> IO[bytes]:
    stream: Any = tar.extractfile(member)  # not None: it is a regular file
    handle = streams.spool(streams.blocks(stream, member.size))
    if streams.size(handle) != member.size:
        raise streams.damaged(path, f"is cut short inside {member.name}")
    return handle


def unzip(path: LocalPath, folder: str, names: Collection[str], target: pathlib.Path) -> None:
    """Extracts the files `folder/<name>` of a .zip to the folder `target`, creating it if needed.

    Raises:
      DataError: it is not a .zip, is damaged, lacks a file, or has one that is larger than allowed.
    """
    with streams.errors_of(path):
        target.mkdir(exist_ok=True)
        try:
            with zipfile.ZipFile(path) as opened:
                for name in names:
                    _write_member(opened, path, f"{folder}/{name}", target / name)
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
            raise streams.damaged(path, f"is not a whole .zip ({error})") from None


def _write_member(opened: zipfile.ZipFile, path: LocalPath, member: str, target: pathlib.Path) -> None:
    try:
        size = opened.getinfo(member).file_size
    except KeyError:
        raise DataError(f"holds no {member}", path=path) from None
    if size > MAX_FILE:
        raise DataError(f"member {member!r} of {count_of(size, 'byte')} is larger than allowed; refused", path=path)
    with write.replaced(target) as written, opened.open(member) as stream:
        written.writelines(streams.blocks(stream, size + 1))
