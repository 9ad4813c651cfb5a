"""What a run saw, as JSON lines: the trainer writes it with `--log_keys`, `pipeline.audit --observed` checks it.

A file a worker. A header line, then a line for each step and replica:

    {"format": 1, "manifest_digest": "...", "spec": {...}, "worker": 0, "workers": 2, "replicas": 4}
    {"step": 17, "replica": 0, "keys": ["train#3", "train#1"], "weights": [1.0, 1.0]}

`step` is the global step, counted from 0; keys and weights are those of the replica's rows, in their order. A resumed
run appends another header. Steps after the last checkpoint are then done, and logged, again. A line that a kill cut is
at the end of a file; the next writer removes it.
"""

from __future__ import annotations

import dataclasses
import glob
import json
import math
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Self

from pipeline.errors import DataError, UsageError
from pipeline.order.order import MAX_STEP, OrderSpec

FORMAT = 1
SUFFIX = ".jsonl"


@dataclasses.dataclass(frozen=True)
class Header:
    """Who writes: the first line of a file, and the first of a resumed run.

    Attributes:
      manifest_digest: identity of the data.
      spec: the fields of the order spec.
      worker: index, 0..workers-1.
      workers, replicas: in the job; each worker feeds replicas / workers of them.
    """

    manifest_digest: str
    spec: dict[str, Any]
    worker: int
    workers: int
    replicas: int
    format: int = FORMAT

    @classmethod
    def of(cls, spec: OrderSpec, worker: int, workers: int, replicas: int) -> Header:
        """Returns the header of a worker of a run in the order of `spec`."""
        return cls(spec.manifest_digest, dataclasses.asdict(spec), worker, workers, replicas)


@dataclasses.dataclass(frozen=True)
class Entry:
    """One replica's rows of one step.

    Attributes:
      header: of the run that wrote it.
      step, replica: whose rows.
      keys, weights: of the rows, in order.
      where: file and line, for messages.
    """

    header: Header
    step: int
    replica: int
    keys: list[str]
    weights: list[float]
    where: str


def key_text(key: bytes) -> str:
    """Returns a record's key as the log has it; other keys have other texts, also where they are not UTF-8."""
    return key.decode("utf-8", "surrogateescape")


class KeyLogWriter:
    """Appends to one worker's log. A context manager.

    Call `flush` before a checkpoint is saved: a run that is killed and resumed then logs each step at least once.
    """

    def __init__(self, path: str | os.PathLike[str], header: Header) -> None:
        """Opens a log, new or of an earlier run, and writes the header.

        Raises:
          DataError: the file cannot be written.
        """
        self._path = pathlib.Path(path)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = self._path.open("ab")
            _cut_torn_line(self._path)
        except OSError as error:
            raise DataError(f"{self._path}: cannot be written: {error.strerror or error}") from None
        self._write(dataclasses.asdict(header))
        self.flush()

    def append(self, step: int, replica: int, keys: Sequence[bytes | str], weights: Sequence[float]) -> None:
        """Adds one replica's rows of one global step; `flush` makes them safe from a kill of the process.

        Raises:
          DataError: the file cannot be written.
        """
        texts = [key_text(key) if isinstance(key, bytes) else key for key in keys]
        values = [float(weight) for weight in weights]
        self._write({"step": int(step), "replica": int(replica), "keys": texts, "weights": values})

    def flush(self) -> None:
        """Hands all lines to the operating system.

        Raises:
          DataError: the file cannot be written.
        """
        try:
            self._file.flush()
        except OSError as error:
            raise DataError(f"{self._path}: cannot be written: {error.strerror or error}") from None

    def close(self) -> None:
        """Flushes and closes."""
        self.flush()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, content: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(content, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            raise DataError(f"{self._path}: cannot be written: {error.strerror or error}") from None


def _cut_torn_line(path: pathlib.Path) -> None:
    """Removes what follows the last newline: a line that a kill cut."""
    with path.open("r+b") as file:
        position = file.seek(0, os.SEEK_END)
        while position:
            start = max(0, position - (1 << 16))
            file.seek(start)
            newline = file.read(position - start).rfind(b"\n")
            if newline >= 0:
                position = start + newline + 1
                break
            position = start
        file.truncate(position)


def find(text: str) -> list[pathlib.Path]:
    """Returns the log files that a flag names: files, folders of *.jsonl and globs, joined by commas; sorted.

    Raises:
      UsageError: one of the names matches no file.
    """
    found: set[pathlib.Path] = set()
    for name in text.split(","):
        path = pathlib.Path(name)
        matches = (
            sorted(path.glob(f"*{SUFFIX}"))
            if path.is_dir()
            else [path]
            if path.is_file()
            else [match for match in map(pathlib.Path, glob.glob(name)) if match.is_file()]
        )
        if not matches:
            what = f"a folder without *{SUFFIX} files" if path.is_dir() else "no such file, folder or glob"
            raise UsageError(f"{name!r}: {what}; it must be logs that the trainer wrote with --log_keys")
        found |= set(matches)
    return sorted(found)


def read(path: pathlib.Path) -> Iterator[Header | Entry]:
    """Yields a log's headers and entries in order; a cut last line is left out.

    Raises:
      DataError: the file cannot be read, or a line is not what the format says: with the file and the line.
    """
    header: Header | None = None
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                item = _parse(line, header, f"{path}, line {number}")
                if isinstance(item, Header):
                    header = item
                yield item
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def _parse(line: bytes, header: Header | None, where: str) -> Header | Entry:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON ({error})") from None
    if isinstance(content, dict) and "format" in content:
        return _header(content, where)
    if header is None:
        raise DataError(f"{where}: the first line must be a header, with format, manifest_digest and spec")
    return _entry(content, header, where)


def _header(content: dict[str, Any], where: str) -> Header:
    if content["format"] != FORMAT:
        raise DataError(f"{where}: format {content['format']!r}; this release reads {FORMAT}")
    try:
        header = Header(**content)
    except TypeError as error:
        raise DataError(f"{where}: not a header: {error}") from None
    numbers = (header.worker, header.workers, header.replicas)
    if not all(_is_count(n) for n in numbers) or not isinstance(header.spec, dict):
        raise DataError(f"{where}: not a header: worker, workers and replicas must be whole numbers, spec an object")
    for field in dataclasses.fields(OrderSpec):
        value = header.spec.get(field.name)
        if type(value).__name__ != field.type:
            raise DataError(f"{where}: not a header: {field.name} of the spec is {value!r}, not of type {field.type}")
    if not header.worker < header.workers <= header.replicas or header.replicas % header.workers:
        raise DataError(f"{where}: worker {header.worker} of {header.workers} with {header.replicas} replicas in all")
    return header


def _entry(content: Any, header: Header, where: str) -> Entry:
    fields = ("step", "replica", "keys", "weights")
    if not isinstance(content, dict) or sorted(content) != sorted(fields):
        raise DataError(f"{where}: not a step of a replica: must have {', '.join(fields)}")
    step, replica, keys, weights = (content[field] for field in fields)
    if not (_is_count(step) and step < MAX_STEP and _is_count(replica) and replica < header.replicas):
        raise DataError(f"{where}: step {step!r}, replica {replica!r} of {header.replicas}: not whole numbers in range")
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise DataError(f"{where}: keys must be a list of texts")
    if not isinstance(weights, list) or len(weights) != len(keys) or not all(_is_weight(w) for w in weights):
        raise DataError(f"{where}: weights must be {len(keys)} finite numbers, one a key")
    return Entry(header, step, replica, keys, weights, where)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_weight(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
