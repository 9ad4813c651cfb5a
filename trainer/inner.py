"""The inner loops: what happens between two looks at the clock, at signals and at the actions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from pipeline.audit.key_log import KeyLogWriter
from trainer.loop import InnerResult
from trainer.step import FINITE, LoopResult, Stepper


@dataclasses.dataclass(frozen=True)
class InnerLoop:
    """So many updates in one call into TensorFlow.

    Attributes:
      stepper: makes them.
      batches: iterator of (images, labels, weights), from the state's step on.
    """

    stepper: Stepper
    batches: Iterator[Any]

    def __call__(self, steps: int) -> InnerResult:
        """Makes `steps` updates, or fewer where one is bad."""
        return _result(self.stepper, self.stepper.train(self.batches, tf.constant(steps, tf.int64)))


@dataclasses.dataclass(frozen=True)
class LoggedInnerLoop:
    """The same updates one by one; each is logged when it is made, and the lines are written out at the end.

    Attributes:
      stepper: makes them.
      batches: iterator of ({"image": ..., "key": ...}, labels, weights), from the state's step on.
      log: of this worker.
      first_replica: number of this worker's first replica; the others follow.
    """

    stepper: Stepper
    batches: Iterator[Any]
    log: KeyLogWriter
    first_replica: int

    def __call__(self, steps: int) -> InnerResult:
        """Makes `steps` updates, 1 or more, or fewer where one is bad.

        Raises:
          DataError: the log cannot be written.
        """
        for _ in range(steps):
            step = self.stepper.state.step
            made = self.stepper.train_one(self.batches)
            for i, (keys, weights) in enumerate(zip(made.keys, made.weights, strict=True)):
                self.log.append(step, self.first_replica + i, keys.numpy().tolist(), weights.numpy().tolist())
            result = _result(self.stepper, made.result)
            if not result.finite:
                break
        self.log.flush()
        return result


def _result(stepper: Stepper, result: LoopResult) -> InnerResult:
    finite = int(result.bad_step) == FINITE
    return InnerResult(stepper.state.step, float(result.loss), float(result.accuracy), finite)
