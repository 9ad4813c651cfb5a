"""Where a run's lines and scalars go."""

from __future__ import annotations

import functools
import pathlib

import tensorflow as tf


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
