"""What bounds the speed of a run, and by how much: a pure function of what was measured."""

from __future__ import annotations

import dataclasses

INPUT, COMPUTE, COMMUNICATION = "input-bound", "compute-bound", "communication-bound"


@dataclasses.dataclass(frozen=True)
class Times:
    """What was measured of a run, without the first update, which is compiled.

    Attributes:
      rows: of a step.
      steps: updates.
      seconds: that they took.
      waited: of these, seconds of waiting for batches.
      exchange: seconds in which the replicas add up gradients of a step, measured apart; 0 of one replica; None: not
        measured.
      constant: seconds of a step with one constant batch; None: not measured.
    """

    rows: int
    steps: int
    seconds: float
    waited: float
    exchange: float | None = None
    constant: float | None = None

    @property
    def waiting(self) -> float:
        """Share of the time in which steps waited for their batches."""
        return self.waited / self.seconds

    @property
    def communicating(self) -> float:
        """Share of the time that the exchange of gradients takes."""
        return min((self.exchange or 0.0) * self.steps / self.seconds, 1 - self.waiting)

    @property
    def computing(self) -> float:
        """The rest, as a share."""
        return 1 - self.waiting - self.communicating

    @property
    def headspace(self) -> float | None:
        """How many times as fast a step is with a constant batch: the input takes the cores of the steps, too."""
        return None if self.constant is None else self.seconds / self.steps / self.constant

    @property
    def bound(self) -> str:
        """What takes the largest share; the input's is what it costs, where the headspace was measured."""
        costs = 0.0 if self.headspace is None else 1 - 1 / self.headspace
        shares = {
            INPUT: max(self.waiting, costs),
            COMPUTE: min(self.computing, 1 - costs),
            COMMUNICATION: self.communicating,
        }
        return max(shares, key=lambda name: shares[name])

    def __str__(self) -> str:
        """The verdict, without what to do about it."""
        rest = "computing" if self.exchange is not None else "computing and communicating"
        parts = [f"{self.waiting:.0%} of {self.seconds:.1f} s waiting for input", f"{self.computing:.0%} {rest}"]
        if self.exchange:
            parts.append(f"{self.communicating:.0%} communicating")
        text = f"{self.bound}: {', '.join(parts)}"
        if self.constant is None or self.headspace is None:
            return text
        real, constant = self.rows * self.steps / self.seconds, self.rows / self.constant
        return (
            f"{text}; with one constant batch {self.headspace:.2f} times as fast "
            f"({constant:,.0f} against {real:,.0f} examples/sec)"
        )
