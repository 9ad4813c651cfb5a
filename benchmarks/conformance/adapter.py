"""The interface of adapters: a module with the constants, `write` and `Loader` of the `Adapter` protocol."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class Job:
    """The task of one rank of a job.

    Attributes:
      folder: folder that `write` has written.
      scratch: folder shared by the ranks of a job, initially empty.
      rank: index of this process.
      ranks: number of processes in the job.
      rows: number of rows in a batch of this rank.
      epoch: first epoch, counted from 0.
      epochs: number of the epoch to stop before.
      saved: files that `Loader.save` wrote for each rank of an earlier job, in the middle of `epoch`; empty to start
        from the beginning.
      skip: whether to skip records that cannot be read.
      port: free port on this machine, the same for all ranks.
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
        """The file that this rank saved, or another rank's if there were fewer ranks before."""
        return self.saved[self.rank % len(self.saved)]


Batch = tuple[Sequence[bytes], Sequence[float] | None]
"""The records of a rank's step; their weights, 0 for what the peer itself declares to be padding. None: all count."""


class Loader(Protocol):
    """A peer's input on one rank."""

    def __init__(self, job: Job) -> None:
        """Opens the input, resumed from `job.saved` if that is not empty."""

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yields the batches of an epoch, from the point of resuming."""

    def save(self, path: str) -> None:
        """Writes a file with the state after the last batch."""


class Adapter(Protocol):
    """A module of `adapters`.

    Attributes:
      TITLE: name in the table.
      PACKAGES: distributions that must be installed; the table shows their versions.
      MODULES: modules that must be importable.
      DOCS: pages of the peer's documentation that recommend this setup.
      NOTE: sentence about the setup.
      RESUMES: whether the documentation promises resuming in the middle of an epoch.
      ELASTIC: whether it promises that with another number of ranks.
      SKIPS: whether it promises skipping records that cannot be read.
      ENDLESS: whether batches may straddle epochs.
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
        """Writes the records of `records`, one file per shard if the format has files."""
