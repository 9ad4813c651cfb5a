"""Where a run's lines and scalars go, and the tutorials' log line."""

from __future__ import annotations

import functools
import pathlib

import tensorflow as tf

from trainer.loop import Progress
from trainer.step.optimizers import Schedule


class Output:
    """The chief's lines on stdout and its scalars for TensorBoard; the other workers write neither.

    The scalars are written with TensorFlow alone: `tf.summary.scalar` needs the tensorboard package.

    Attributes:
      folder: of TensorBoard's files.
    """

    def __init__(self, folder: str | pathlib.Path, is_chief: bool = True) -> None:
        self.folder, self._is_chief = folder, is_chief

    def line(self, text: str) -> None:
        """Prints a line."""
        if self._is_chief:
            print(text, flush=True)

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Writes the values by tag, as of a global step."""
        if self._is_chief:
            with self._writer.as_default():
                for tag, value in values.items():
                    tf.summary.write(tag, tf.constant(value, tf.float32), step, _metadata())
            self._writer.flush()

    @functools.cached_property
    def _writer(self) -> tf.summary.SummaryWriter:
        return tf.summary.create_file_writer(str(self.folder))  # starts TensorFlow's devices


def _metadata() -> tf.compat.v1.SummaryMetadata:
    """Returns what tensorboard/plugins/scalar/metadata.py gives to a scalar."""
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = "scalars"
    metadata.data_class = 1  # DATA_CLASS_SCALAR of tensorflow/core/framework/summary.proto
    return metadata


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
