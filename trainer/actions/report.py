"""The tutorials' log line, and the same numbers for TensorBoard."""

from __future__ import annotations

import tensorflow as tf

from trainer.actions.output import Output
from trainer.loop.outer import Progress
from trainer.step.optimizers import Schedule


class Report:
    """Reports the loss, and the speed since the last report."""

    def __init__(self, global_batch_size: int, schedule: Schedule, output: Output) -> None:
        self._rows, self._schedule, self._output = global_batch_size, schedule, output
        self._steps, self._seconds = 0, 0.0

    def __call__(self, progress: Progress) -> None:
        """Prints the log line of the CIFAR-10 tutorial (cifar10_train.py) and writes the scalars."""
        steps, seconds = progress.steps - self._steps, progress.seconds - self._seconds
        self._steps, self._seconds = progress.steps, progress.seconds
        rate = steps * self._rows / seconds
        self._output.line(
            f"step {progress.step}, loss = {progress.loss:.2f} "
            f"({rate:.1f} examples/sec; {seconds / steps:.3f} sec/batch)"
        )
        scalars = {
            "train/loss": progress.loss,
            "train/accuracy": progress.accuracy,
            "train/learning_rate": float(self._schedule(tf.constant(progress.step - 1, tf.int64))),
            "train/examples_per_second": rate,
        }
        self._output.scalars(progress.step, scalars)
