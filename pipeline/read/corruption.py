"""What happens to corrupt records: an error that names them, or a row of weight 0 and a line in the log."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading

from pipeline.errors import DataError
from pipeline.records.walk import location

POLICIES = ("raise", "skip")
MAX_CORRUPT = 100

_log = logging.getLogger("pipeline")


@dataclasses.dataclass(frozen=True, order=True)
class CorruptRecord:
    """A record that was left out.

    Attributes:
      file: the shard's path.
      record: its number in the shard, from 0.
      offset: of its frame in the (uncompressed) shard, bytes.
      problem: what is wrong.
    """

    file: str
    record: int
    offset: int
    problem: str

    def __str__(self) -> str:
        return f"{location(self.file, self.record, self.offset)}: {self.problem}"


_skipped: dict[str, set[CorruptRecord]] = {}
_lock = threading.Lock()


def skipped_records(data_dir: object) -> tuple[CorruptRecord, ...]:
    """Returns the corrupt records of a data set that inputs of this process left out, each once, in order."""
    with _lock:
        return tuple(sorted(_skipped.get(_key(data_dir), ())))


def _key(data_dir: object) -> str:
    text = str(data_dir)
    return text.rstrip("/") if "://" in text else os.path.abspath(text)


@dataclasses.dataclass(frozen=True)
class Corruption:
    """What one input does about corrupt records. It may find the same one in every epoch.

    Attributes:
      data_dir: of the data set.
      policy: `raise`, or `skip`: its row gets weight 0.
      most: different records that may be skipped; one more is an error.
    """

    data_dir: str
    policy: str = "raise"
    most: int = MAX_CORRUPT
    _seen: set[CorruptRecord] = dataclasses.field(default_factory=set, repr=False)

    @property
    def skips(self) -> bool:
        """Whether corrupt records are left out."""
        return self.policy == "skip"

    def found(self, record: CorruptRecord) -> None:
        """Reports a corrupt record; if this returns, the caller leaves the record out.

        Raises:
          DataError: the policy is to raise, or too many were skipped.
        """
        if not self.skips:
            raise DataError(f"{record}; {self.advice}")
        with _lock:
            if record in self._seen:
                return
            if len(self._seen) >= self.most:
                raise DataError(f"{record}; {self.most} others were skipped, which is max_corrupt; {self.advice}")
            self._seen.add(record)
            _skipped.setdefault(_key(self.data_dir), set()).add(record)
            count = len(self._seen)
        _log.warning("skipped %s (%d of at most %d)", record, count, self.most)

    @property
    def advice(self) -> str:
        """What an error ends with."""
        return f"to see all that is wrong: python -m beam_jobs.validate {self.data_dir}"
