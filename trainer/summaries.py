"""Scalars for TensorBoard, written with TensorFlow alone (`tf.summary.scalar` needs the tensorboard package)."""

from __future__ import annotations

import os

import tensorflow as tf


class Scalars:
    """Writes scalars into a folder, or nowhere where there is none."""

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self._writer = tf.summary.create_file_writer(os.fspath(folder)) if folder else tf.summary.create_noop_writer()

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes the values by tag, as of a global step."""
        with self._writer.as_default():
            for tag, value in values.items():
                tf.summary.write(tag, tf.constant(value, tf.float32), step, _metadata())
        self._writer.flush()


def _metadata() -> tf.compat.v1.SummaryMetadata:
    """Returns what tensorboard/plugins/scalar/metadata.py gives to a scalar."""
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = "scalars"
    metadata.data_class = 1  # DATA_CLASS_SCALAR of tensorflow/core/framework/summary.proto
    return metadata
