"""Which of a machine's places for workers are in use: all, or with --elastic those that work."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence

_AT_START = 2  # failures at start-up, one after the other, after which a slot is lost


@dataclasses.dataclass
class Slot:
    """A place for a worker, with its GPUs.

    Attributes:
      failures: of its worker, since it was last given up.
      at_start: of these, those since its last step.
      delay: seconds that it waits once it is lost.
      retry_at: when a lost one may be tried again; infinity: not before the others have made a step; minus infinity: it
        is not lost.
      is_tried: whether it was lost and has made no step since.
    """

    failures: int = 0
    at_start: int = 0
    delay: float = 0.0
    retry_at: float = -math.inf
    is_tried: bool = False


class Slots:
    """Chooses slots. A slot is lost when its worker cannot be restarted, and tried again after a while."""

    def __init__(self, counts: Sequence[int], max_restarts: int, delay: float) -> None:
        """All slots work.

        Args:
          counts: numbers of workers that a group can have, the largest being that of the slots.
          max_restarts: of a slot's worker.
          delay: seconds before a lost slot is tried again; doubles with each time it is lost.
        """
        self._counts, self._max_restarts = sorted(counts), max_restarts
        self._slots = [Slot(delay=delay) for _ in range(max(counts))]

    def chosen(self, now: float) -> list[int]:
        """Returns the slots for a group that starts now; none where too few are left."""
        usable = [number for number, slot in enumerate(self._slots) if slot.retry_at <= now]
        size = max((count for count in self._counts if count <= len(usable)), default=0)
        for number in usable[:size]:
            slot = self._slots[number]
            slot.is_tried, slot.retry_at = slot.is_tried or slot.retry_at > -math.inf, -math.inf
        return usable[:size]

    def can_grow(self, size: int, now: float) -> bool:
        """Whether a group that starts now would be larger than `size`."""
        usable = sum(slot.retry_at <= now for slot in self._slots)
        return any(size < count <= usable for count in self._counts)

    def stepped(self, numbers: Collection[int], now: float) -> None:
        """Takes note that the workers of these slots have made a step; lost ones wait from the first of them on."""
        for slot in self._slots if numbers else []:
            if slot.retry_at == math.inf:
                slot.retry_at, slot.delay = now + slot.delay, 2 * slot.delay
        for number in numbers:
            self._slots[number].at_start, self._slots[number].is_tried = 0, False

    def failed(self, number: int, at_start: bool) -> bool:
        """Takes note that the worker of a slot was the first to fail.

        Returns:
          Whether the slot is lost now.
        """
        slot = self._slots[number]
        slot.failures, slot.at_start = slot.failures + 1, slot.at_start + at_start
        if not (
            slot.failures > self._max_restarts or slot.at_start >= _AT_START or (slot.is_tried and slot.at_start > 0)
        ):
            return False
        slot.retry_at = math.inf
        slot.failures, slot.at_start, slot.is_tried = 0, 0, False
        return True

    def forgive(self) -> None:
        """Forgets failures after the first step: the job has saved a new checkpoint since."""
        for slot in self._slots:
            slot.failures = slot.at_start

    @property
    def lost(self) -> list[int]:
        """The slots that wait for another try."""
        return [number for number, slot in enumerate(self._slots) if slot.retry_at > -math.inf]
