"""What the logs of a run say, put together: the record and the weight of every row of every step."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.audit import key_log
from pipeline.audit.key_log import Entry, Header
from pipeline.errors import DataError
from pipeline.order.order import I64

NOT_LOGGED = -1


@dataclasses.dataclass(frozen=True)
class Difference:
    """Where a run differs from the order; the least is the first.

    Attributes:
      step, row: of the global batch.
      text: what differs.
    """

    step: int
    row: int
    text: str


@dataclasses.dataclass
class Seen:
    """A run's rows.

    Attributes:
      size: G.
      keys: by record id.
      records: by global step, int64 (G,): the record id, NOT_LOGGED, or less: -2 - the index in `unknown`.
      weights: by global step, float64 (G,).
      replicas: by global step, int64 (G,): the replica that logged a row.
      unknown: keys of no record of the split.
      again: rows that were logged again.
      workers: (index, workers) of the headers.
      differences: sizes that are wrong, steps done again with other records.
    """

    size: int
    keys: list[str]
    records: dict[int, I64] = dataclasses.field(default_factory=dict)
    weights: dict[int, NDArray[np.float64]] = dataclasses.field(default_factory=dict)
    replicas: dict[int, I64] = dataclasses.field(default_factory=dict)
    unknown: list[str] = dataclasses.field(default_factory=list)
    again: int = 0
    workers: set[tuple[int, int]] = dataclasses.field(default_factory=set)
    differences: list[Difference] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self._ids = {key: record for record, key in enumerate(self.keys)}

    def key(self, record: int) -> str:
        """Returns the key of a record, or of an unknown one."""
        return self.keys[record] if record >= 0 else self.unknown[-2 - record]

    def add(self, entry: Entry) -> None:
        """Takes in one replica's rows of a step; those of an earlier line must be equal."""
        rows = self.size // entry.header.replicas
        start = entry.replica * rows
        if len(entry.keys) != rows:
            self._differs(entry, start, f"{len(entry.keys)} rows, not {rows} ({entry.where})")
            return
        if entry.step not in self.records:
            self.records[entry.step] = np.full(self.size, NOT_LOGGED, np.int64)
            self.weights[entry.step] = np.zeros(self.size)
            self.replicas[entry.step] = np.zeros(self.size, np.int64)
        place = slice(start, start + rows)
        records, weights = np.array([self._id(key) for key in entry.keys]), np.array(entry.weights, np.float64)
        self._check_again(entry, place, records, weights)
        self.records[entry.step][place] = records
        self.weights[entry.step][place] = weights
        self.replicas[entry.step][place] = entry.replica

    def _check_again(self, entry: Entry, place: slice, records: I64, weights: NDArray[np.float64]) -> None:
        before, weights_before = self.records[entry.step][place], self.weights[entry.step][place]
        logged = before != NOT_LOGGED
        self.again += int(logged.sum())
        wrong = np.flatnonzero(logged & ((before != records) | (weights_before != weights)))
        if wrong.size:
            i = int(wrong[0])
            first, later = self.key(int(before[i])), self.key(int(records[i]))
            self._differs(
                entry,
                place.start + i,
                f"done again with other rows: first key {first!r}, weight {weights_before[i]:g}; "
                f"later key {later!r}, weight {weights[i]:g} ({entry.where})",
            )

    def _differs(self, entry: Entry, row: int, text: str) -> None:
        self.differences.append(Difference(entry.step, row, f"replica {entry.replica}: {text}"))

    def _id(self, key: str) -> int:
        if key not in self._ids:
            self._ids[key] = -2 - len(self.unknown)
            self.unknown.append(key)
        return self._ids[key]


def read_run(paths: Sequence[pathlib.Path], keys: list[str], header: Header) -> Seen:
    """Returns what all logs of a run say.

    Args:
      paths: the logs, one a worker.
      keys: by record id.
      header: what all headers must agree with: data and order spec.

    Raises:
      DataError: a log cannot be read, or is of other data or of another order.
    """
    seen = Seen(int(header.spec["global_batch_size"]), keys)
    for path in paths:
        for item in key_log.read(path):
            if isinstance(item, Entry):
                seen.add(item)
                continue
            differences = _differences(header, item)
            if differences:
                raise DataError(f"{path}: a header of another order: {differences}; audit each run by itself")
            seen.workers.add((item.worker, item.workers))
    return seen


def first_header(paths: Sequence[pathlib.Path]) -> Header:
    """Returns the first header of the first log that has one.

    Raises:
      DataError: none has one.
    """
    for path in paths:
        for item in key_log.read(path):
            if isinstance(item, Header):
                return item
    raise DataError(f"{paths[0]}: no header: the run ended before it wrote one")


def _differences(one: Header, other: Header) -> str:
    fields = sorted(one.spec.keys() | other.spec.keys())
    pairs: list[tuple[str, Any, Any]] = [(f, one.spec.get(f), other.spec.get(f)) for f in fields]
    return ", ".join(f"{name}={json.dumps(b)}, not {json.dumps(a)}" for name, a, b in pairs if a != b)
