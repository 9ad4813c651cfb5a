"""Scalars for TensorBoard, written after a kill and a resume so that it shows every step of the training once.

An evaluation that a finished run makes again adds its point again, with the same step and value.
"""

from __future__ import annotations

import functools
import os
import pathlib
import socket
import time
from collections.abc import Callable

import tensorflow as tf

from trainer.loop import Progress

_VERSION = "brain.Event:2"  # of the files; from 2 on, TensorBoard heeds session logs


class Scalars:
    """A file of scalars, made with the first of them.

    An events file is a TFRecord of Event messages. It begins with a session log that has TensorBoard forget what an
    earlier process wrote of later steps than this one begins with; `tf.summary` writes none.

    Attributes:
      folder: of the file.
    """

    def __init__(self, folder: str | pathlib.Path, start_step: int, writes: bool = True) -> None:
        """Makes no file yet.

        Args:
          folder: to write to.
          start_step: global step of the state that training begins with.
          writes: False: nothing is written.
        """
        self.folder, self._start_step, self._writes = pathlib.Path(folder), start_step, writes

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes the values by tag, as of a global step."""
        if self._writes:
            # As simple values, not tensors: TensorBoard shows both, and its EventAccumulator purges these alone.
            scalars = [tf.compat.v1.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            self._file.write(_event(step=step, summary=tf.compat.v1.Summary(value=scalars)))
            self._file.flush()

    @functools.cached_property
    def _file(self) -> tf.io.TFRecordWriter:
        tf.io.gfile.makedirs(self.folder)
        seconds, fraction = divmod(time.time_ns(), 10**9)  # TensorBoard reads the files in the order of their names
        name = f"events.out.tfevents.{seconds:010}.{fraction:09}.{socket.gethostname()}.{os.getpid()}.v2"
        file = tf.io.TFRecordWriter(str(self.folder / name))
        file.write(_event(file_version=_VERSION))
        start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        file.write(_event(step=self._start_step + 1, session_log=start))
        return file


def _event(**fields: object) -> bytes:
    event: bytes = tf.compat.v1.Event(wall_time=time.time(), **fields).SerializeToString()
    return event


class TrainScalars:
    """Gives the values of a step, and the speed since the last time, as in `LogLine`, to `write`."""

    def __init__(
        self,
        global_batch_size: int,
        rate: Callable[[tf.Tensor], tf.Tensor],
        write: Callable[[int, dict[str, float]], None],
    ) -> None:
        self._rows, self._rate, self._write = global_batch_size, rate, write
        self._earlier: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        """Writes the scalars of a step; needs its NORM."""
        steps, seconds = progress.since(self._earlier)
        self._earlier = progress
        values = {
            **{f"train/{name}": value for name, value in progress.values.items()},
            "train/learning_rate": float(self._rate(tf.constant(progress.step - 1, tf.int64))),
            "train/gradient_norm": float(progress.result.norm),
            "train/examples_per_second": steps * self._rows / seconds,
        }
        self._write(progress.step, values)
