"""Evaluation on the chief, with the weights of one moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from trainer.parameter_server.connecting import CHIEF_DEVICE
from trainer.step.forward import Forward
from trainer.step.replicas import StepResult
from trainer.step.state import TrainState
from trainer.step.updates import Stepper
from trainer.task.sums import Sums


class ChiefStepper(Stepper):
    """Evaluates with a copy of the weights in the chief's memory."""

    def __init__(self, state: TrainState) -> None:
        super().__init__(tf.distribute.OneDeviceStrategy(CHIEF_DEVICE), state, _Copy(state))

    def evaluate(self, iterator: Iterator[tuple[Any, ...]], steps: tf.Tensor) -> Sums:
        """See `Stepper.evaluate`."""
        self.replicas.take()  # type: ignore[attr-defined]
        sums: Sums = super().evaluate(iterator, steps)
        return sums


class _Copy:
    """The part of an evaluation that a strategy runs; see `ReplicaStep`."""

    def __init__(self, state: TrainState) -> None:
        model = state.model
        weights = state.averages.values if state.averages else [v.value for v in model.trainable_variables]
        self._state, self._theirs = state, [*weights, *(v.value for v in model.non_trainable_variables)]
        self._num_weights = len(weights)
        with tf.device(CHIEF_DEVICE):
            self._mine = [tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False) for v in self._theirs]

    def take(self) -> None:
        """Copies the weights as they are now."""
        for mine, theirs in zip(self._mine, self._theirs, strict=True):
            mine.assign(theirs.read_value())

    def sums(self, features: Any, labels: Any, weights: tf.Tensor) -> Sums:
        """See `ReplicaStep.sums`."""
        values = [tf.convert_to_tensor(variable) for variable in self._mine]
        weights_and_rest = values[: self._num_weights], values[self._num_weights :]
        forward = Forward(self._state.model, *weights_and_rest, self._state.eval_flip)
        return self._state.measure.evaluation_sums(forward, features, labels, weights)

    def update(self, features: Any, labels: Any, weights: tf.Tensor) -> StepResult:
        """Is not called: workers train."""
        raise NotImplementedError
