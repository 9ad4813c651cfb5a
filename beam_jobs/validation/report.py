"""What a validation finds: problems and totals, of one shard and of all, as values and as lines."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable

from beam_jobs.examples.statistics import PixelSums
from pipeline.errors import DataError

MOST_LISTED = 100  # problems, per shard and for the data set


@dataclasses.dataclass(frozen=True, order=True)
class Problem:
    """One difference from the manifest.

    Attributes:
      shard: its number among all of the data set; their count for a problem of no shard.
      record: its number in the file; -1 for a problem of the whole file.
      file: a base name.
      where: the record and its offset as text; empty for a problem of the whole file.
      text: what differs.
    """

    shard: int
    record: int
    file: str
    where: str
    text: str

    def __str__(self) -> str:
        """Returns the line."""
        return f"{self.file}{self.where}: {self.text}"


@dataclasses.dataclass
class ShardReport:
    """One shard, checked.

    Attributes:
      shard: its number among all of the data set.
      sums: of the pixels, if images are decoded.
      problems: the first `MOST_LISTED`.
      num_problems: how many there are.
      records, num_bytes: that were read.
      is_whole: whether every record of the manifest was read and is a valid example; else its totals mean nothing.
      labels: how many examples have each label that is in range.
      sizes: {(height, width): images}; of raw images, and of others if they are decoded.
    """

    shard: int
    sums: PixelSums
    problems: list[Problem] = dataclasses.field(default_factory=list)
    num_problems: int = 0
    records: int = 0
    num_bytes: int = 0
    is_whole: bool = False
    labels: Counter[int] = dataclasses.field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] = dataclasses.field(default_factory=Counter)

    def add(self, problem: Problem) -> None:
        """Counts a problem, and keeps it if it is among the first."""
        self.num_problems += 1
        if len(self.problems) < MOST_LISTED:
            self.problems.append(problem)


@dataclasses.dataclass(frozen=True)
class Report:
    """A data set, checked.

    Attributes:
      problems: the first `MOST_LISTED`, as lines.
      num_problems: how many there are.
      bad_shards: shards that have one.
      records, num_bytes: that were read.
    """

    problems: tuple[str, ...]
    num_problems: int
    bad_shards: int
    records: int
    num_bytes: int

    def to_bytes(self) -> bytes:
        """Returns it as JSON."""
        return (json.dumps(dataclasses.asdict(self), indent=1) + "\n").encode()


def parse(data: bytes, file: str) -> Report:
    """Returns a report from its JSON.

    Raises:
      DataError: it is not a complete report.
    """
    try:
        content = json.loads(data)
        return Report(**{**content, "problems": tuple(content["problems"])})
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{file}: is not a validation report ({error})") from None


def combined(shards: list[ShardReport], more: Iterable[Problem]) -> Report:
    """Returns the report of all shards, and of the problems that concern more than one of them."""
    others = sorted(more)
    listed = sorted([*(problem for shard in shards for problem in shard.problems), *others])[:MOST_LISTED]
    bad = {shard.shard for shard in shards if shard.num_problems} | {problem.shard for problem in others}
    return Report(
        problems=tuple(map(str, listed)),
        num_problems=sum(shard.num_problems for shard in shards) + len(others),
        bad_shards=len(bad & {shard.shard for shard in shards}),
        records=sum(shard.records for shard in shards),
        num_bytes=sum(shard.num_bytes for shard in shards),
    )
