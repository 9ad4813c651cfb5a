"""Reads records with TensorFlow's own operations, in any process, and holds NumPy's numbers as data of a graph."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from pipeline.errors import to_run
from pipeline.files.paths import PathLike, folder
from pipeline.files.remote import in_command
from pipeline.manifest import naming
from pipeline.manifest.splits import Selection
from pipeline.order.order import I64
from pipeline.order.views import consecutive
from pipeline.read.rows_reader import ONCE
from pipeline.read.window import RECORD, Columns, WindowReader

_BUFFER = 1 << 20  # 1 MiB read at a time


def packed(arrays: Sequence[Any]) -> list[bytes]:
    """Returns numbers and masks of any shape as bytes for `unpacked`, a few bytes per number.

    The lowest bytes of all numbers come first, then the next ones, and so on; most of the later ones are 0.
    """
    flat = (np.ravel(array).astype("<i8") for array in arrays)
    return [zlib.compress(numbers.view(np.uint8).reshape(-1, 8).T.tobytes(), level=1) for numbers in flat]


def unpacked(texts: tf.Tensor, specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
    """Returns the numbers passed to `packed`, inside a graph.

    Args:
      texts: results of `packed`, string (arrays,).
      specs: shape and dtype of each array; a first axis of None has whatever length fits the numbers.
    """
    found = []
    for text, spec in zip(tf.unstack(texts, num=len(specs)), specs, strict=True):
        places = tf.reshape(tf.io.decode_raw(tf.io.decode_compressed(text, "ZLIB"), tf.uint8), [8, -1])
        numbers = tf.bitcast(tf.transpose(places), tf.int64)
        shape = [-1 if size is None else size for size in spec.shape]
        found.append(tf.ensure_shape(tf.cast(tf.reshape(numbers, shape), spec.dtype), spec.shape))
    return found


PIECES, TIMES = tf.TensorSpec([None, 3], tf.int64), tf.TensorSpec([None], tf.int64)


@dataclasses.dataclass(frozen=True)
class GraphReader(WindowReader):
    """Reads records of any kind with TensorFlow's own ops, in any process that runs the dataset: column `record`.

    Attributes:
      data_dir: folder of the data set, as a path in that process.
      selection: selection whose segments the pieces refer to.
      is_chosen: whether pieces are records chosen by a view: many of them close together, or with copies.
    """

    assigns_rows: ClassVar[bool] = False

    data_dir: PathLike
    selection: Selection
    is_chosen: bool = False

    def joined(self, pieces: I64, times: I64 = ONCE) -> tuple[I64, I64]:
        """Joins nearby pieces of chosen records, including the records between them, for `read`.

        Each piece costs opening its file and a whole buffer and, in a compressed file, reading everything before it.

        Args:
          pieces: segment, first record and end of each piece, (p, 3).
          times: number of rows that each of their records fills, (records,); empty if each fills one.

        Returns:
          The pieces to read, and the number of rows that each of their records fills, 0 for those in between; without
          a view, the arguments.
        """
        if not self.is_chosen or not len(pieces):
            return pieces, times
        segment, begin, end = pieces.T
        gap = begin[1:] - end[:-1]
        is_packed = np.array([bool(s.shard.compression) for s in self.selection.segments])[segment[1:]]
        is_apart = (segment[1:] != segment[:-1]) | (gap < 0) | (~is_packed & (gap > self._in_buffer))
        first = np.append(0, np.flatnonzero(is_apart) + 1)
        last = np.append(first[1:], len(pieces)) - 1
        found = np.stack([segment[first], begin[first], end[last]], axis=1)
        sizes = found[:, 2] - found[:, 1]
        offset = np.cumsum(sizes) - sizes - found[:, 1]  # from a record of a piece to its place in `filled`
        filled = np.zeros(sizes.sum(), np.int64)
        filled[consecutive(begin + np.repeat(offset, last + 1 - first), end - begin)] = times if len(times) else 1
        return found, filled

    def read(self, pieces: tf.Tensor, row_of: tf.Tensor, times: Any = ONCE) -> Columns:
        """Returns the column `record` for pieces and times from `joined`; see `WindowReader.read`."""
        if self.is_chosen:
            ends = tf.cumsum(pieces[:, 2] - pieces[:, 1])

            def chosen(piece: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
                return self._records(piece, times[end - (piece[2] - piece[1]) : end])

            parts = tf.data.Dataset.from_tensor_slices((pieces, ends)).map(chosen)
        else:
            parts = tf.data.Dataset.from_tensor_slices(pieces).map(self._records)
        # Add an empty record, because a window must have a row even if it has no record.
        return {RECORD: _all(parts.unbatch().concatenate(tf.data.Dataset.from_tensors("")))}

    @property
    def _in_buffer(self) -> int:
        """Average number of records in a buffer."""
        shards = [segment.shard for segment in self.selection.segments]
        return _BUFFER * sum(shard.num_examples for shard in shards) // sum(shard.num_bytes for shard in shards)

    def _records(self, piece: tf.Tensor, times: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the records of a piece (3,), each `times` (records,) or once: string (n,)."""
        segments, data_dir = self.selection.segments, folder(self.data_dir)
        file = tf.gather(tf.constant([str(data_dir / s.shard.file) for s in segments]), piece[0])
        first = tf.gather(tf.constant([s.start for s in segments], tf.int64), piece[0]) + piece[1]
        count = piece[2] - piece[1]

        def stored(packing: str) -> tf.Tensor:
            if packing:
                source = tf.data.TFRecordDataset(file, packing).skip(first)
            else:
                source = _from_offset(file, self._offset(piece[0], first))
            return self._taken(file, source.take(count).ignore_errors(log_warning=True), times)

        packings = sorted({s.shard.compression for s in segments})
        number = tf.gather(tf.constant([packings.index(s.shard.compression) for s in segments]), piece[0])
        reads = [functools.partial(stored, packing) for packing in packings]
        records = reads[0]() if len(reads) == 1 else tf.switch_case(number, reads)
        read = tf.size(records, tf.int64)
        bad = tf.strings.as_string(first + read)
        advice = (
            f": corrupt or cut; to see all that is wrong: {to_run('beam_jobs.validate')} {in_command(self.data_dir)}"
        )
        problem = tf.strings.join([file, ", record ", bad, advice])
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(read, count), [problem])]):
            return tf.identity(records) if times is None else tf.repeat(records, times)

    def _taken(self, file: tf.Tensor, found: tf.data.Dataset, times: tf.Tensor | None) -> tf.Tensor:
        """Returns a dataset's records up to the first unreadable one; records to return 0 times are empty."""
        if times is not None:  # unwanted records are counted below, but not kept
            together = max(1, self._in_buffer)  # a call per record would cost more than reading it
            masks = tf.data.Dataset.from_tensor_slices(times > 0).batch(together)
            pairs = tf.data.Dataset.zip((found.batch(together), masks))
            found = pairs.map(lambda records, kept: tf.where(kept[: tf.size(records)], records, "")).unbatch()
        # If ignored, the error about a file that cannot be opened would repeat forever, so read one byte first.
        opened = tf.data.FixedLengthRecordDataset(file, 1, buffer_size=1).take(1)
        return _all(opened.concatenate(found).concatenate(tf.data.Dataset.from_tensors("")))[1:-1]

    def _offset(self, segment: tf.Tensor, record: tf.Tensor) -> tf.Tensor:
        shards = [s.shard for s in self.selection.segments]
        stride = tf.gather(tf.constant([s.stride or 0 for s in shards], tf.int64), segment)
        if all(s.stride is not None or s.num_examples == 0 for s in shards):
            return stride * record
        files = [str(folder(self.data_dir) / naming.offsets_name(shard.file)) for shard in shards]
        file = tf.gather(tf.constant(files), segment)

        def stored() -> tf.Tensor:
            return tf.io.decode_raw(tf.io.read_file(file), tf.int64)[record]

        return tf.cond(stride > 0, lambda: stride * record, stored)


def _all(dataset: tf.data.Dataset) -> tf.Tensor:
    """Returns all elements of a dataset, which must not be empty, as one tensor."""
    return dataset.batch(np.iinfo(np.int64).max).get_single_element()


def _from_offset(file: tf.Tensor, offset: tf.Tensor) -> tf.data.Dataset:
    """Returns the records of a file from a byte offset on, which `tf.data.TFRecordDataset` does not support."""
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=tf.reshape(file, [1]),
        compression_type="",
        buffer_size=_BUFFER,
        byte_offsets=tf.reshape(offset, [1]),
        metadata="",
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
