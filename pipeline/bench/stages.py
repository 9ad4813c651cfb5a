"""The stages of an input, and how the cost of each follows from the parts that are measured."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

# What is measured. The last four are sections: each has threads of its own, and they overlap.
BYTES, NUMBERS, WEIGHTS, GATHER, DECODE, DISTORT = "bytes", "numbers", "weights", "gather", "decode", "distort"
READER, ORDER, BATCHES, DEVICES = "reader", "order", "batches", "devices"
SECTIONS = {
    READER: "reading",
    ORDER: "planning",
    BATCHES: "making batches",
    DEVICES: "making and copying batches",
}


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stage.

    Attributes:
      name: `read`, `check`, ...
      terms: its cost, as parts to add (1) and to subtract (-1); none: it does not occur.
      note: how it is done, or why it does not occur.
      row_bytes: what it hands on per row; None: nothing that has a size.
      once: it is done once per run, not per epoch.
    """

    name: str
    terms: Mapping[str, int] = dataclasses.field(default_factory=dict)
    note: str = ""
    row_bytes: float | None = None
    once: bool = False

    @property
    def occurs(self) -> bool:
        """Whether this input has the stage."""
        return bool(self.terms)


def of_prefixes(prefixes: list[str]) -> dict[str, dict[str, int]]:
    """Returns the terms of the stages that make a batch.

    Args:
      prefixes: `NUMBERS`, and stages that each hand on what the one before did; none: a batch is a slice of a window.
    """
    terms = {later: {later: 1, sooner: -1} for sooner, later in itertools.pairwise(prefixes)}
    return terms | {"batch": {WEIGHTS: 1} if prefixes else {BATCHES: 1}}
