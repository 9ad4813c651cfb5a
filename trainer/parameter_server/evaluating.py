"""Evaluation on the chief, with the weights of one moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from trainer.parameter_server.connecting import CHIEF_DEVICE
from trainer.step.state import TrainState
from trainer.step.train_step import TrainStep
from trainer.task.base import Sums


class ChiefStepper(TrainStep):
    """Evaluates with a copy of the weights in the chief's memory; workers train."""

    def __init__(self, state: TrainState) -> None:
        super().__init__(tf.distribute.OneDeviceStrategy(CHIEF_DEVICE), state)
        model = state.model
        weights = state.averages.values if state.averages else [v.value for v in model.trainable_variables]
        self._theirs = [*weights, *(v.value for v in model.non_trainable_variables)]
        self._num_weights = len(weights)
        with tf.device(CHIEF_DEVICE):
            self._mine = [tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False) for v in self._theirs]

    def evaluate(self, iterator: Iterator[tuple[Any, ...]], steps: tf.Tensor) -> Sums:
        """See `TrainStep.evaluate`; with the weights as they are now."""
        for mine, theirs in zip(self._mine, self._theirs, strict=True):
            mine.assign(theirs.read_value())
        sums: Sums = super().evaluate(iterator, steps)
        return sums

    def evaluation_values(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns the values of the copy."""
        values = [tf.convert_to_tensor(variable) for variable in self._mine]
        return values[: self._num_weights], values[self._num_weights :]
