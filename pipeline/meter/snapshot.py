"""What a meter has measured, as numbers and as one line."""

from __future__ import annotations

import dataclasses

from pipeline.commands.text import count_of, size_of
from pipeline.meter.batches import Content
from pipeline.read.cache_counts import CacheCounts

_MB = 1e6
_NO_CACHE = CacheCounts()


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What a loop has got of its input so far, and how long it waited for it.

    Times and rates are of all batches but the first, which includes the start of the input: from the moment when the
    loop got the first batch to the moment when it got the latest.

    Attributes:
      total: what all batches hold.
      first: what the first one holds; nothing where the first is not part of `total`.
      start_seconds: that the loop waited for the first batch.
      seconds: since then.
      waiting_seconds: of these, in `next`.
      resident_bytes, peak_bytes: memory of this process now, and at most since it began; 0 where it is unknown.
      cache: what the caches of all inputs of this process did (`cache_dir` of `input_fn`).
    """

    total: Content
    first: Content
    start_seconds: float
    seconds: float
    waiting_seconds: float
    resident_bytes: int
    peak_bytes: int
    cache: CacheCounts = _NO_CACHE

    @property
    def waiting_share(self) -> float:
        """Of the time, 0..1: 0 is a loop that never waits for its input, 1 one that does nothing else."""
        return self.waiting_seconds / self.seconds if self.seconds else 0.0

    @property
    def batches_per_second(self) -> float:
        """Batches that the loop got per second."""
        return self._rate(self._timed.batches)

    @property
    def rows_per_second(self) -> float:
        """Rows per second, padding included."""
        return self._rate(self._timed.rows)

    @property
    def padding_per_second(self) -> float | None:
        """Rows of weight 0 per second; None where they are unknown."""
        padding = self._timed.padding
        return None if padding is None else self._rate(padding)

    @property
    def bytes_per_second(self) -> float:
        """Bytes of the batches per second."""
        return self._rate(self._timed.num_bytes)

    def since(self, earlier: Snapshot) -> Snapshot:
        """Returns what came after an earlier snapshot of the same meter: the figures of an interval."""
        return dataclasses.replace(
            self,
            total=self.total.plus(earlier.total, -1),
            first=self.first.plus(earlier.first, -1),
            seconds=self.seconds - earlier.seconds,
            waiting_seconds=self.waiting_seconds - earlier.waiting_seconds,
            cache=self.cache.plus(earlier.cache, -1),
        )

    def __str__(self) -> str:
        """Returns one line for people."""
        if not self.total.batches:
            return "no batch yet"
        start = f"first batch after {self.start_seconds:.2f} s"
        memory = f"memory {size_of(self.resident_bytes)}, at most {size_of(self.peak_bytes)}"
        memory += f"; {self.cache}" if any(self.cache) else ""
        if not self._timed.batches:
            return f"{count_of(self.total.rows, 'row')}, {start}; {memory}"
        padding = self.padding_per_second
        padded = "" if padding is None else f", {padding:,.1f} of them padding"
        return (
            f"waited {self.waiting_share:.1%} of {self.seconds:.3g} s ({start}); "
            f"{self.batches_per_second:,.1f} batches/s, {self.rows_per_second:,.0f} rows/s{padded}, "
            f"{self.bytes_per_second / _MB:,.1f} MB/s; {memory}"
        )

    @property
    def _timed(self) -> Content:
        return self.total.plus(self.first, -1)

    def _rate(self, amount: int) -> float:
        return amount / self.seconds if self.seconds else 0.0
