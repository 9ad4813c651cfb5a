"""Reads the files of a source as streams, plain or gzip, unpacks them to temporary files, and computes digests."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import gzip
import hashlib
import itertools
import os
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Self

import tqdm

from pipeline.commands.text import count_of
from pipeline.errors import DataError, named, reason_of
from pipeline.files.paths import LocalPath, StoragePath
from pipeline.manifest import SourceFile

GZIP_MAGIC = b"\x1f\x8b"
BLOCK = 1 << 20  # 1 MiB: how much of a file is in memory at a time
MAX_REST = 64 << 20  # 64 MiB: three times the largest padding that tar writes; more is a gzip bomb
_SECONDS_WITHOUT_BAR = 3.0

Advance = Callable[[int], object]  # called with the number of bytes read since the last call


@contextlib.contextmanager
def errors_of(path: object) -> Iterator[None]:
    """Turns a failure to read the file in the block into a DataError, in one line with the path."""
    try:
        yield
    except DataError:
        raise
    except EOFError:
        raise damaged(path, "its gzip data is cut short") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise damaged(path, f"its gzip data is corrupt ({error})") from None
    except FileNotFoundError:
        raise DataError("no such file", path=path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {reason_of(error)}", path=path) from None


def stamp(path: StoragePath) -> tuple[int, int]:
    """Returns (bytes, modification time in ns) of a file, which change when the file does.

    Raises:
      DataError: it is missing or cannot be read.
    """
    with errors_of(path):
        return path.size_and_time()


@dataclasses.dataclass(frozen=True)
class KnownFile:
    """A file with its (bytes, modification time in ns) at the time the source was opened."""

    path: StoragePath
    stamp: tuple[int, int]

    @classmethod
    def of(cls, path: StoragePath) -> Self:
        """Returns a file as it is now; raises DataError like `stamp`."""
        return cls(path, stamp(path))

    def check_unchanged(self) -> None:
        """Raises DataError if the file's size or time has changed, or it is missing or cannot be read."""
        if (now := stamp(self.path)) != self.stamp:
            raise changed(self.path, f" ({count_of(self.stamp[0], 'byte')} before, {now[0]:,} now)")


def changed(where: object, how: str = "") -> DataError:
    """Returns an error about a file that has changed since the source was opened."""
    return DataError(f"changed while it was being converted{how}", path=where, advice="run the conversion again")


def damaged(where: object, problem: str) -> DataError:
    """Returns an error about a file that is not as its maker wrote it."""
    return DataError(problem, path=where, advice="get the file again")


def open_plain(path: StoragePath) -> IO[bytes]:
    """Opens a file without decompression, unbuffered.

    Raises:
      DataError: it is missing, not a regular file, or unreadable.
    """
    with errors_of(path):
        if not path.is_remote and path.exists() and not os.path.isfile(str(path)):
            raise DataError("is not a regular file", path=path)  # opening a named pipe would block forever
        return path.open("rb", buffering=0)


def is_packed(handle: IO[bytes]) -> bool:
    """Returns whether an open file begins like gzip."""
    return os.pread(handle.fileno(), len(GZIP_MAGIC), 0) == GZIP_MAGIC


@contextlib.contextmanager
def opened(path: StoragePath) -> Iterator[IO[bytes]]:
    """Opens a file for reading, decompressed if it begins like gzip.

    The block need not read to the end: the rest of gzip data is read when it ends, as the CRC comes last.

    Raises:
      DataError: it is missing, not a regular file, or unreadable; or, while it is read or at the end of the block, the
        gzip data is cut short or corrupt.
    """
    with errors_of(path), open_plain(path) as raw:
        if is_packed(raw):
            with gzip.open(raw, "rb") as stream:
                yield stream  # type: ignore[misc]
                if sum(map(len, blocks(stream, MAX_REST + 1))) > MAX_REST:  # type: ignore[arg-type]
                    raise DataError(f"continues for more than {MAX_REST} bytes after its content; refused", path=path)
        else:
            yield raw


def blocks(stream: IO[bytes], size: int) -> Iterator[bytes]:
    """Yields the next `size` bytes, fewer at the end of the file, in blocks of at most 1 MiB.

    `stream.read(size)` would allocate as many bytes as a damaged header claims.
    """
    while size > 0 and (block := stream.read(min(size, BLOCK))):
        yield block
        size -= len(block)


def spool(content: Iterable[bytes]) -> IO[bytes]:
    """Returns an unnamed temporary file with `content`, which disappears with the process, however that ends.

    Raises:
      DataError: the temporary folder has no room for it. Errors of `content` pass through.
    """
    with _errors_of_temporary():
        handle = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (the caller closes it)
    try:
        for block in content:
            start = 0
            while start < len(block):  # an unbuffered write may be partial
                with _errors_of_temporary():
                    start += handle.write(memoryview(block)[start:])
    except BaseException:
        handle.close()
        raise
    return handle


def _errors_of_temporary() -> contextlib.AbstractContextManager[None]:
    advice = "make room, or set TMPDIR to a folder that has it"
    return named(tempfile.gettempdir(), "cannot hold the unpacked source", advice)


def size(handle: IO[bytes]) -> int:
    """Returns the size of an open file in bytes."""
    return os.fstat(handle.fileno()).st_size


def scan(handle: IO[bytes], start: int, stop: int, step: int = 1) -> Iterator[bytes]:
    """Yields bytes start..stop - 1 of an open file in blocks of about 1 MiB, multiples of `step`.

    The last block is the rest; a shorter file ends the iteration early.
    """
    length = max(BLOCK // step, 1) * step
    while start < stop and (block := os.pread(handle.fileno(), min(length, stop - start), start)):
        yield block
        start += len(block)


def entry_of(name: str, handle: IO[bytes]) -> SourceFile:
    """Returns the manifest entry of an open file: its name, size and SHA-256."""
    handle.seek(0)
    return SourceFile(name, size(handle), hashlib.file_digest(handle, "sha256").hexdigest())  # type: ignore[arg-type]


def describe(files: Sequence[tuple[str, LocalPath]], unpacks: bool = False) -> tuple[SourceFile, ...]:
    """Returns the manifest entry of each of `files`, (name in the manifest, path), in order.

    After three seconds a bar is drawn if stderr is a terminal.

    Args:
      files: names and paths.
      unpacks: whether entries of gzipped files describe the decompressed content, so that packing changes no manifest.

    Raises:
      DataError: a file is missing, is not a regular file, or cannot be read.
    """
    with progress_bar(sum(stamp(path)[0] for _, path in files)) as shown:
        return tuple(digests(files, shown.update, opened if unpacks else open_plain))


class Tally:
    """Counts bytes and computes their digest as they are read."""

    def __init__(self, advance: Advance) -> None:
        self._advance = advance
        self._sha256 = hashlib.sha256()
        self._size = 0

    def add(self, data: bytes) -> None:
        """Adds the next bytes."""
        self._sha256.update(data)
        self._size += len(data)
        self._advance(len(data))

    def entry(self, name: str) -> SourceFile:
        """Returns the manifest entry of a file that consists of the bytes so far."""
        return SourceFile(name, self._size, self._sha256.hexdigest())


def digests(
    files: Sequence[tuple[str, LocalPath]],
    advance: Advance,
    open_: Callable[[LocalPath], contextlib.AbstractContextManager[IO[bytes]]] = open_plain,
) -> list[SourceFile]:
    """Returns the same entries as `describe`, without a bar. Memory: one block for each core's thread."""
    stop = threading.Event()

    def work(file: tuple[str, LocalPath]) -> SourceFile:
        name, path = file
        tally = Tally(advance)
        try:
            with errors_of(path), open_(path) as stream:
                # Blocks of 1 MiB: hashlib releases the interpreter's lock for a millisecond at a time.
                while not stop.is_set() and (block := stream.read(BLOCK)):
                    tally.add(block)
        except DataError:
            stop.set()  # or the error would wait until the other threads finish their files
            raise
        return tally.entry(name)

    threads = os.cpu_count() or 1
    some = max(1, len(files) // (16 * threads))  # per task: a task costs as much as hashing a small file
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        parts = pool.map(lambda first: [*map(work, files[first : first + some])], range(0, len(files), some))
        return list(itertools.chain.from_iterable(parts))


def progress_bar(total: int, text: str = "reading source") -> tqdm.tqdm:
    """Returns a progress bar of `total` bytes, drawn only on a terminal; any thread may call its `update`."""
    delay = _SECONDS_WITHOUT_BAR
    return tqdm.tqdm(total=total, desc=text, unit="B", unit_scale=True, delay=delay, disable=None, leave=False)
