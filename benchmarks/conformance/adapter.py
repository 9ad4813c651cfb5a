"""What an adapter is: a module with the constants, `write` and `Loader` of the `Adapter` protocol."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class Job:
    """What one rank of a job is asked for.

    Attributes:
      folder: what `write` wrote.
      scratch: a folder that the ranks of a job share, empty at its start.
      rank: this process.
      ranks: processes in the job.
      rows: rows of a batch of this rank.
      epoch: the first epoch, from 0.
      epochs: where to stop.
      saved: what `Loader.save` wrote for each rank of an earlier job, in the middle of `epoch`; empty: from the start.
      skip: leave out records that cannot be read.
      port: free on this machine, the same for all ranks.
    """

    folder: str
    scratch: str
    rank: int
    ranks: int
    rows: int
    epoch: int = 0
    epochs: int = 2
    saved: tuple[str, ...] = ()
    skip: bool = False
    port: int = 0

    @property
    def own(self) -> str:
        """What this rank saved, or the first one, where there were fewer ranks."""
        return self.saved[self.rank % len(self.saved)]


Batch = tuple[Sequence[bytes], Sequence[float] | None]
"""The records of a rank's step; their weights, 0 for what the peer itself declares to be padding. None: all count."""


class Loader(Protocol):
    """A peer's input on one rank."""

    def __init__(self, job: Job) -> None:
        """Opens it, resumed where `job.saved` says so."""

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yields the batches of an epoch, from where it was resumed."""

    def save(self, path: str) -> None:
        """Writes a file with the state after the last batch."""


class Adapter(Protocol):
    """A module of `adapters`.

    Attributes:
      TITLE: the name in the table.
      PACKAGES: distributions that must be installed, whose versions the table has.
      MODULES: what must be importable.
      DOCS: where the peer's documentation says to do it so.
      NOTE: a sentence about the choice.
      RESUMES: whether the documentation offers to resume in the middle of an epoch.
      ELASTIC: the same, with another number of ranks.
      SKIPS: the same, to leave out records that cannot be read.
      ENDLESS: batches straddle epochs.
    """

    TITLE: str
    PACKAGES: tuple[str, ...]
    MODULES: tuple[str, ...]
    DOCS: tuple[str, ...]
    NOTE: str
    RESUMES: bool
    ELASTIC: bool
    SKIPS: bool
    ENDLESS: bool
    Loader: type[Loader]

    def write(self, folder: str, shards: Iterable[range]) -> None:
        """Writes the records of `records`, in as many files where the format has any."""
