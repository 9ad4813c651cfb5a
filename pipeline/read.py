"""The shards of a selection, open for reading: each must be what it was when the input was made."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pipeline.corruption import Corruption, CorruptRecord
from pipeline.errors import DataError
from pipeline.manifest import ShardInfo
from pipeline.splits import Segment
from pipeline.storage import File, Identity, OpenFile, PathLike, folder

_RECOVER = (
    "the data is not what was converted: convert it again (python -m beam_jobs.convert ... --overwrite); "
    "or index it again, if it was indexed (python -m pipeline.index ... --overwrite)"
)
_THREADS = min(16, 2 * (os.cpu_count() or 1))  # of all inputs of a process together: some wait for the disk

Task = TypeVar("Task")
Result = TypeVar("Result")


class _Pool:
    """The threads of this process; a forked one has none of its parent's, and starts its own."""

    def __init__(self) -> None:
        self.start()
        os.register_at_fork(after_in_child=self.start)

    def start(self) -> None:
        self.executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="read")


_pool = _Pool()


def check_present(data_dir: PathLike, shards: Iterable[ShardInfo]) -> list[Identity]:
    """Returns what each shard's file is.

    Raises:
      DataError: one is missing or has another size than the manifest says.
    """
    return in_parallel(lambda shard: _check(folder(data_dir) / shard.file, shard), shards)


def _check(file: File, shard: ShardInfo) -> Identity:
    try:
        identity = file.identity()
    except DataError as error:
        raise DataError(
            f"{file}: the manifest lists this shard, but it {str(error)[len(str(file)) + 2 :]}; {_RECOVER}"
        ) from None
    if identity.num_bytes != shard.num_bytes:
        raise DataError(f"{file}: {identity.num_bytes} bytes, but the manifest says {shard.num_bytes}; {_RECOVER}")
    return identity


def in_parallel(function: Callable[[Task], Result], tasks: Iterable[Task]) -> list[Result]:
    """Returns the function's results in order; it must not call this itself. The first error is raised."""
    return list(_pool.executor.map(function, tasks))


@dataclasses.dataclass(frozen=True)
class Shards:
    """The files of a selection.

    Attributes:
      data_dir: the data set's folder.
      segments: the selection's; pieces name them by their place here.
      corruption: what is done about corrupt records.
      identities: of the files, when the input was made.
    """

    data_dir: str
    segments: tuple[Segment, ...]
    corruption: Corruption
    identities: tuple[Identity, ...]

    @classmethod
    def found(cls, data_dir: PathLike, segments: tuple[Segment, ...], corruption: Corruption) -> Shards:
        """Returns the shards of segments; raises as `check_present`."""
        identities = check_present(data_dir, [segment.shard for segment in segments])
        return cls(os.fspath(data_dir), segments, corruption, tuple(identities))

    def file(self, segment: int) -> File:
        """Returns a segment's file."""
        return folder(self.data_dir) / self.segments[segment].shard.file

    @contextlib.contextmanager
    def opened(self, segment: int) -> Iterator[OpenFile]:
        """Opens a segment's file.

        Raises:
          DataError: it is gone, or is not what it was when the input was made.
        """
        with self.file(segment).open() as file:
            self.check_same(segment, file.identity())
            yield file
            # Written in place meanwhile, the records are whole, but others.
            self.check_same(segment, file.identity())

    def check_same(self, segment: int, found: Identity) -> None:
        """Raises DataError where a file is not what it was when the input was made."""
        before = self.identities[segment]
        if found == before:
            return
        size = f"has {found.num_bytes} bytes instead of {before.num_bytes}"
        what = size if found.num_bytes != before.num_bytes else "was written again"
        raise DataError(f"{self.file(segment)}: {what} since the input began; end what writes there and start again")

    def check_crc(self, segment: int, crc: int) -> None:
        """Raises DataError where a file whose records are all whole has not the manifest's CRC32C."""
        expected = self.segments[segment].shard.crc32c
        if f"{crc:08x}" != expected:
            raise DataError(
                f"{self.file(segment)}: every record is whole, but the file's CRC32C is {crc:08x}, not {expected}: "
                "another data set's shard; convert the data again"
            )

    def corrupt(self, segment: int, record: int, offset: int, problem: str) -> None:
        """Notes a corrupt record; raises as `Corruption.found`, and where the file is no longer what it was."""
        self.check_same(segment, self.file(segment).identity())
        self.corruption.found(CorruptRecord(str(self.file(segment)), record, offset, problem))
