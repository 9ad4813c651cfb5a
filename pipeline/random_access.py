"""Access to any example of a split by number, without TensorFlow, for PyTorch's DataLoader and for looking at data."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np

from pipeline import manifest as manifests
from pipeline.errors import UsageError, to_run
from pipeline.files.paths import PathLike
from pipeline.manifest.splits import select
from pipeline.read.corruption import Corruption
from pipeline.read.records_reader import RecordsReader
from pipeline.read.shard_cache import make_cache
from pipeline.read.shards import Shards
from pipeline.records import tf_example
from pipeline.request import check_cache

Example = dict[str, Any]
_KEPT_BYTES = 16 << 20  # 16 MiB of decompressed members, for access to nearby examples


class Location(NamedTuple):
    """The location of a record: path of the shard, number there, and byte offset of its frame before compression."""

    file: str
    record: int
    offset: int

    def __str__(self) -> str:
        return f"{self.file}, record {self.record}, byte offset {self.offset}"


class RandomAccess:
    """A split as a sequence: `RandomAccess("demo/digits", "train[:90%]")[7]`.

    Example i has record id i (`input_fn(record_ids=True)`). Only the records' locations are kept in memory; each record
    is read, and its CRC checked, on access. In a compressed shard, the record's GZIP member of about 1 MiB is
    decompressed; the latest members are kept. Many threads may use it, and it can be pickled for other processes on
    this machine.
    """

    def __init__(
        self,
        data_dir: PathLike,
        split: str = "train",
        *,
        decode: bool = True,
        cache_dir: PathLike | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        """Opens a split.

        Args:
          data_dir: folder made by `beam_jobs.convert` or `pipeline.index`, or a URL. `gs://` loads TensorFlow.
          split: split or slice of one, such as `train[:90%]` or `train[:10%]+test`.
          decode: whether to decode `image`; otherwise it is the stored bytes, and masks, boxes and points are left out.
          cache_dir, cache_bytes: see `input_fn`; the first access to a shard then fetches all of it.

        Raises:
          DataError: there is no valid data set, or a shard is missing or cut short.
          UsageError: the split is unknown, a compressed shard can only be read sequentially, or the cache cannot work.
        """
        check_cache(data_dir, cache_dir, cache_bytes)
        manifest = manifests.load(data_dir)
        segments = select(manifest, split).segments
        for segment in segments:
            if not segment.shard.is_seekable:
                raise UsageError(
                    f"is compressed as one {segment.shard.compression} stream without a table of its members, which "
                    "can only be read forward",
                    path=os.path.join(data_dir, segment.shard.file),
                    advice="use input_fn, or write the data set again: "
                    f"{to_run('beam_jobs.convert')} --dataset=tfrecord --compression=GZIP --source=...",
                )
        self.features = manifest.features
        self.class_names = manifest.class_names
        self._decode, self._upright = decode, manifest.turns_images
        cache = make_cache(data_dir, manifest, segments, cache_dir, cache_bytes)
        self._shards = Shards.found(data_dir, segments, Corruption(os.fspath(data_dir)), cache)
        self._start()

    def _start(self) -> None:
        self._reader = RecordsReader(self._shards, _KEPT_BYTES)
        self._ends = np.cumsum([segment.num_examples for segment in self._shards.segments])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_reader", "_ends")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def __len__(self) -> int:
        return int(self._ends[-1])

    @overload
    def __getitem__(self, index: int) -> Example: ...

    @overload
    def __getitem__(self, index: slice | Sequence[int]) -> list[Example]: ...

    def __getitem__(self, index: Any) -> Example | list[Example]:
        """Returns an example, or a list for a slice or a sequence of numbers.

        Returns: Values by feature name, with `image` uint8 (height, width, channels), or bytes; `label` int; `key`
          bytes; `mask` uint8 (height, width, 1); `boxes` float32 (n, 4) and `points` (n, 2), fractions of the image's
          height and width, (ymin, xmin, ymax, xmax) and (y, x); others as in the manifest: arrays of their shape and
          dtype (object for strings), or if the shape is (), NumPy scalars or bytes. {"record": bytes} if
          `pipeline.index` made the data set without a feature map.

        Raises:
          DataError: the record is corrupt, or does not match the manifest; the error has its location.
          IndexError: there is no such example.
        """
        if isinstance(index, slice):
            return self.__getitems__(range(*index.indices(len(self))))
        if isinstance(index, Sequence) or getattr(index, "ndim", 0) > 0:
            return self.__getitems__(index)
        return self._example(*self._find(index))

    def __getitems__(self, indices: Sequence[int]) -> list[Example]:
        """Returns the examples with the given numbers; PyTorch's DataLoader calls this to fetch a batch."""
        found = [self._find(index) for index in indices]
        if self._shards.file(0).is_remote:  # keep several requests in flight
            return self._shards.in_parallel(lambda segment_and_record: self._example(*segment_and_record), found)
        return [self._example(segment, record) for segment, record in found]

    def __iter__(self) -> Iterator[Example]:
        return (self[i] for i in range(len(self)))

    def locate(self, index: int) -> Location:
        """Returns the location of an example's record.

        Raises:
          DataError: the shard's sidecar of offsets is missing or corrupt.
          IndexError: there is no such example.
        """
        return self._location(*self._find(index))

    def _find(self, index: Any) -> tuple[int, int]:
        """Returns the segment of an example, and the number of its record in the segment's shard."""
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"example {number}: there are {len(self)}, so it must be in {-len(self)}..{len(self) - 1}")
        number %= len(self)
        segment = int(np.searchsorted(self._ends, number, side="right"))
        taken = self._shards.segments[segment]
        return segment, taken.stop - int(self._ends[segment]) + number

    def _location(self, segment: int, record: int) -> Location:
        return Location(str(self._shards.file(segment)), record, self._reader.offset(segment, record))

    def _example(self, segment: int, record: int) -> Example:
        [found] = self._reader.read_part(segment, record, record + 1)
        assert found is not None  # this reader never skips
        if not self.features:  # an index of arbitrary records
            return {"record": found}
        try:
            return tf_example.example(found, self.features, self._decode, self._upright)
        except tf_example.BadExampleError as error:
            raise error.at(*self._location(segment, record)) from None
