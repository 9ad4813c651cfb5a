"""Reads records of any kind as byte strings and checks their CRCs: images of any size, other features, GZIP, ZLIB."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

import crc32c
import numpy as np
from numpy.typing import NDArray

from pipeline.read import frames
from pipeline.read.compressed import KEPT_BYTES, ForwardReader, MemberReader
from pipeline.read.memory import aligned_matrix
from pipeline.read.shards import ReadTask, Shards
from pipeline.read.sidecars import Sidecars
from pipeline.records import framing

U8 = NDArray[np.uint8]
_TASK = 4 << 20  # 4 MiB, per thread


@dataclasses.dataclass(frozen=True)
class Records:
    """Serialized records in memory.

    Attributes:
      memory: bytes of all records, uint8 (1, m).
      bounds: begin and end of each record in the memory, int64 (n, 2).
      good: mask of good records, bool (n,); a skipped corrupt record is replaced by another one.
    """

    memory: U8
    bounds: NDArray[np.int64]
    good: NDArray[np.bool_]

    def as_bytes(self) -> NDArray[np.object_]:
        """Returns copies of the records: bytes (n,), dtype object."""
        found = np.empty(len(self.bounds), object)
        found[:] = [self.memory[0, begin:end].tobytes() for begin, end in self.bounds.tolist()]
        return found


class Judge(Protocol):
    """Decides which records cannot be used.

    Attributes:
      rows: number of records that are best passed together.
    """

    rows: int

    def problems(self, records: Sequence[bytes]) -> list[str | None]:
        """Returns, for each record, why it cannot be used; None if it can."""


class RecordsReader:
    """Reads pieces of shards with records of any kind.

    Args:
      shards: shards to read.
      kept_bytes: number of decompressed bytes of members to keep, as in `MemberReader`.
      judge: judge of records with a correct CRC, called once for each; None if all can be used.
    """

    def __init__(self, shards: Shards, kept_bytes: int = KEPT_BYTES, judge: Judge | None = None) -> None:
        self._judge = judge
        # Numbered across all shards. Judging every record in every epoch would cost as much as feeding them.
        self._firsts = np.cumsum([0, *(taken.shard.num_examples for taken in shards.segments)])
        self._is_judged = np.zeros(self._firsts[-1] if judge else 0, bool)
        self._useless: dict[int, str] = {}
        self.shards, self.sidecars = shards, Sidecars(shards)
        self._forward = ForwardReader(shards, self.sidecars)
        self._members = MemberReader(shards, self.sidecars, kept_bytes)

    def read(
        self, pieces: NDArray[np.int64], make_matrix: Callable[[int, int], U8] = aligned_matrix, text: str = ""
    ) -> Records:
        """Returns the records of pieces; a single empty record if there are none.

        Args:
          pieces: segment, first record and end of each piece to read, in order, int64 (p, 3).
          make_matrix: function that returns memory for the records, uint8 (1, columns), with any content.
          text: label of the progress bar; empty for none.

        Raises:
          DataError: a shard is missing or changed, or has a corrupt record that must not be skipped.
        """
        with self.shards.held(pieces):
            tasks = self._tasks(pieces)
            sizes, streamed = zip(*self.shards.in_parallel(self._begun, tasks), strict=True) if tasks else ((), ())
            ends = np.cumsum(sizes, dtype=np.int64).tolist()
            memory = make_matrix(1, max(1, ends[-1] if ends else 0))

            def fill(n: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
                first = ends[n] - sizes[n]
                bounds, good = self._fill(memory[0, first : ends[n]], tasks[n], streamed[n])
                return first + bounds, good

            found = self.shards.in_parallel(fill, range(len(tasks)), text)
        bounds = np.concatenate([np.zeros((0, 2), np.int64), *(bounds for bounds, _ in found)])
        good = np.concatenate([np.zeros(0, bool), *(good for _, good in found)])
        if not len(good):
            return Records(memory, np.zeros((1, 2), np.int64), np.ones(1, bool))
        good = self._judged(Records(memory, bounds, good), tasks)
        if not good.all():
            bounds[~good] = bounds[self.shards.stand_ins(good, tasks[0].segment)]
        return Records(memory, bounds, good)

    def read_part(self, segment: int, start: int, stop: int) -> list[bytes | None]:
        """Returns records start..stop-1 of a segment's shard; None for a corrupt one that is skipped.

        Raises:
          DataError: as for `read`.
        """
        task = ReadTask(segment, [(start, stop)])
        size, streamed = self._begun(task)
        memory = np.empty(size, np.uint8)
        bounds, good = self._fill(memory, task, streamed)
        places = zip(bounds.tolist(), good.tolist(), strict=True)
        return [memory[begin:end].tobytes() if is_good else None for (begin, end), is_good in places]

    def _begun(self, task: ReadTask) -> tuple[int, list[bytes] | None]:
        """Returns the number of bytes that a task needs and, for a shard that can only be streamed, its records."""
        segment = task.segment
        if not self._is_seekable(segment):
            streamed = [record for run in task.runs for record in self._forward.read(segment, *run)]
            return sum(map(len, streamed)), streamed
        return sum(self.offset(segment, stop) - self.offset(segment, start) for start, stop in task.runs), None

    def _fill(
        self, memory: U8, task: ReadTask, streamed: list[bytes] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Puts a task's records into memory; returns their bounds there, and a mask of good ones."""
        if streamed is None:
            return self._checked(memory, task)
        ends = np.cumsum(list(map(len, streamed)), dtype=np.int64)
        memory[:] = np.frombuffer(b"".join(streamed), np.uint8)
        return np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1), np.ones(len(ends), bool)

    def _checked(self, memory: U8, task: ReadTask) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Reads a task's frames into memory and checks them; returns the same as `_fill`."""
        segment = task.segment
        numbers = np.concatenate([np.arange(*run) for run in task.runs])
        begins, sizes = self._frames(task)
        places = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])  # in the memory
        is_packed = self._is_packed(segment)
        if is_packed:
            good = self._decompressed(memory, task, places)
            problems, crcs = frames.check(memory, places)
        else:
            good = np.ones(len(numbers), bool)
            with self.shards.opened(segment) as file:
                problems, crcs = frames.read(file, begins, places, memory)
        for i in np.flatnonzero(good & (problems != 0)).tolist():
            fault = framing.check(memory[places[i] : places[i + 1]].data)
            self.shards.corrupt(segment, int(numbers[i]), int(begins[i]), fault.text if fault else "")
            good[i] = False
        # The records are intact, but may be from another conversion, which only the manifest's CRCs reveal.
        shard = self.shards.segments[segment].shard
        if shard.crcs_crc32c is None and not is_packed and good.all() and len(numbers) == shard.num_examples:
            self.shards.check_crc(segment, crc32c.crc32c(memory.data))
        else:
            self.sidecars.check_crcs(segment, numbers[good], crcs[good], begins[good])
        bounds = np.stack([places[:-1] + framing.HEADER, places[1:] - framing.FOOTER], axis=1)
        return bounds, good

    def _judged(self, records: Records, tasks: list[ReadTask]) -> NDArray[np.bool_]:
        """Returns a mask of the tasks' records that are good and can be used, and reports the others."""
        judge, memory, good = self._judge, records.memory, records.good.copy()
        if judge is None:
            return good
        runs = [(task.segment, *run) for task in tasks for run in task.runs]
        numbers = np.concatenate([np.arange(start, stop) + self._firsts[segment] for segment, start, stop in runs])
        new = np.flatnonzero(good & ~self._is_judged[numbers]).tolist()

        def problems(rows: list[int]) -> list[str | None]:
            return judge.problems([memory[0, slice(*records.bounds[row])].tobytes() for row in rows])

        parts = [new[first : first + judge.rows] for first in range(0, len(new), judge.rows)]
        for part, found in zip(parts, self.shards.in_parallel(problems, parts), strict=True):
            for row, problem in zip(part, found, strict=True):
                if problem:
                    self._useless[int(numbers[row])] = problem
        self._is_judged[numbers[new]] = True
        if self._useless:
            for row in np.flatnonzero(good & np.isin(numbers, list(self._useless))).tolist():
                segment = int(np.searchsorted(self._firsts, numbers[row], side="right")) - 1
                record = int(numbers[row] - self._firsts[segment])
                self.shards.corrupt(segment, record, self.offset(segment, record), self._useless[int(numbers[row])])
                good[row] = False
        return good

    def _frames(self, task: ReadTask) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the offset in the decompressed shard and the size of each of a task's frames."""
        if self._is_packed(task.segment):
            table = self.sidecars.members(task.segment)
            ends = [table.begins_of(*run) for run in task.runs]
        else:
            offsets = self.sidecars.offsets(task.segment)
            ends = [offsets[start : stop + 1] for start, stop in task.runs]
        return np.concatenate([each[:-1] for each in ends]), np.concatenate([np.diff(each) for each in ends])

    def _decompressed(self, memory: U8, task: ReadTask, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Copies frames from members into the memory; returns a mask of frames whose member is not corrupt."""
        good, done = np.ones(len(places) - 1, bool), 0
        for run in task.runs:
            for member in self._members.read(task.segment, *run):
                stop = done + len(member.begins) - 1
                if member.frames is None:
                    good[done:stop] = False
                else:
                    memory[places[done] : places[stop]] = np.frombuffer(member.frames, np.uint8)
                done = stop
        return good

    def offset(self, segment: int, record: int) -> int:
        """Returns the byte offset of a record in a segment's decompressed shard.

        Raises:
          DataError: the shard's sidecar is missing or corrupt.
        """
        if self._is_packed(segment):
            return self.sidecars.members(segment).begin(record)
        return int(self.sidecars.offsets(segment)[record])

    def _tasks(self, pieces: NDArray[np.int64]) -> list[ReadTask]:
        """Returns tasks that together read the records of pieces in order."""
        parts: list[tuple[int, int, int]] = []
        for piece in pieces:
            is_packed = self._is_packed(int(piece[0]))
            if is_packed and self._is_seekable(int(piece[0])):
                parts += self._members.parts(piece[None])
            else:
                parts += self.shards.parts(piece[None], None if is_packed else _TASK)
        tasks: list[ReadTask] = []
        for is_packed, run in itertools.groupby(parts, lambda part: self._is_packed(part[0])):
            # A member is kept in memory for the thread that reads the rest of it.
            tasks += self.shards.tasks(run, 0 if is_packed else _TASK)
        return tasks

    def _is_seekable(self, segment: int) -> bool:
        return self.shards.segments[segment].shard.is_seekable

    def _is_packed(self, segment: int) -> bool:
        return bool(self.shards.segments[segment].shard.compression)

    def probe(self) -> None:
        """Reads the first and the last record of every seekable shard, which reveals shards from another conversion.

        Raises:
          DataError: as for `read`.
        """
        counts = {n: taken.shard.num_examples for n, taken in enumerate(self.shards.segments) if self._is_seekable(n)}
        ends = {(n, record) for n, count in counts.items() if count for record in (0, count - 1)}
        self.shards.in_parallel(lambda part: self.read_part(*part, part[1] + 1), sorted(ends))
