"""What the logs of a run say, put together: the record and the weight of every row of every step."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.audit import key_log
from pipeline.audit.key_log import Entry, Header
from pipeline.errors import DataError
from pipeline.order.order import OrderSpec

NOT_LOGGED = -1
_ROW = np.dtype([("record", np.int64), ("weight", np.float64), ("replica", np.int64)])


class Difference(NamedTuple):
    """Where a run differs from the order.

    Attributes:
      step, row: of the global batch.
      text: what differs.
    """

    step: int
    row: int
    text: str


class Seen:
    """A run's rows.

    Attributes:
      names: the keys: by record id those of the split, then unknown ones.
      steps: the rows (G,) of each global step: `record`, an index into `names` or NOT_LOGGED, `weight`, `replica`.
      again: rows that were logged again.
      workers: (index, workers) of the headers.
      differences: entries of a wrong size, rows done again with other records.
    """

    def __init__(self, size: int, keys: Sequence[str]) -> None:
        """Takes G and the keys of the split; no row is logged yet."""
        self._size = size
        self._ids = {key: record for record, key in enumerate(keys)}
        self.names = list(keys)
        self.steps: dict[int, NDArray[Any]] = {}
        self.again = 0
        self.workers: set[tuple[int, int]] = set()
        self.differences: list[Difference] = []

    def add(self, where: str, header: Header, entry: Entry) -> None:
        """Takes in one replica's rows of a step; those of an earlier line must be equal."""
        count = self._size // header.replicas
        start = entry.replica * count
        if len(entry.keys) != count:
            self._differs(entry, start, f"{len(entry.keys)} rows, not {count} ({where})")
            return
        nothing = np.full(self._size, np.array((NOT_LOGGED, 0, 0), _ROW))
        before = self.steps.setdefault(entry.step, nothing)[start : start + count]
        rows = np.empty(count, _ROW)
        rows["record"], rows["weight"], rows["replica"] = [*map(self._id, entry.keys)], entry.weights, entry.replica
        logged = before["record"] != NOT_LOGGED
        self.again += int(logged.sum())
        wrong = logged & ((before["record"] != rows["record"]) | (before["weight"] != rows["weight"]))
        for i in np.flatnonzero(wrong)[:1].tolist():
            first, later = (f"key {self.names[r['record']]!r}, weight {r['weight']:g}" for r in (before[i], rows[i]))
            self._differs(entry, start + i, f"done again with other rows: first {first}; later {later} ({where})")
        before[:] = rows

    def _differs(self, entry: Entry, row: int, text: str) -> None:
        self.differences.append(Difference(entry.step, row, f"replica {entry.replica}: {text}"))

    def _id(self, key: str) -> int:
        if key not in self._ids:
            self._ids[key] = len(self.names)
            self.names.append(key)
        return self._ids[key]


def read_run(paths: Sequence[pathlib.Path], keys: Sequence[str], spec: OrderSpec) -> Seen:
    """Returns what all logs of a run say.

    Args:
      paths: the logs, one per worker.
      keys: by record id.
      spec: what all headers must agree with.

    Raises:
      DataError: a log cannot be read, or is of other data or of another order.
    """
    seen = Seen(spec.global_batch_size, keys)
    for path in paths:
        for where, header, entry in key_log.read(path):
            if entry is not None:
                seen.add(where, header, entry)
                continue
            differences = spec.differences(dataclasses.asdict(header.spec)).items()
            if differences:
                listed = ", ".join(f"{name}={there!r}, not {here!r}" for name, (here, there) in differences)
                raise DataError(f"{where}: a header of another order: {listed}; audit each run by itself")
            seen.workers.add((header.worker, header.workers))
    return seen


def first_header(paths: Sequence[pathlib.Path]) -> Header:
    """Returns the first header of the first log that has one.

    Raises:
      DataError: none has one.
    """
    for path in paths:
        for _, header, _ in key_log.read(path):
            return header
    raise DataError(f"{paths[0]}: no header: the run ended before it wrote one")
