"""The minimum cost of reading checked records, which windows are measured against."""

from __future__ import annotations

import itertools
import pathlib
import time
import zlib
from concurrent import futures
from typing import Any

import crc32c

from benchmarks import inputs
from benchmarks.rounds import Take
from pipeline import manifest
from pipeline.read.sidecars import shard_members
from pipeline.records import framing
from pipeline.records.members import MEMBER_BYTES

_GZIP = zlib.MAX_WBITS | 16  # zlib's bit for a GZIP header


def bare_read(pool: futures.Executor, files: list[str], stride: int, is_elsewhere: bool) -> Take:
    """Returns a Take that reads all shards in a pool; `is_elsewhere` if its workers are other processes."""

    def take() -> tuple[int, float]:
        found = list(pool.map(_checked, files, [stride] * len(files)))
        return sum(count for count, _ in found), sum(cpu for _, cpu in found) if is_elsewhere else 0.0

    return take


def _checked(file: str, stride: int) -> tuple[int, float]:
    """Reads a shard and computes each record's CRC; returns the records and the seconds of processor time."""
    began = time.thread_time()
    with open(file, "rb", buffering=0) as opened:
        data = memoryview(opened.readall())
    for start in range(0, len(data), stride):
        crc32c.crc32c(data[start + framing.HEADER : start + stride - framing.FOOTER])
    return len(data) // stride, time.thread_time() - began


def inflating(pool: futures.Executor, data_dir: str, split: str, library: Any = zlib) -> Take:
    """Returns a Take that decompresses all GZIP members of a split in threads, from memory, discarding the output.

    Args:
      pool: pool of the threads.
      data_dir, split: data set and split to decompress.
      library: zlib, or a module with the same interface.
    """
    shards = manifest.load(data_dir).split(split).shards
    members = []
    for shard in shards:
        offsets = shard_members(data_dir, shard).offsets.tolist()
        data = (pathlib.Path(data_dir) / shard.file).read_bytes()
        members += [data[begin:end] for begin, end in itertools.pairwise(offsets)]

    def take() -> tuple[int, float]:
        for _ in pool.map(lambda member: len(library.decompress(member, _GZIP, MEMBER_BYTES)), members):
            pass
        return sum(shard.num_examples for shard in shards), 0.0

    return take


def tfrecords(files: list[str], cores: int) -> Take:
    """Returns a Take that reads all shards with TFRecordDataset, one per core at a time."""
    tf = inputs.load_tensorflow()

    def count(file: Any) -> Any:
        return tf.data.TFRecordDataset(file, buffer_size=8 << 20).reduce(tf.constant(0, tf.int64), lambda n, _: n + 1)

    counts = tf.data.Dataset.from_tensor_slices(files).map(count, num_parallel_calls=cores, deterministic=False)
    return lambda: (sum(int(found) for found in counts), 0.0)
