"""Counts what a model makes of a split, batch by batch, in memory that does not grow with it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError, UsageError
from trainer.evaluation.report import Mistake, Report

Array = NDArray[Any]


class Tally:
    """Gathers the outputs of a model. It keeps the worst mistakes, with the images that the model got."""

    def __init__(self, class_names: Sequence[str], worst: int) -> None:
        """Begins with no example.

        Args:
          class_names: by class number.
          worst: how many mistakes to keep, at most.
        """
        self._names, self._worst, classes = tuple(class_names), worst, len(class_names)
        self._matrix = np.zeros((classes, classes), np.int64)
        self._loss = 0.0
        self._kept: list[tuple[tuple[float, int], Mistake, Array]] = []  # a heap, the mildest on top

    def add(self, records: Array, keys: Sequence[bytes] | None, labels: Array, logits: Array, images: Array) -> None:
        """Adds the real rows of a batch.

        Args:
          records: int64 (n,), numbers of the examples in the split.
          keys: n keys; None where the data set has none.
          labels: int64 (n,).
          logits: float (n, classes).
          images: (n, ...), as the model got them.

        Raises:
          UsageError: the logits are not of these classes.
          DataError: a logit is not finite.
        """
        if logits.ndim != 2 or logits.shape[1] != len(self._names):
            raise UsageError(
                f"the model gives outputs of shape {logits.shape[1:]}, which are not one logit for each of the "
                f"{len(self._names)} classes; a confusion matrix needs these"
            )
        bad = np.flatnonzero(~np.isfinite(logits).all(axis=1))
        if bad.size:
            name = f"record {records[bad[0]]}" if keys is None else f"key {_text(keys[bad[0]])}"
            raise DataError(f"{name}: the model's output is NaN or infinite; evaluate an earlier checkpoint")
        log_probabilities = _log_softmax(logits)
        rows, predictions = np.arange(len(labels)), logits.argmax(axis=1)
        losses = -log_probabilities[rows, labels]
        np.add.at(self._matrix, (labels, predictions), 1)
        self._loss += float(losses.sum())
        for i in np.flatnonzero(predictions != labels).tolist():
            rank = (float(losses[i]), -int(records[i]))  # of equal losses, the first in the split
            if len(self._kept) == self._worst and (not self._kept or rank <= self._kept[0][0]):
                continue
            key = None if keys is None else _text(keys[i])
            sure, label = np.exp(log_probabilities[i, [predictions[i], labels[i]]]).tolist()
            mistake = Mistake(int(records[i]), key, int(labels[i]), int(predictions[i]), sure, label, rank[0])
            entry = (rank, mistake, np.array(images[i]))
            push = heapq.heappushpop if len(self._kept) == self._worst else heapq.heappush
            push(self._kept, entry)  # type: ignore[arg-type]  # of one type, mypy joins the two to `object`

    def report(self) -> Report:
        """Returns the report on what was added, at least one example."""
        mistakes = tuple(mistake for _, mistake, _ in self._sorted())
        return Report(self._names, self._matrix.copy(), self._loss / int(self._matrix.sum()), mistakes)

    def images(self) -> list[Array]:
        """Returns the images of the report's mistakes, as the model got them."""
        return [image for _, _, image in self._sorted()]

    def _sorted(self) -> list[tuple[tuple[float, int], Mistake, Array]]:
        return sorted(self._kept, key=lambda entry: entry[0], reverse=True)


def _log_softmax(logits: Array) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _text(key: bytes) -> str:
    return key.decode(errors="backslashreplace")
