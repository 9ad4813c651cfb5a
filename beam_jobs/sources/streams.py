"""Files read as streams, gzip or not; what is packed is copied once to a temporary file, of which rows can be read."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import os
import pathlib
import secrets
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from typing import IO

from beam_jobs.storage.paths import LocalPath, StoragePath
from pipeline.errors import DataError
from pipeline.manifest import SourceFile

GZIP_MAGIC = b"\x1f\x8b"
PARTIAL = ".partial-"  # names of files that have not arrived whole
BLOCK = 1 << 20  # 1 MiB: what is held of a file in memory at a time


@contextlib.contextmanager
def errors_of(path: object) -> Iterator[None]:
    """Raises DataError, in one line with the path, where the block fails to read that file."""
    try:
        yield
    except DataError:
        raise
    except EOFError:
        raise DataError(f"{path}: its gzip data is cut short; get the file again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: its gzip data is corrupt ({error}); get the file again") from None
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())  # pyarrow's has several lines
        raise DataError(f"{path}: cannot be read: {reason}") from None


def stamp(path: StoragePath) -> tuple[int, int]:
    """Returns (bytes, modification time in ns) of a file, which change when it does.

    Raises:
      DataError: it is missing or cannot be read.
    """
    with errors_of(path):
        return path.size_and_time()


@dataclasses.dataclass(frozen=True)
class KnownFile:
    """A file as it was when the source was opened.

    Attributes:
      path: of the file.
      stamp: its (bytes, modification time in ns) then.
    """

    path: StoragePath
    stamp: tuple[int, int]

    def check_unchanged(self) -> None:
        """Raises DataError where the file has another size or time now, is missing or cannot be read."""
        if (now := stamp(self.path)) != self.stamp:
            raise changed(self.path, f" ({self.stamp[0]} bytes before, {now[0]} now)")


def changed(where: object, how: str = "") -> DataError:
    """Returns the error of a file that is not what it was when the source was opened."""
    return DataError(f"{where}: changed while it was being converted{how}; run the conversion again")


def open_plain(path: StoragePath | str) -> IO[bytes]:
    """Opens a file as it is, unbuffered.

    Raises:
      DataError: it is missing, not a regular file, or unreadable.
    """
    with errors_of(path):
        path = LocalPath(path) if isinstance(path, str) else path
        if not path.is_remote and path.exists() and not os.path.isfile(str(path)):
            raise DataError(f"{path}: is not a regular file")  # to open a named pipe would wait for ever
        return path.open("rb", buffering=0)


def is_packed(handle: IO[bytes]) -> bool:
    """Whether the first bytes of an open file say gzip."""
    return os.pread(handle.fileno(), len(GZIP_MAGIC), 0) == GZIP_MAGIC


@contextlib.contextmanager
def opened(path: StoragePath) -> Iterator[IO[bytes]]:
    """Opens a file for reading, decompressing where its first bytes say gzip.

    Raises:
      DataError: as `open_plain`, or its gzip is cut short or corrupt; also while it is read.
    """
    with errors_of(path), open_plain(path) as raw:
        if is_packed(raw):
            with gzip.open(raw, "rb") as stream:
                yield stream  # type: ignore[misc]
        else:
            yield raw


def blocks(stream: IO[bytes], size: int) -> Iterator[bytes]:
    """Yields the next `size` bytes, fewer at the end of the file, in blocks of at most 1 MiB.

    In blocks, because `stream.read(size)` would first allocate all that a damaged header claims.
    """
    while size > 0 and (block := stream.read(min(size, BLOCK))):
        yield block
        size -= len(block)


def spool(content: Iterable[bytes]) -> IO[bytes]:
    """Returns a temporary file without a name that holds `content`: it is gone with the process, however that ends.

    Raises:
      DataError: the temporary folder has no room for it; errors of `content` pass.
    """
    with _errors_of_temporary():
        handle = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (the caller closes it)
    try:
        for block in content:
            start = 0
            while start < len(block):  # an unbuffered file may take it in parts
                with _errors_of_temporary():
                    start += handle.write(memoryview(block)[start:])
    except BaseException:
        handle.close()
        raise
    return handle


@contextlib.contextmanager
def partial(folder: pathlib.Path) -> Iterator[IO[bytes]]:
    """Yields a new file in `folder`, which is removed unless it is renamed."""
    with open(folder / f"{PARTIAL}{secrets.token_hex(8)}", "xb") as made:
        try:
            yield made
        finally:
            pathlib.Path(made.name).unlink(missing_ok=True)


@contextlib.contextmanager
def room_in(folder: object, what: str, advice: str) -> Iterator[None]:
    """Raises DataError, in one line with the folder and advice, where it cannot hold what the block writes."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{folder}: cannot hold {what}: {error.strerror or error}; {advice}") from None


def _errors_of_temporary() -> contextlib.AbstractContextManager[None]:
    advice = "make room, or set TMPDIR to a folder that has it"
    return room_in(tempfile.gettempdir(), "the unpacked source", advice)


def size(handle: IO[bytes]) -> int:
    """Returns the bytes of an open file."""
    return os.fstat(handle.fileno()).st_size


def scan(handle: IO[bytes], start: int, stop: int, step: int = 1) -> Iterator[bytes]:
    """Yields bytes start..stop - 1 of an open file in blocks of about 1 MiB, multiples of `step`.

    The last block is the rest; nothing comes after the end of a file that is shorter.
    """
    length = max(BLOCK // step, 1) * step
    while start < stop and (block := os.pread(handle.fileno(), min(length, stop - start), start)):
        yield block
        start += len(block)


def describe(name: str, handle: IO[bytes]) -> SourceFile:
    """Returns the manifest's entry of an open file: its name, size and SHA-256."""
    handle.seek(0)
    return SourceFile(name, size(handle), hashlib.file_digest(handle, "sha256").hexdigest())  # type: ignore[arg-type]
