"""Reads windows with TensorFlow's own ops only, for datasets that run in a process other than the one that makes them.

Workers of a parameter server cannot call Python functions of the process that made the dataset. TensorFlow's reader
checks every record's CRC; it ends at the first corrupt one without naming the file, so nothing can be skipped.
"""

from __future__ import annotations

import dataclasses
import os
from typing import ClassVar

import numpy as np
import tensorflow as tf

from pipeline.manifest.splits import Selection
from pipeline.manifest.storage import PathLike, folder
from pipeline.read.sidecars import offsets_file
from pipeline.read.window import Columns

_BUFFER = 1 << 20  # 1 MiB: what is read at once


@dataclasses.dataclass(frozen=True)
class GraphReader:
    """Column `record`: serialized records of the pieces of a selection.

    Attributes:
      data_dir: the data set's folder, as the process that reads sees it.
      selection: what pieces name by segment.
      compression: of the shards.
    """

    assigns_rows: ClassVar[bool] = False

    data_dir: PathLike
    selection: Selection
    compression: str

    def fetch_ahead(self, pieces: tf.Tensor) -> tf.Tensor:
        """See `WindowReader.fetch_ahead`; here nothing is fetched."""
        return pieces

    def read(self, pieces: tf.Tensor, row_of: tf.Tensor) -> Columns:
        """See `WindowReader.read`."""
        del row_of
        # One more, empty record: a window without records must not be empty either.
        records = tf.data.Dataset.from_tensor_slices(pieces).map(self._records).unbatch()
        return {"record": _all(records.concatenate(tf.data.Dataset.from_tensors("")))}

    def _records(self, piece: tf.Tensor) -> tf.Tensor:
        """Returns the records of a piece (3,), string (n,); an error names the shard and record."""
        segments, data_dir = self.selection.segments, folder(self.data_dir)
        file = tf.gather(tf.constant([str(data_dir / s.shard.file) for s in segments]), piece[0])
        first = tf.gather(tf.constant([s.start for s in segments], tf.int64), piece[0]) + piece[1]
        count = piece[2] - piece[1]
        found = self._from(file, piece[0], first).take(count).ignore_errors(log_warning=True)
        # If ignored, the error of a file that cannot be opened would repeat forever: so one byte is read first.
        opened = tf.data.FixedLengthRecordDataset(file, 1, buffer_size=1).take(1)
        records = _all(opened.concatenate(found).concatenate(tf.data.Dataset.from_tensors("")))[1:-1]
        read = tf.size(records, tf.int64)
        bad = tf.strings.as_string(first + read)
        advice = f": corrupt or cut; to see all that is wrong: python -m beam_jobs.validate {data_dir.in_command}"
        problem = tf.strings.join([file, ", record ", bad, advice])
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(read, count), [problem])]):
            return tf.identity(records)

    def _from(self, file: tf.Tensor, segment: tf.Tensor, record: tf.Tensor) -> tf.data.Dataset:
        if self.compression:
            return tf.data.TFRecordDataset(file, self.compression).skip(record)
        return _from_offset(file, self._offset(segment, record))

    def _offset(self, segment: tf.Tensor, record: tf.Tensor) -> tf.Tensor:
        shards = [s.shard for s in self.selection.segments]
        stride = tf.gather(tf.constant([s.stride or 0 for s in shards], tf.int64), segment)
        if all(s.stride is not None or s.num_examples == 0 for s in shards):
            return stride * record
        data_dir = os.fspath(self.data_dir)
        file = tf.gather(tf.constant([offsets_file(data_dir, shard) for shard in shards]), segment)

        def stored() -> tf.Tensor:
            return tf.io.decode_raw(tf.io.read_file(file), tf.int64)[record]

        return tf.cond(stride > 0, lambda: stride * record, stored)


def _all(dataset: tf.data.Dataset) -> tf.Tensor:
    """Returns all elements, at least one, in one tensor."""
    return dataset.batch(np.iinfo(np.int64).max).get_single_element()


def _from_offset(file: tf.Tensor, offset: tf.Tensor) -> tf.data.Dataset:
    """Returns the records of a file from a byte offset on, which `tf.data.TFRecordDataset` cannot be told."""
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=tf.reshape(file, [1]),
        compression_type="",
        buffer_size=_BUFFER,
        byte_offsets=tf.reshape(offset, [1]),
        metadata="",
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
