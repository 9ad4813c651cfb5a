"""What a driver of steps reports: steps that are done, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from trainer.parameter_server.ledger import Tally
from trainer.parameter_server.rows import Row


class Finished(NamedTuple):
    """Steps up to one of them, all applied.

    Attributes:
      stop: the first step after them.
      rows: of the steps that were made anew, by step.
      finite: whether all losses and gradients were.
      waited: seconds that the batches took, of each worker on average.
    """

    stop: int
    rows: dict[int, Row]
    finite: bool
    waited: float


class Driver(Protocol):
    """Has workers make steps.

    Attributes:
      reached: the first step that is not applied, between two runs.
    """

    reached: int

    def run(self, first: int, end: int, cut: Callable[[int], int], stops: Callable[[], bool]) -> Iterator[Finished]:
        """Yields steps as they are done, to `end`, or less far once `stops` says so; then all that was begun is done.

        Args:
          first, end: the steps.
          cut: returns the next step after one at which a report has to end.
          stops: asked often; raises where the job cannot go on.
        """

    def tally(self) -> Tally:
        """Returns what the driver itself knows of the last run."""
