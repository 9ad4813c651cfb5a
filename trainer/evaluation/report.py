"""The report on a split, and its tables: precision and recall of each class, confusions, the worst mistakes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.commands.text import count_of, table

_MOST_CLASSES = 20  # in the table


@dataclasses.dataclass(frozen=True)
class Mistake:
    """An example that was put in another class.

    Attributes:
      record: its number in the split; with several splits, the records of those before it are counted, too.
      key: of the record; None: the data set has none.
      label, prediction: class numbers.
      probability: that the model gave the prediction.
      label_probability: that it gave the label.
      loss: cross-entropy, -log(label_probability).
    """

    record: int
    key: str | None
    label: int
    prediction: int
    probability: float
    label_probability: float
    loss: float


@dataclasses.dataclass(frozen=True)
class Confusion:
    """A label and what its examples were wrongly taken for: `count` of `support`."""

    label: int
    prediction: int
    count: int
    support: int


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
    """How a model classifies the examples of a split.

    Attributes:
      class_names: by class number.
      matrix: int64 (classes, classes), examples by label and prediction.
      loss: mean cross-entropy.
      mistakes: the worst, those of the highest loss first.
    """

    class_names: tuple[str, ...]
    matrix: NDArray[np.int64]
    loss: float
    mistakes: tuple[Mistake, ...]

    @property
    def num_examples(self) -> int:
        """Examples that were evaluated."""
        return int(self.matrix.sum())

    @property
    def correct(self) -> NDArray[np.int64]:
        """int64 (classes,), examples of each class that were put in it."""
        return np.diagonal(self.matrix)

    @property
    def support(self) -> NDArray[np.int64]:
        """int64 (classes,), examples of each class."""
        return np.asarray(self.matrix.sum(axis=1))

    @property
    def accuracy(self) -> float:
        """Share of the examples whose prediction is their label."""
        return float(self.correct.sum() / self.num_examples)

    @property
    def recall(self) -> NDArray[np.float64]:
        """float64 (classes,), share of a class's examples that were put in it; NaN for a class without examples."""
        return _shares(self.correct, self.support)

    @property
    def precision(self) -> NDArray[np.float64]:
        """float64 (classes,), share of the examples put in a class that belong to it; NaN if none were put in it."""
        return _shares(self.correct, self.matrix.sum(axis=0))

    @property
    def num_mistakes(self) -> int:
        """Examples whose prediction is not their label."""
        return self.num_examples - int(self.correct.sum())

    def confusions(self, most: int) -> list[Confusion]:
        """Returns the most frequent pairs of a label and a wrong prediction, the most frequent first."""
        wrong = self.matrix * (1 - np.eye(len(self.matrix), dtype=np.int64))
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        pairs = zip(*np.unravel_index(order, wrong.shape), strict=True)
        support = self.support
        return [Confusion(int(i), int(j), int(wrong[i, j]), int(support[i])) for i, j in pairs if wrong[i, j]]

    def to_json(self) -> dict[str, Any]:
        """Returns the report in types that JSON has; null for a precision or recall that is not defined."""
        columns = zip(self.class_names, self.support, self.precision, self.recall, strict=True)
        return {
            "num_examples": self.num_examples,
            "accuracy": self.accuracy,
            "loss": self.loss,
            "classes": [
                {"name": name, "examples": int(support), "precision": _number(precision), "recall": _number(recall)}
                for name, support, precision, recall in columns
            ],
            "confusion": self.matrix.tolist(),
            "mistakes": [dataclasses.asdict(mistake) for mistake in self.mistakes],
        }


def _shares(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def summary(report: Report) -> list[str]:
    """Returns the lines of the tables: the classes (of many, those of the lowest recall), and the worst mistakes."""
    return [*_class_lines(report), *_mistake_lines(report)]


def _class_lines(report: Report) -> list[str]:
    count = len(report.class_names)
    shown, more = range(count), []
    if count > _MOST_CLASSES:
        recall = np.where(np.isnan(report.recall), np.inf, report.recall)  # a class without examples comes last
        shown = np.argsort(recall, kind="stable")[:_MOST_CLASSES].tolist()
        more = [f"and {count_of(count - _MOST_CLASSES, 'more class', 'more classes')} of higher recall"]
    return [*table([_class_row(report, number) for number in shown], left=("most often taken for",)), *more]


def _class_row(report: Report, number: int) -> list[tuple[str, str]]:
    others = report.matrix[number].copy()
    others[number] = 0
    most = int(others.argmax())
    return [
        ("class", report.class_names[number]),
        ("examples", f"{report.support[number]:,}"),
        ("precision", _share_text(report.precision[number])),
        ("recall", _share_text(report.recall[number])),
        ("most often taken for", f"{report.class_names[most]} ({others[most]:,})" if others[most] else ""),
    ]


def _mistake_lines(report: Report) -> list[str]:
    rows = [
        [
            ("worst mistakes", mistake.key or f"record {mistake.record}"),
            ("label", report.class_names[mistake.label]),
            ("prediction", report.class_names[mistake.prediction]),
            ("probability", f"{mistake.probability:.4f}"),
            ("loss", f"{mistake.loss:.2f}"),
        ]
        for mistake in report.mistakes[:5]
    ]
    return ["", *table(rows, left=("label", "prediction"))] if rows else []


def _share_text(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.4f}"
