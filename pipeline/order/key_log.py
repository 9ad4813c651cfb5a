"""Logs of the keys that a run saw, as JSON lines, written by `trainer.run --log_keys` and checked by `pipeline.audit`.

One file per worker. A header line, then a line for each step and replica:

    {"manifest_digest": "...", "spec": {...}, "worker": 0, "workers": 2, "replicas": 4, "format": 1, "start": 0}
    {"step": 17, "replica": 0, "keys": ["train#3", "train#1"], "weights": [1.0, 1.0]}

`step` is the global step, counted from 0; keys and weights belong to the replica's rows, in order. Under a schedule
(docs/views.md) `step` is the number of the source's own unit, a line has the replica's part of that unit, and the
global step that takes it is added: `"global_step": 5`. A resumed run appends another header, with the global step at
which it begins, `start`, and logs the steps from there on again. If a kill cuts the last line of a file short, the next
writer removes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import mmap
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple, Self

from pipeline.errors import DataError, named
from pipeline.files.fields import OPTIONAL, from_json
from pipeline.files.reading import opened
from pipeline.order.order import MAX_STEP, MixtureSpec, OrderSpec, Spec
from pipeline.order.shares import rows_in_blocks

FORMAT = 1
SUFFIX = ".jsonl"
_MARK = b'"format"'  # in every header; in an entry's keys its quotes would be escaped


@dataclasses.dataclass(frozen=True)
class Header:
    """The first line of a file, and of each resumed run's part: the order, and the worker that writes.

    Attributes:
      manifest_digest: digest that identifies the data.
      spec: arguments of the order.
      worker: index of the worker, 0..workers-1.
      workers, replicas: number of workers and replicas in the job; each worker feeds replicas / workers of them.
      start: global step at which the job begins; None if an earlier release did not record it.
    """

    manifest_digest: str
    spec: OrderSpec
    worker: int
    workers: int
    replicas: int
    format: int = FORMAT
    start: int | None = dataclasses.field(default=None, metadata={OPTIONAL: True})

    @classmethod
    def of(cls, spec: OrderSpec, worker: int, workers: int, replicas: int, start: int | None = None) -> Header:
        """Returns the header for a worker of a run in the order of `spec`."""
        return cls(spec.manifest_digest, spec, worker, workers, replicas, start=start)


@dataclasses.dataclass(frozen=True)
class Entry:
    """One replica's rows of one step.

    Attributes:
      step, replica: step and replica of the rows.
      keys, weights: keys and weights of the rows, in order.
      global_step: global step that takes the unit `step` of a source under a schedule; None for `step` itself.
    """

    step: int
    replica: int
    keys: tuple[str, ...]
    weights: tuple[float, ...]
    global_step: int | None = dataclasses.field(default=None, metadata={OPTIONAL: True})


class Part(NamedTuple):
    """The part of a file logged by one job: from its header to the next one.

    Attributes:
      header: header of the job.
      start: global step at which the job began, or its first entry's if the header lacks it; None without either.
    """

    header: Header
    start: int | None


def key_text(key: bytes) -> str:
    """Returns a record's key as text for the log; different keys have different texts, UTF-8 or not."""
    return key.decode("utf-8", "surrogateescape")


class KeyLogWriter:
    """Appends to one worker's log; a context manager.

    Call `flush` before saving a checkpoint, so that a run that is killed and resumed logs each step at least once.
    """

    def __init__(self, path: str | os.PathLike[str], header: Header) -> None:
        """Opens a log, or continues an earlier run's, and writes the header.

        Raises:
          DataError: the file cannot be written.
        """
        self._named = functools.partial(named, path, "cannot be written")
        path = pathlib.Path(path)
        with self._named():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = path.open("ab")
            _cut_torn_line(path)
        self._write(header)
        self.flush()

    def append(
        self,
        step: int,
        replica: int,
        keys: Sequence[bytes | str],
        weights: Sequence[float],
        global_step: int | None = None,
    ) -> None:
        """Adds one replica's rows of one step: an `Entry`. After `flush` they survive a killed process.

        Raises:
          DataError: the file cannot be written.
        """
        texts = tuple(key_text(key) if isinstance(key, bytes) else key for key in keys)
        self._write(Entry(int(step), int(replica), texts, tuple(map(float, weights)), global_step))

    def flush(self) -> None:
        """Hands all lines to the operating system.

        Raises:
          DataError: the file cannot be written.
        """
        with self._named():
            self._file.flush()

    def close(self) -> None:
        """Flushes and closes."""
        self.flush()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, line: Header | Entry) -> None:
        with self._named():
            fields = {name: value for name, value in vars(line).items() if value is not None}
            self._file.write(json.dumps(fields, default=vars, separators=(",", ":")).encode() + b"\n")


def _cut_torn_line(path: pathlib.Path) -> None:
    """Removes text after the last newline: a line cut short by a kill."""
    with path.open("r+b") as file:
        if os.path.getsize(path):
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                end = content.rfind(b"\n") + 1
            file.truncate(end)


def parts(path: pathlib.Path) -> list[Part]:
    """Returns the parts of a log. Only headers and the entries after them are parsed; raises errors like `read`."""
    found: list[Part] = []
    for _, header, entry in read(path, only_starts=True):
        if entry is None:
            found.append(Part(header, header.start))
        elif header.start is None:
            found[-1] = Part(header, entry.step if entry.global_step is None else entry.global_step)
    return found


def read(path: pathlib.Path, only_starts: bool = False) -> Iterator[tuple[str, Header, Entry | None]]:
    """Yields the file and line, the header in force, and the entry, or None if the line is itself a header.

    A last line that was cut short is left out.

    Args:
      path: file of the log.
      only_starts: whether to leave out entries except the first after each header.

    Raises:
      DataError: the file cannot be read, or a line does not have the format.
    """
    header: Header | None = None
    entry: Entry | None = None
    with named(path, "cannot be read"), opened(path) as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            if only_starts and entry is not None and _MARK not in line:
                continue
            try:
                header, entry = _parsed(line, header)
            except ValueError as error:
                raise DataError(str(error), path=path, part=f"line {number}") from None
            yield f"{path}, line {number}", header, entry


def _parsed(line: bytes, header: Header | None) -> tuple[Header, Entry | None]:
    """Returns the header in force from this line on, and the line's entry if it is not a header."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON ({error})") from None
    content: dict[str, Any] = from_json(dict[str, Any], parsed)
    if "format" in content:
        return _header(content), None
    if header is None:
        raise ValueError("the first line must be a header, with format, manifest_digest and spec")
    return header, _entry(content, header)


def _header(content: dict[str, Any]) -> Header:
    if content["format"] != FORMAT:
        raise ValueError(f"format {content['format']!r}; this release reads {FORMAT}")
    header: Header = from_json(Header, content)
    if not 0 <= header.worker < header.workers <= header.replicas or header.replicas % header.workers:
        raise ValueError(f"worker {header.worker} of {header.workers} with {header.replicas} replicas in all")
    if header.start is not None and not 0 <= header.start < MAX_STEP:
        raise ValueError(f"start {header.start}: not in range")
    return header


def _entry(content: dict[str, Any], header: Header) -> Entry:
    entry: Entry = from_json(Entry, content)
    if not (0 <= entry.step < MAX_STEP and 0 <= entry.replica < header.replicas):
        raise ValueError(f"step {entry.step}, replica {entry.replica} of {header.replicas}: not in range")
    if len(entry.weights) != len(entry.keys) or not all(map(math.isfinite, entry.weights)):
        raise ValueError(f"weights must be {len(entry.keys)} finite numbers, one per key")
    return entry


class SourceLogs:
    """One worker's key logs; a context manager.

    Without a mixture this is `DIR/worker-00000.jsonl`; with one, each source has its own: `DIR/source-0/...` and so on.
    """

    def __init__(self, folder: str, spec: Spec, worker: int, workers: int, replicas: int, start_step: int) -> None:
        """Opens the logs and writes their headers, with `start_step` as the global step at which the job begins.

        Raises:
          DataError: a file cannot be written.
        """
        mixture = spec if isinstance(spec, MixtureSpec) else MixtureSpec((spec,))
        parts, self._shares, self._is_scheduled = mixture.parts, mixture.shares, bool(mixture.schedule)
        places = [pathlib.Path(folder) / (f"source-{i}" if len(parts) > 1 else "") for i in range(len(parts))]
        self._open = contextlib.ExitStack()
        self._logs = [
            self._open.enter_context(
                KeyLogWriter(
                    place / f"worker-{worker:05d}{SUFFIX}", Header.of(part, worker, workers, replicas, start_step)
                )
            )
            for part, place in zip(parts, places, strict=True)
        ]

    def append(self, step: int, replica: int, keys: Sequence[bytes | str], weights: Sequence[float]) -> None:
        """Adds one replica's rows of one global step, each to the log of its source."""
        units = self._shares.units_at(step)
        sizes = [self._shares.units[source] for source, _ in units]
        parts = sum(sizes) // len(keys)
        at = step if self._is_scheduled else None
        for (source, own), rows in zip(units, rows_in_blocks([size // parts for size in sizes]), strict=True):
            self._logs[source].append(own, replica, [keys[row] for row in rows], [weights[row] for row in rows], at)

    def flush(self) -> None:
        """Hands all lines to the operating system."""
        for log in self._logs:
            log.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
