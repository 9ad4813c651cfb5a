"""A report as lines of text."""

from __future__ import annotations

import numpy as np

from pipeline.commands.text import count_of, table
from trainer.evaluation.report import Report

MOST_CLASSES = 20  # in the table


def summary(report: Report) -> list[str]:
    """Returns the lines of the tables: the classes (of many, those of the lowest recall), and the worst mistakes."""
    return [*_class_lines(report), *_mistake_lines(report)]


def _class_lines(report: Report) -> list[str]:
    count = len(report.class_names)
    shown, more = range(count), []
    if count > MOST_CLASSES:
        recall = np.where(np.isnan(report.recall), np.inf, report.recall)  # a class without examples comes last
        shown = np.argsort(recall, kind="stable")[:MOST_CLASSES].tolist()
        more = [f"and {count_of(count - MOST_CLASSES, 'more class', 'more classes')} of higher recall"]
    return [*table([_class_row(report, number) for number in shown], left=("most often taken for",)), *more]


def _class_row(report: Report, number: int) -> list[tuple[str, str]]:
    others = report.matrix[number].copy()
    others[number] = 0
    most = int(others.argmax())
    return [
        ("class", report.class_names[number]),
        ("examples", f"{report.support[number]:,}"),
        ("precision", _share(report.precision[number])),
        ("recall", _share(report.recall[number])),
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


def _share(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.4f}"
