"""Reads windows with TensorFlow's own ops only, for datasets that run in a process other than the one that makes them.

Parameter servers' workers are such: a function of Python is not there to be called. Every record's CRC is checked by
TensorFlow's reader, whose error names the shard and the byte offset; nothing can be skipped.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from pipeline import naming
from pipeline.splits import Selection
from pipeline.storage import PathLike, folder
from pipeline.window import Columns

_BUFFER = 1 << 20  # 1 MiB: what is read at once


@dataclasses.dataclass(frozen=True)
class GraphReader:
    """Column `record`: serialized records of the pieces of a selection.

    Attributes:
      data_dir: the data set's folder, as the process that reads sees it.
      selection: what pieces name by segment.
      compression: of the shards.
    """

    data_dir: PathLike
    selection: Selection
    compression: str

    def read(self, pieces: tf.Tensor) -> Columns:
        """See `WindowReader.read`."""
        # One empty record more: the batch of a window without a record is not empty either.
        records = tf.data.Dataset.from_tensor_slices(pieces).flat_map(self._records)
        records = records.concatenate(tf.data.Dataset.from_tensors("")).batch(np.iinfo(np.int64).max)
        return {"record": records.get_single_element()}

    def _records(self, piece: tf.Tensor) -> tf.data.Dataset:
        segments, place = self.selection.segments, folder(self.data_dir)
        file = tf.gather(tf.constant([str(place / s.shard.file) for s in segments]), piece[0])
        first = tf.gather(tf.constant([s.start for s in segments], tf.int64), piece[0]) + piece[1]
        count = piece[2] - piece[1]
        if self.compression:
            return tf.data.TFRecordDataset(file, self.compression).skip(first).take(count)
        return _from_offset(file, self._offset(piece[0], first)).take(count)

    def _offset(self, segment: tf.Tensor, record: tf.Tensor) -> tf.Tensor:
        shards = [s.shard for s in self.selection.segments]
        stride = tf.gather(tf.constant([s.stride or 0 for s in shards], tf.int64), segment)
        if all(s.stride is not None or s.num_examples == 0 for s in shards):
            return stride * record
        place = folder(self.data_dir)
        file = tf.gather(tf.constant([str(place / naming.offsets_name(s.file)) for s in shards]), segment)

        def stored() -> tf.Tensor:
            return tf.io.decode_raw(tf.io.read_file(file), tf.int64)[record]

        return tf.cond(stride > 0, lambda: stride * record, stored)


def _from_offset(file: tf.Tensor, offset: tf.Tensor) -> tf.data.Dataset:
    """Returns the records of a file from a byte offset on, which `tf.data.TFRecordDataset` cannot be told."""
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=file, compression_type="", buffer_size=_BUFFER, byte_offsets=tf.reshape(offset, [1]), metadata=""
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
