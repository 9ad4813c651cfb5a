"""The policy for corrupt records: an error that names the record, or a row of weight 0 and a line in the log."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections.abc import Sequence

from pipeline.errors import DataError, to_run
from pipeline.files.remote import in_command

_log = logging.getLogger("pipeline")
_lock = threading.Lock()


@dataclasses.dataclass(frozen=True, order=True)
class CorruptRecord:
    """A corrupt record.

    Attributes:
      file: path of the shard.
      record: number of the record in the shard, from 0.
      offset: byte offset of its frame in the (decompressed) shard.
      problem: description of what is wrong.
    """

    file: str
    record: int
    offset: int
    problem: str

    @property
    def error(self) -> DataError:
        """Error that names the record."""
        return DataError(self.problem, path=self.file, record=self.record, offset=self.offset)

    def __str__(self) -> str:
        return str(self.error)


_skipped: dict[str, set[CorruptRecord]] = {}


def skipped_records(data_dir: object) -> tuple[CorruptRecord, ...]:
    """Returns the distinct corrupt records of a data set that inputs of this process have skipped, in order."""
    with _lock:
        return tuple(sorted(_skipped.get(_key(data_dir), ())))


def _key(data_dir: object) -> str:
    text = str(data_dir)
    return text.rstrip("/") if "://" in text else os.path.abspath(text)


@dataclasses.dataclass(frozen=True)
class Corruption:
    """One input's handling of corrupt records; it may find the same ones in every epoch.

    Attributes:
      data_dir: folder of the data set.
      policy: `raise`, or `skip`, which gives the row weight 0.
      most: number of different records that may be skipped; one more is an error.
    """

    data_dir: str
    policy: str = "raise"
    most: int = 0
    _seen: set[CorruptRecord] = dataclasses.field(default_factory=set, repr=False)

    @property
    def skips(self) -> bool:
        """Whether corrupt records are skipped."""
        return self.policy == "skip"

    def found(self, record: CorruptRecord) -> None:
        """Reports a corrupt record; if this returns, the caller skips it.

        Raises:
          DataError: the policy is to raise, or too many records would be skipped.
        """
        self.found_together(record.error, [record])

    def found_together(self, what: DataError, records: Sequence[CorruptRecord], together: range = range(0)) -> None:
        """Reports records that are corrupt for the same reason, in one line; if this returns, the caller skips them.

        Args:
          what: error, without advice.
          records: records of one file; all of them count.
          together: numbers of all records that are corrupt for this reason; other reads may find the rest.

        Raises:
          DataError: see `found`.
        """
        if not self.skips:
            raise what.advised(self.advice)
        with _lock:
            new = [record for record in records if record not in self._seen]
            if not new:
                return
            before = len(self._seen)
            if before + len(new) > self.most:
                others = sum(r.file != new[0].file or r.record not in together for r in self._seen)
                raise what.advised(f"{self._over(others, len(together))}; {self.advice}")
            self._seen.update(new)
            _skipped.setdefault(_key(self.data_dir), set()).update(new)
        _log.warning("skipped %s (%d of at most %d)", what, before + len(new), self.most)

    def _over(self, others: int, together: int) -> str:
        if not together:
            return f"{others} others were skipped, which is max_corrupt"
        skipped = f"; {others} others were skipped" if others else ""
        return f"these are {together} records, over max_corrupt={self.most}{skipped}: give {others + together} or more"

    @property
    def advice(self) -> str:
        """Advice for an error: the command that lists everything that is wrong."""
        return f"to see all that is wrong: {to_run('beam_jobs.validate')} {in_command(self.data_dir)}"
