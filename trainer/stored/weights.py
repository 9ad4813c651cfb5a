"""Gives a model the weights of a checkpoint."""

from __future__ import annotations

import re

import keras
import tensorflow as tf

from pipeline.errors import UsageError
from trainer.stored.record import Record, readable

_MOST_NAMES = 3  # of variables in a message


def load(record: Record, model: keras.Model, averaged: bool) -> None:
    """Gives a model the weights of a checkpoint, and what else it keeps, such as the statistics of BatchNorm.

    Args:
      record: of the checkpoint.
      model: built as that of the run was.
      averaged: the average of the weights, not those of the last step.

    Raises:
      UnreadableError: it is damaged or was removed; the model may have some of its weights.
      UsageError: the model is another one, or there is no average.
    """
    _check_average(record, averaged)
    average = tf.Module()
    average.values = [tf.Variable(v.value) for v in model.trainable_variables] if averaged else []
    stored = tf.train.Checkpoint(model=model, averages=average)
    with readable(record.path):
        try:
            stored.read(str(record.path)).assert_existing_objects_matched().expect_partial()
        except (AssertionError, ValueError) as error:
            raise UsageError(f"{record.path}: its weights are not those of this model: {mismatch(error)}") from None
    for weight, value in zip(model.trainable_variables, average.values, strict=False):
        weight.assign(value)


def mismatch(error: Exception) -> str:
    """Returns in one line how variables differ from those of a checkpoint, of the error of restoring them."""
    text = str(error)
    names = re.findall(r"<Variable path=([^,]+),", text)
    shapes = re.search(r"variable\.shape=(\(.*?\)), Received: value\.shape=(\(.*?\))", text)
    if names and shapes:
        return f"{names[0]} was {shapes[2]}, is {shapes[1]}"
    if names:
        return f"it lacks {', '.join(names[:_MOST_NAMES])}{', ...' if len(names) > _MOST_NAMES else ''}"
    return text.strip().splitlines()[0][:300]


def choose(record: Record, kind: str | None) -> bool:
    """Returns whether to load the average of the weights.

    Args:
      record: of the checkpoint.
      kind: --weights: `raw` or `ema`; None: the average where there is one.

    Raises:
      UsageError: there is none.
    """
    averaged = record.averaged if kind is None else kind == "ema"
    _check_average(record, averaged)
    return averaged


def _check_average(record: Record, averaged: bool) -> None:
    if averaged and not record.averaged:
        raise UsageError(f"--weights=ema: {record.path} has no average, as the run had no --ema; use --weights=raw")
