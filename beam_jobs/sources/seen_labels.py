"""The labels that occur in a source, which name its classes where nothing else does."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable

from beam_jobs.sources import base
from pipeline.errors import DataError


class SeenLabels:
    """Collects labels from any thread: texts, each of which is a class, or numbers, of which the highest counts."""

    def __init__(self, what: str, most: int, advice: str) -> None:
        """Starts with no label.

        Args:
          what: the column or feature of the labels, for errors.
          most: the largest number of classes.
          advice: what errors end with.
        """
        self._what, self._most, self._advice = what, most, advice
        self._texts: set[str] = set()
        self._highest = -1
        self._lock = threading.Lock()

    def add(self, labels: Iterable[str | int], file: object) -> None:
        """Adds labels of a file; empty texts and numbers below 0 name no class.

        Raises:
          DataError: there are too many classes.
        """
        with self._lock:
            for label in labels:
                if isinstance(label, int):
                    self._highest = max(self._highest, label)
                elif label:
                    self._texts.add(label)
            count = len(self._texts) or self._highest + 1
        if count > self._most:
            problem = f"has {count} classes or more, above the most, {self._most}"
            raise DataError(f"{file}: {self._what} {problem}; {self._advice}")

    def class_names(self, source: object) -> tuple[str, ...]:
        """Returns the texts, in `base.in_order`, or "0" to the highest number. Says which texts differ only in case.

        Raises:
          DataError: no label was added, or two texts look alike.
        """
        if not self._texts and self._highest < 0:
            raise DataError(f"{source}: {self._what} has no label that is a text or 0 or more; {self._advice}")
        if pairs := base.alike(self._texts):
            labels = " and ".join(map(ascii, pairs[0]))
            raise DataError(
                f"{source}: {self._what}: the labels {labels} look alike (spaces, Unicode's form of a letter, zeros "
                "before a number) but would be two classes; make them equal in the files"
            )
        for one, other in base.alike(self._texts, ignore_case=True)[:1]:
            print(f"{source}: the classes {one!r} and {other!r} differ only in case", file=sys.stderr, flush=True)
        return tuple(base.in_order(self._texts)) or tuple(map(str, range(self._highest + 1)))
