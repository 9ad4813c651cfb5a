"""The inner loop of a run that logs its keys; without a log it is `Stepper.train` alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipeline.audit.key_log import KeyLogWriter
from trainer.loop.outer import InnerLoop
from trainer.step.updates import LoopResult, Stepper


def logged(stepper: Stepper, batches: Iterator[Any], log: KeyLogWriter, first_replica: int) -> InnerLoop:
    """Returns a loop of updates one by one, which logs the keys of each and then writes the log to its file.

    Args:
      stepper: makes the updates.
      batches: ({"image": ..., "key": ...}, labels, weights), from the state's step on.
      log: of this worker.
      first_replica: number of this worker's first replica; the others follow.
    """

    def inner_loop(steps: int) -> LoopResult:
        for _ in range(steps):
            step = stepper.state.step
            result, keys, weights = stepper.train_one(batches)
            for i, (rows, real) in enumerate(zip(keys, weights, strict=True)):
                log.append(step, first_replica + i, rows.numpy().tolist(), real.numpy().tolist())
            if not result.finite:
                break
        log.flush()
        return result

    return inner_loop
