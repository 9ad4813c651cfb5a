"""Rounds of several contestants in turn, so that changes of the machine's speed affect all; comparisons of two."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Take = Callable[[], tuple[int, float]]
"""Takes some images; returns their number, and the seconds of processor time that other processes spent on them."""


class Contest(NamedTuple):
    """A loop to measure in a process of its own, and facts about it."""

    take: Take
    facts: dict[str, Any]


_READY = 10  # maximum number of batches ready when a round begins


@dataclasses.dataclass(frozen=True)
class Round:
    """One round.

    Attributes:
      rate: rate in images per second.
      cpu: processor time per image in microseconds.
      peak: largest resident memory so far in bytes; 0 if not measured.
    """

    rate: float
    cpu: float
    peak: int = 0


def taking(batches_of: Iterator[Any], rows: int) -> Take:
    """Returns a Take of one element of `rows` images from an iterator."""

    def take() -> tuple[int, float]:
        next(batches_of)
        return rows, 0.0

    return take


def alternate(contestants: dict[str, Take], rounds: int, seconds: float) -> dict[str, list[Round]]:
    """Measures rounds in turn; returns the rounds of each contestant."""
    found: dict[str, list[Round]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, take in contestants.items():
            found[name].append(one_round(take, seconds))
    return found


def one_round(take: Take, seconds: float, clock: Callable[[], float] = time.process_time) -> Round:
    """Measures one round after using up batches that were ready before; `clock` measures processor time."""
    began, taken = time.perf_counter(), 0
    while taken < _READY and (taken == 0 or time.perf_counter() - began < seconds):
        take()
        taken += 1
    images, cpu, began = 0, -clock(), time.perf_counter()
    while time.perf_counter() - began < seconds:
        count, elsewhere = take()
        images, cpu = images + count, cpu + elsewhere
    return Round(images / (time.perf_counter() - began), (cpu + clock()) * 1e6 / images)


def ratio_text(ratios: list[float]) -> str:
    """Returns the median of the rounds' ratios, with the lowest and the highest."""
    return f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def compare(what: str, mine: Take, others: dict[str, Take], rounds: int, seconds: float) -> None:
    """Measures all in turn; prints a line for each of `others`."""
    found = alternate({"": mine, **others}, rounds, seconds)
    for name in others:
        _print_line(what, found[""], found[name], name)


def _print_line(what: str, mine: list[Round], other: list[Round], against: str) -> None:
    """Prints the medians and the ratios of speeds, in wall time and in processor time."""
    texts = []
    for field, unit in (("rate", "img/s"), ("cpu", "us of processor per image")):
        one, two = ([getattr(found, field) for found in rounds] for rounds in (mine, other))
        ratios = [a / b if field == "rate" else b / a for a, b in zip(one, two, strict=True)]
        medians = [f"{statistics.median(values):,.{0 if field == 'rate' else 2}f}" for values in (one, two)]
        texts.append(f"{medians[0]} {unit} against {medians[1]}: {ratio_text(ratios)}")
    print(f"{what}, against {against}: {'; '.join(texts)}", flush=True)
