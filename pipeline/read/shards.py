"""The shards of a selection, opened for reading; they must not have changed since the input was made."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError, to_run
from pipeline.files.paths import PathLike, StoragePath, folder
from pipeline.files.reading import Identity, OpenFile
from pipeline.manifest import ShardInfo
from pipeline.manifest.splits import Segment
from pipeline.read import progress
from pipeline.read.cache_folder import Entry
from pipeline.read.corruption import Corruption, CorruptRecord
from pipeline.read.shard_cache import ShardCache

# Local reads are processor-bound: more threads would wait for memory or, without the compiled code, for the
# interpreter's lock. Remote reads wait for other machines.
LOCAL_THREADS, _REMOTE_THREADS = min(4, max(2, os.cpu_count() or 1)), 16

Task = TypeVar("Task")
Result = TypeVar("Result")
_RECOVER = (
    "the data has changed since its conversion: copy it again, if it was copied; or convert it again "
    f"({to_run('beam_jobs.convert')} ... --overwrite); "
    f"or index it again, if it was indexed ({to_run('pipeline.index')} ... --overwrite)"
)


class _Pools:
    """The threads of this process. A forked process does not inherit them and starts its own."""

    def __init__(self) -> None:
        self.start()
        os.register_at_fork(after_in_child=self.start)

    def start(self) -> None:
        self.local = ThreadPoolExecutor(LOCAL_THREADS, thread_name_prefix="read")
        self.remote = ThreadPoolExecutor(_REMOTE_THREADS, thread_name_prefix="read-remote")


_pools = _Pools()


class _Work(Generic[Task, Result]):
    """Tasks that several threads take in order, until none is left or one has failed."""

    def __init__(self, function: Callable[[Task], Result], tasks: list[Task]) -> None:
        self._function, self._tasks = function, tasks
        self._numbers = iter(range(len(tasks)))  # next() on it is atomic
        self._running, self._has_ended = 0, threading.Condition()
        self._is_over = False
        self.results: dict[int, Result] = {}
        self.errors: dict[int, BaseException] = {}

    def run(self) -> None:
        """Takes tasks until there are none left."""
        with self._has_ended:
            self._running += 1
        try:
            for _ in self.steps():
                pass
        finally:
            with self._has_ended:
                self._running -= 1
                self._has_ended.notify_all()

    def steps(self) -> Iterator[None]:
        """Takes tasks like `run`; yields after each."""
        while not self._is_over and (number := next(self._numbers, None)) is not None:  # once taken, it is done
            try:
                self.results[number] = self._function(self._tasks[number])
            except BaseException as error:
                self.errors[number] = error
                self.stop()
            yield

    def stop(self) -> None:
        """Keeps threads from taking another task."""
        self._is_over = True

    def wait(self) -> None:
        """Waits for calls of `run` that have begun. Later ones will not take a task."""
        self.stop()
        with self._has_ended:
            self._has_ended.wait_for(lambda: not self._running)


def in_parallel(
    function: Callable[[Task], Result], tasks: Iterable[Task], *, is_remote: bool = False, text: str = ""
) -> list[Result]:
    """Returns a function's results in order, computed in threads; raises the first error.

    The caller takes tasks as well, so that it never waits for a thread that has not begun one. A thread may be blocked:
    if Python collects garbage in it and finds a TensorFlow iterator, TensorFlow waits for that iterator's last read,
    which may belong to another caller. The caller does wait for threads that have begun a task. If the iterator's read
    is the caller of that very task, both wait for each other, as in any function that TensorFlow calls and in which
    Python collects garbage.

    Args:
      function: function that computes the result of a task.
      tasks: arguments of the calls.
      is_remote: whether the tasks wait for other machines.
      text: caption of a bar on the terminal, shown if the tasks take long; empty for no bar.
    """
    pool, threads = (_pools.remote, _REMOTE_THREADS) if is_remote else (_pools.local, LOCAL_THREADS)
    tasks = list(tasks)
    work = _Work(function, tasks)
    # The pool accepts nothing once the interpreter is exiting, and may have too few threads under a limit.
    with contextlib.suppress(RuntimeError):
        for _ in range(min(len(tasks), threads) - 1):
            pool.submit(work.run)

    def steps() -> Iterator[None]:
        shown = 0
        for _ in work.steps():
            ended = len(work.results)
            yield from itertools.repeat(None, ended - shown)
            shown = ended
        work.wait()
        yield from itertools.repeat(None, len(work.results) - shown)

    try:
        for _ in progress.bar(steps(), len(tasks), text) if text else steps():
            pass
    finally:  # even if a signal's error ends it, the other threads stop after their current task
        work.stop()
    if work.errors:
        first = [work.errors[min(work.errors)]]
        work.errors.clear()  # their tracebacks hold frames, which hold the errors and the memory that was read into
        raise first.pop()
    return [work.results[number] for number in range(len(tasks))]


def check_present(data_dir: PathLike, shards: Iterable[ShardInfo]) -> list[Identity]:
    """Returns the identity of each shard's file.

    Raises:
      DataError: a file is missing, or its size differs from the manifest's.
    """
    parent = folder(data_dir)
    return in_parallel(lambda shard: _check(parent / shard.file, shard), shards, is_remote=parent.is_remote)


def _check(file: StoragePath, shard: ShardInfo) -> Identity:
    try:
        identity = file.identity()
    except DataError as error:
        listed = error.changed(reason=f"the manifest lists this shard, but it {error.reason}")
        raise listed.advised(_RECOVER) from None
    if identity.num_bytes != shard.num_bytes:
        raise DataError(
            f"{identity.num_bytes} bytes, but the manifest says {shard.num_bytes}", path=file, advice=_RECOVER
        )
    return identity


class ReadTask(NamedTuple):
    """The records that a thread reads from one shard.

    Attributes:
      segment: segment of the shard.
      runs: (first record in the shard, end) of one or more runs.
      numbers: record numbers to read one by one instead of runs; int64 (n,).
    """

    segment: int
    runs: list[tuple[int, int]]
    numbers: NDArray[np.int64] | None = None

    @property
    def size(self) -> int:
        """Number of records."""
        return sum(stop - start for start, stop in self.runs) if self.numbers is None else len(self.numbers)


@dataclasses.dataclass(frozen=True)
class Shards:
    """The files of a selection.

    Attributes:
      data_dir: folder of the data set.
      segments: segments of the selection; pieces refer to them by index.
      corruption: policy for corrupt records.
      identities: identities of the files when the input was made.
      cache: cache of local copies; None to read the files themselves.
    """

    data_dir: str
    segments: tuple[Segment, ...]
    corruption: Corruption
    identities: tuple[Identity, ...]
    cache: ShardCache | None = None

    @classmethod
    def found(
        cls, data_dir: PathLike, segments: tuple[Segment, ...], corruption: Corruption, cache: ShardCache | None = None
    ) -> Shards:
        """Returns the shards of segments; raises errors like `check_present`."""
        identities = check_present(data_dir, [segment.shard for segment in segments])
        return cls(os.fspath(data_dir), segments, corruption, tuple(identities), cache)

    def file(self, segment: int) -> StoragePath:
        """Returns a segment's file."""
        return folder(self.data_dir) / self.segments[segment].shard.file

    def in_parallel(self, function: Callable[[Task], Result], tasks: Iterable[Task], text: str = "") -> list[Result]:
        """Returns a function's results in order, computed in as many threads as suit the shards' location."""
        # With a cache, the cache's threads wait for the store, and these threads read local copies.
        is_remote = self.cache is None and folder(self.data_dir).is_remote
        return in_parallel(function, tasks, is_remote=is_remote, text=text)

    def fetch_ahead(self, pieces: NDArray[np.int64]) -> None:
        """With a cache, starts copying the shards of pieces (p, 3); they are kept until `held` releases them."""
        if self.cache:
            self.cache.fetch_ahead(self._entries(self.cache, pieces))

    @contextlib.contextmanager
    def held(self, pieces: NDArray[np.int64]) -> Iterator[None]:
        """With a cache, keeps the copies of the pieces' shards during the block and then releases them."""
        self.fetch_ahead(pieces)
        try:
            yield
        finally:
            if self.cache:
                self.cache.release(self._entries(self.cache, pieces))

    def _entries(self, cache: ShardCache, pieces: NDArray[np.int64]) -> list[Entry]:
        """Returns the distinct cache entries for the shards of pieces, in order."""
        wanted = dict.fromkeys(segment for segment, start, stop in pieces.tolist() if start < stop)
        return list(dict.fromkeys(self._entry(cache, segment) for segment in wanted))

    def _entry(self, cache: ShardCache, segment: int) -> Entry:
        shard = self.segments[segment].shard
        return cache.entry(shard.file, shard.num_bytes, shard.crc32c)

    def parts(self, pieces: NDArray[np.int64], num_bytes: int | None) -> list[tuple[int, int, int]]:
        """Returns the parts of pieces for threads to read: (segment, first record of its shard, end), in order.

        Args:
          pieces: segment, first record in the segment and end of each piece, int64 (p, 3).
          num_bytes: approximate size of a part; None not to cut pieces. Whole shards are never cut, because of their
            CRC.
        """
        found: list[tuple[int, int, int]] = []
        for segment, start, stop in pieces.tolist():
            taken = self.segments[segment]
            shard, first, end = taken.shard, taken.start + start, taken.start + stop
            is_whole = num_bytes is None or stop - start == shard.num_examples
            size = shard.num_bytes if is_whole else num_bytes
            step = max(1, (size or 1) * shard.num_examples // max(1, shard.num_bytes))
            found += [(segment, at, min(at + step, end)) for at in range(first, end, step)]
        return found

    def tasks(self, parts: Iterable[tuple[int, int, int]], num_bytes: int) -> list[ReadTask]:
        """Returns tasks of neighbouring parts of the same shard, up to `num_bytes` unless it is a single part.

        A thread opens the file once per task, which costs as much as reading some 100 KB.
        """
        found: list[ReadTask] = []
        size = 0  # bytes of the last task
        for segment, start, stop in parts:
            shard = self.segments[segment].shard
            added = (stop - start) * shard.num_bytes // max(1, shard.num_examples)
            if found and found[-1].segment == segment and size + added <= num_bytes:
                found[-1].runs.append((start, stop))
                size += added
            else:
                found.append(ReadTask(segment, [(start, stop)]))
                size = added
        return found

    @contextlib.contextmanager
    def opened(self, segment: int) -> Iterator[OpenFile]:
        """Opens a segment's file, or its copy.

        Raises:
          DataError: the file is gone, or has changed since the input was made.
        """
        shard = self.segments[segment].shard
        with self.opened_file(shard.file, shard.num_bytes, shard.crc32c) as file:
            is_copy = file.path != str(self.file(segment))
            if not is_copy:
                self.check_same(segment, file.identity())
            yield file
            # Check again: a file rewritten in place in the meantime may have intact, but different, records.
            if not is_copy:
                self.check_same(segment, file.identity())

    @contextlib.contextmanager
    def opened_file(self, name: str, num_bytes: int, crc32c: str) -> Iterator[OpenFile]:
        """Opens a file of the data set, or its copy, by name, size and CRC32C.

        Raises:
          DataError: the file cannot be read or copied.
        """
        with contextlib.ExitStack() as stack:
            file = None
            if self.cache:
                file = stack.enter_context(self.cache.opened(self.cache.entry(name, num_bytes, crc32c)))
            yield file or stack.enter_context((folder(self.data_dir) / name).open_file())

    def check_same(self, segment: int, found: Identity) -> None:
        """Raises DataError if a segment's file has changed since the input was made; `found` is its identity now."""
        before = self.identities[segment]
        if found == before:
            return
        size = f"has {found.num_bytes} bytes instead of {before.num_bytes}"
        what = size if found.num_bytes != before.num_bytes else "was written again"
        raise DataError(
            f"{what} since the input began", path=self.file(segment), advice="stop what writes there and start again"
        )

    def check_crc(self, segment: int, crc: int) -> None:
        """Raises DataError if the CRC32C of a file, whose records are all intact, differs from the manifest's."""
        expected = self.segments[segment].shard.crc32c
        if f"{crc:08x}" != expected:
            raise DataError(
                f"every record is whole, but the file's CRC32C is {crc:08x}, not {expected}: "
                "this is another data set's shard",
                path=self.file(segment),
                advice="convert the data again",
            )

    def corrupt(self, segment: int, record: int, offset: int, problem: str) -> None:
        """Reports a corrupt record.

        Raises:
          DataError: the record must not be skipped, or the file has changed since the input was made.
        """
        self._check_unchanged(segment, f"record {record}, byte offset {offset}: {problem}")
        self.corruption.found(CorruptRecord(str(self.file(segment)), record, offset, problem))

    def corrupt_member(
        self, segment: int, offset: int, held: tuple[int, int], records: dict[int, int], problem: str
    ) -> None:
        """Reports a corrupt GZIP member; raises errors like `corrupt`.

        Args:
          segment: segment of the shard.
          offset: offset of the member in the shard.
          held: number of the first record in the member, and the end.
          records: {number: byte offset in the decompressed shard} of the records to read from it.
          problem: description of what is wrong.
        """
        file = str(self.file(segment))
        what = f"GZIP member at byte offset {offset}, records {held[0]} to {held[1] - 1}"
        self._check_unchanged(segment, f"{what}: {problem}")
        found = [CorruptRecord(file, number, at, f"its {what}: {problem}") for number, at in records.items()]
        self.corruption.found_together(DataError(problem, path=file, part=what), found, range(*held))

    def _check_unchanged(self, segment: int, problem: str) -> None:
        """Raises DataError if a problem arose because the file, or its checked copy, has changed."""
        if self.cache and (entry := self._entry(self.cache, segment)) in self.cache.copies.right:
            raise self.cache.copies.damaged(entry, problem)
        self.check_same(segment, self.file(segment).identity())

    def stand_ins(self, good: NDArray[np.bool_], segment: int) -> NDArray[np.int64]:
        """Returns the row to copy to each bad row: the next good one, or else the last good one; int64 (bad,).

        Args:
          good: mask of a window's good rows.
          segment: segment in whose file the window begins.

        Raises:
          DataError: no row is good.
        """
        left, bad = np.flatnonzero(good), np.flatnonzero(~good)
        if not len(left):
            raise DataError(
                f"all {len(good)} records of a window that begins in this file are corrupt",
                path=self.file(segment),
                advice=self.corruption.advice,
            )
        return left[np.minimum(np.searchsorted(left, bad), len(left) - 1)]
