"""From the sums over whole splits to an evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import tensorflow as tf

from pipeline.errors import PipelineError
from pipeline.resolved import ResolvedRequest
from trainer.task.base import LOSS, WEIGHT, Evaluation, Measure


def added(totals: Mapping[str, tf.Tensor], sums: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns the totals, float64, plus further sums; without totals, the sums."""
    return {name: tf.cast(value, tf.float64) + totals.get(name, 0.0) for name, value in sums.items()}


def result_of(
    splits: Mapping[str, ResolvedRequest],
    totals: Mapping[str, Mapping[str, tf.Tensor]],
    measure: Measure,
    may_skip: int,
    averaged: bool,
) -> Evaluation:
    """Returns the means over all examples of some splits, and those of each split.

    Args:
      splits: by name, what was read.
      totals: by name, the measure's sums over a whole split, float64.
      measure: computes loss and metrics from the sums.
      may_skip: most examples of a split that may be skipped because their records are corrupt.
      averaged: whether the weights were the average over the steps.

    Raises:
      PipelineError: the weights do not sum to a split's number of examples.
    """
    parts = []
    for name, split in splits.items():
        count, weight = split.order.num_records, float(totals[name][WEIGHT])
        if not 0 <= count - int(weight) <= may_skip or weight == 0:
            raise PipelineError(f"evaluation saw {weight} examples of {name!r}, which has {count}")
        parts.append(_means(name, count, totals[name], measure, averaged))
    if len(parts) == 1:
        return parts[0]
    pooled: dict[str, tf.Tensor] = {}
    for sums in totals.values():
        pooled = added(pooled, sums)
    count, text = sum(split.order.num_records for split in splits.values()), next(iter(splits.values())).request.split
    return dataclasses.replace(_means(text, count, pooled, measure, averaged), parts=tuple(parts))


def _means(name: str, count: int, sums: Mapping[str, tf.Tensor], measure: Measure, averaged: bool) -> Evaluation:
    values, weight = {key: float(value) for key, value in measure.results(sums).items()}, int(float(sums[WEIGHT]))
    return Evaluation(name, weight, count - weight, values.pop(LOSS), values, averaged)
