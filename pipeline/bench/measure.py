"""Measures the parts of an input in turn, so that changes in the machine's speed affect all of them equally."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tqdm
from numpy.typing import NDArray

from pipeline.batch.resident import DECODED_TOGETHER, decoder_of
from pipeline.bench.result import Sample
from pipeline.decode.forms import Form
from pipeline.errors import DataError, root_cause
from pipeline.files.paths import folder
from pipeline.graph_calls import error_of_input
from pipeline.read.shards import Shards
from pipeline.read.sidecars import Sidecars
from pipeline.read.window import LocalReader

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
READY = 5 + CORES  # elements that may be ready when a round begins: tf.data's buffers, plus one per parallel call
_LONGEST = 2.0  # seconds; a round that would take longer need not consist of whole windows
_SHORTEST = 0.1  # fraction of the desired time; a shorter first run is no measure of the speed
# Once they use less than this fraction of a core for this long, other parts' threads have filled their buffers.
_IDLE, _IDLE_SECONDS = 0.1, 0.005
_MOST_WAITS = 100
MOST_BYTES = 128 << 20  # 128 MiB of shards per round
_READ_BLOCK, _READ_TASK = 1 << 20, 8 << 20  # as in `RowsReader`
_FROM_DISK = 0.05  # fraction of the bytes; less than this is the system's own reading
_PROC_IO = pathlib.Path("/proc/self/io")


@dataclasses.dataclass
class Part:
    """A part of an input to measure.

    Attributes:
      name: name of the part.
      take: function that does a number of units of work (steps, windows, passes) and returns the number of rows.
      ready: number of units to take before each round, because they may have been made before it.
      whole: number of units that belong together, such as the steps of a window; a round takes a multiple of it.
      by_steps: whether --steps sets the number of units in a round.
      settles: whether to wait before each round until the threads of other parts are idle.
      count: number of units in a round.
    """

    name: str
    take: Callable[[int], int]
    ready: int = 0
    whole: int = 1
    by_steps: bool = False
    settles: bool = True
    count: int = 1

    def calibrate(self, seconds: float, steps: int | None) -> None:
        """Sets `count` so that a round takes about `seconds`, or to `steps`."""
        self.take(1)  # traces and compiles, which rounds must not include
        count, took = 1, _seconds(self.take, 1)
        while took < _SHORTEST * seconds:
            count *= 4
            took = _seconds(self.take, count)
        self.count = max(1, round(count * seconds / took))
        if steps is not None and self.by_steps:
            self.count = steps
        elif self.whole * took / count <= _LONGEST:
            self.count = -(-self.count // self.whole) * self.whole

    def sample(self) -> Sample:
        """Measures one round."""
        if self.settles:
            _settle()
        if self.ready:
            self.take(self.ready)
        began, processor = time.perf_counter(), time.process_time()
        rows = self.take(self.count)
        return Sample(rows, time.perf_counter() - began, time.process_time() - processor)


def measure(
    parts: Sequence[Part], rounds: int, seconds: float, steps: int | None, text: str
) -> dict[str, list[Sample]]:
    """Returns the samples of each part, by name; shows progress on a terminal.

    A sample takes about `seconds`; with `steps`, it takes that many steps if the part is counted in steps.
    """
    found: dict[str, list[Sample]] = {part.name: [] for part in parts}
    with tqdm.tqdm(total=len(parts) * (rounds + 1), desc=text, unit=" rounds", disable=None, leave=False) as bar:
        for part in parts:
            part.calibrate(seconds, steps)
            bar.update()
        for _ in range(rounds):
            for part in parts:
                found[part.name].append(part.sample())
                bar.update()
    return found


def _seconds(take: Callable[[int], int], count: int) -> float:
    began = time.perf_counter()
    take(count)
    return max(time.perf_counter() - began, 1e-9)


def _settle() -> None:
    """Waits until the threads of other parts are idle."""
    for _ in range(_MOST_WAITS):
        before = time.process_time()
        time.sleep(_IDLE_SECONDS)
        if time.process_time() - before < _IDLE * _IDLE_SECONDS:
            return


def decoding(form: Form, records: tf.Tensor, ids: tf.Tensor) -> Callable[[int], int]:
    """Returns a function that decodes images as for a split kept in memory, and returns their number.

    Args:
      form: form of the records.
      records: serialized records, string (n,). The function decodes 256 at a time, as many times as its argument.
      ids: ids of the records, int64 (n,).
    """
    count, decode = min(DECODED_TOGETHER, int(records.shape[0])), decoder_of(form)

    def take(times: int) -> int:
        for i in range(times):
            first = i * count % (int(records.shape[0]) - count + 1)
            decode(records[first : first + count], ids[first : first + count])
        return times * count

    return take


def taking(batches: Any, rows_of: Callable[[Any], Any]) -> Callable[[int], int]:
    """Returns a function that takes elements in one `tf.function`, as the trainer does, and returns the number of rows.

    Args:
      batches: endless dataset, distributed or not.
      rows_of: function that returns the number of rows of an element, an int or an int64 scalar.
    """
    iterator = iter(batches)

    @tf.function(autograph=False)
    def advance(elements: Iterator[Any], count: tf.Tensor) -> tf.Tensor:
        def body(done: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            element = next(elements)
            with tf.control_dependencies(tf.nest.flatten(element, expand_composites=True)):
                return done + 1, rows + rows_of(element)

        zero = tf.constant(0, tf.int64)
        return tf.while_loop(lambda done, _: done < count, body, (zero, zero), parallel_iterations=1)[1]

    def take(count: int) -> int:
        return int(advance(iterator, tf.constant(count, tf.int64)))

    return take


@contextlib.contextmanager
def input_errors() -> Iterator[None]:
    """Context that replaces TensorFlow's error for a failed input with the error that caused it.

    Raises:
      DataError: a shard is missing, changed or corrupt, or the user's function failed.
    """
    try:
        yield
    except tf.errors.OpError as error:
        said = root_cause(error.message)[1] or type(error).__name__
        raise (error_of_input(error.message) or DataError(said)) from None


@dataclasses.dataclass
class Traffic:
    """Bytes that were read, and how many of them came from disks (None if unknown)."""

    asked: int = 0
    delivered: int | None = 0

    def add(self, asked: int, before: int | None, after: int | None) -> None:
        """Adds a read; `before` and `after` are the results of `bytes_from_disks`."""
        self.asked += asked
        known = self.delivered is not None and before is not None and after is not None
        self.delivered = (self.delivered or 0) + (after or 0) - (before or 0) if known else None

    @property
    def source(self) -> str:
        """Text that says where the bytes came from."""
        if self.delivered is None:
            return "a disk or the page cache, this system does not say which"
        share = min(1.0, self.delivered / max(1, self.asked))
        if share < _FROM_DISK:
            return "the page cache"
        return "disk" if share > 1 - _FROM_DISK else f"disk ({share:.0%}) and the page cache"


@dataclasses.dataclass(frozen=True)
class Reads:
    """The records that a window or a split in memory reads: all of them, or some if there are many.

    Attributes:
      shards: shards of the selection.
      pieces: segment, first record and end of each piece, int64 (p, 3).
      row_of: row of each record, int64 (n,); None for a split kept in memory, which is read in its own order.
      traffic: bytes read by `bytes_only`.
    """

    shards: Shards
    pieces: NDArray[np.int64]
    row_of: NDArray[np.int64] | None
    traffic: Traffic = dataclasses.field(default_factory=Traffic)

    @property
    def rows(self) -> int:
        """Number of records."""
        return int((self.pieces[:, 2] - self.pieces[:, 1]).sum())

    def bytes_only(self, passes: int) -> int:
        """Reads the bytes `passes` times without looking at them; returns the number of rows."""
        sidecars = Sidecars(self.shards)
        is_packed = any(segment.shard.compression for segment in self.shards.segments)
        parts = self.shards.parts(self.pieces, None if is_packed else _READ_TASK)
        for _ in range(passes):
            before = bytes_from_disks()
            asked = self.shards.in_parallel(lambda part: self._read_part(sidecars, *part), parts)
            self.traffic.add(sum(asked), before, bytes_from_disks())
        return passes * self.rows

    def _read_part(self, sidecars: Sidecars, segment: int, start: int, stop: int) -> int:
        shard = self.shards.segments[segment].shard
        if not shard.is_seekable:  # records can only be read from the beginning
            begin, end = 0, shard.num_bytes
        elif shard.compression:
            table = sidecars.members(segment)
            begin, end = table.offsets[[table.member_of(start), table.member_of(stop - 1) + 1]].tolist()
        else:
            offsets = sidecars.offsets(segment)
            begin, end = int(offsets[start]), int(offsets[stop])
        block = memoryview(bytearray(min(_READ_BLOCK, max(1, end - begin))))
        with self.shards.opened(segment) as file:
            for offset in range(begin, end, len(block)):
                file.read_into(block[: end - offset], offset)
        return end - begin

    @property
    def source(self) -> str:
        """Text that says where the bytes came from."""
        is_remote = folder(self.shards.data_dir).is_remote
        return f"{self.shards.data_dir}, a remote folder" if is_remote else self.traffic.source

    def checked(self, reader: LocalReader, passes: int) -> int:
        """Has the reader read, check and place the records `passes` times; returns the number of rows."""
        for _ in range(passes):
            reader.arrays(self.pieces, self.row_of)
        return passes * self.rows


def limited(shards: Shards, pieces: NDArray[np.int64], row_of: NDArray[np.int64] | None) -> Reads:
    """Returns the first pieces, up to `MOST_BYTES`; whole shards if one of them can only be read sequentially."""
    counts = [segment.num_examples for segment in shards.segments]
    is_forward = not all(segment.shard.is_seekable for segment in shards.segments)
    if is_forward:
        pieces, row_of = np.array([[s, 0, n] for s, n in enumerate(counts) if n], np.int64), None
    taken, left = [], MOST_BYTES
    for segment, start, stop in pieces.tolist():
        shard = shards.segments[segment].shard
        record = max(1, shard.num_bytes // max(1, shard.num_examples))
        count = min(stop - start, max(1, left // record)) if not is_forward else stop - start
        taken.append([segment, start, start + count])
        left -= count * record
        if left < record:
            break
    reads = Reads(shards, np.array(taken, np.int64).reshape(-1, 3), None)
    if row_of is None:
        return reads
    return dataclasses.replace(reads, row_of=np.argsort(np.argsort(row_of[: reads.rows])))


def bytes_from_disks() -> int | None:
    """Returns the bytes that disks have delivered to this process so far; None if unknown."""
    try:
        lines = dict(line.split(": ") for line in _PROC_IO.read_text(encoding="ascii").splitlines())
        return int(lines["read_bytes"])
    except (OSError, ValueError, KeyError):
        return None
