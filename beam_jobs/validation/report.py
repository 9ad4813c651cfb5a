"""What a validation finds: problems and totals, from one shard and of all, as values and as lines."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable

from beam_jobs.examples.statistics import PixelSums
from pipeline.errors import DataError

MOST_LISTED = 100  # problems of a shard, and of the data set


@dataclasses.dataclass(frozen=True, order=True)
class Problem:
    """One thing that is not as the manifest says.

    Attributes:
      shard: its number among all of the data set; their count for what is of no shard.
      record: its number in the file; -1 for what is of the whole file.
      file: a base name.
      place: of the record, as people read it; empty for what is of the whole file.
      text: what differs.
    """

    shard: int
    record: int
    file: str
    place: str
    text: str

    def __str__(self) -> str:
        """Returns the line."""
        return f"{self.file}{self.place}: {self.text}"


@dataclasses.dataclass
class ShardReport:
    """One shard, checked.

    Attributes:
      shard: its number among all of the data set.
      problems: the first `MOST_LISTED`.
      num_problems: how many there are.
      records, num_bytes: that were read.
      is_whole: whether every record that the manifest says was read and is an example; else its totals say nothing.
      labels: {label: examples}.
      sizes: {(height, width): images}.
      sums: of the pixels.
    """

    shard: int
    problems: list[Problem] = dataclasses.field(default_factory=list)
    num_problems: int = 0
    records: int = 0
    num_bytes: int = 0
    is_whole: bool = False
    labels: dict[int, int] = dataclasses.field(default_factory=dict)
    sizes: dict[tuple[int, int], int] = dataclasses.field(default_factory=dict)
    sums: PixelSums | None = None

    def add(self, problem: Problem) -> None:
        """Counts a problem, and keeps it if it is one of the first."""
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
    """Returns a report that was written.

    Raises:
      DataError: it is not whole.
    """
    try:
        content = json.loads(data)
        return Report(**{**content, "problems": tuple(content["problems"])})
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{file}: no report of a validation ({error})") from None


def combined(shards: list[ShardReport], more: Iterable[Problem]) -> Report:
    """Returns the report of all shards.

    Args:
      shards: each once.
      more: problems that need more than one shard to see.
    """
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
