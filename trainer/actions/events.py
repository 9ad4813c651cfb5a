"""The file that TensorBoard reads, written after a kill and a resume so that it shows every step of the training once.

An evaluation that a finished run makes again adds its point again, with the same step and value.
"""

from __future__ import annotations

import functools
import os
import pathlib
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from trainer.actions import pictures

LOGS = "logs"  # folder of these files in model_dir
_VERSION = "brain.Event:2"  # of the files; from 2 on, TensorBoard heeds session logs
_PREFIX = "events.out.tfevents."


class EventFile:
    """A file of scalars, histograms, images and the graph, made with the first of them.

    An events file is a TFRecord of Event messages. It begins with a session log that has TensorBoard forget what an
    earlier process wrote of later steps than this one begins with; `tf.summary` writes none.

    Attributes:
      folder: of the file.
      writes: False: nothing is written.
      is_first: whether no earlier process has left a file in the folder.
    """

    def __init__(self, folder: str | pathlib.Path, start_step: int, writes: bool = True) -> None:
        """Makes no file yet.

        Args:
          folder: to write to.
          start_step: global step of the state that training begins with.
          writes: see above.
        """
        self.folder, self._start_step, self.writes = pathlib.Path(folder), start_step, writes
        self.is_first = not any(self.folder.glob(f"{_PREFIX}*"))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes numbers by tag, as of a global step."""
        # As simple values, not tensors: TensorBoard shows both, and its EventAccumulator purges these alone.
        self._summary(step, (_value(tag=tag, simple_value=value) for tag, value in values.items()))

    def histograms(self, step: int, rows: Mapping[str, Sequence[float]]) -> None:
        """Writes histograms by tag, each a row of `LoopResult.histograms`."""
        self._summary(step, (_value(tag=tag, histo=pictures.histogram(row)) for tag, row in rows.items()))

    def images(self, step: int, images: Mapping[str, tf.Tensor]) -> None:
        """Writes images by tag, (height, width, channels), uint8 or floats of any range."""
        self._summary(step, (_value(tag=tag, image=pictures.image(image)) for tag, image in images.items()))

    def graph(self, graph: tf.Graph) -> None:
        """Writes a graph."""
        if self.writes:
            self._write(graph_def=graph.as_graph_def().SerializeToString())

    def _summary(self, step: int, values: Iterable[Any]) -> None:
        if self.writes:
            self._write(step=step, summary=tf.compat.v1.Summary(value=values))

    def _write(self, **fields: object) -> None:
        self._file.write(_event(**fields))
        self._file.flush()

    @functools.cached_property
    def _file(self) -> tf.io.TFRecordWriter:
        tf.io.gfile.makedirs(self.folder)
        seconds, fraction = divmod(time.time_ns(), 10**9)  # TensorBoard reads the files in the order of their names
        name = f"{_PREFIX}{seconds:010}.{fraction:09}.{socket.gethostname()}.{os.getpid()}.v2"
        file = tf.io.TFRecordWriter(str(self.folder / name))
        file.write(_event(file_version=_VERSION))
        start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        file.write(_event(step=self._start_step + 1, session_log=start))
        return file


def _value(**fields: Any) -> Any:
    return tf.compat.v1.Summary.Value(**fields)


def _event(**fields: object) -> bytes:
    event: bytes = tf.compat.v1.Event(wall_time=time.time(), **fields).SerializeToString()
    return event
