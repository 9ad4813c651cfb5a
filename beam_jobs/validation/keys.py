"""Describes pairs of records with one key: where the second lies, and the key."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator

from beam_jobs.shards import reader
from beam_jobs.shards.key_check import Repeated
from beam_jobs.storage import paths
from beam_jobs.storage.paths import AnyPath
from beam_jobs.validation.report import MOST_LISTED, Problem
from pipeline.manifest import Manifest, ShardInfo
from pipeline.records.stream import RecordStream
from pipeline.records.walk import location, walk


def problems(data_dir: str, manifest: Manifest, repeated: Iterable[Repeated]) -> list[Problem]:
    """Returns a problem for each pair, in the manifest's order; the first `MOST_LISTED` with offset and key.

    Args:
      data_dir: the data set's folder.
      manifest: its manifest.
      repeated: pairs of records of its shards, in any order.
    """
    infos = {info.file: (number, info) for number, info in enumerate(manifest.shards)}
    pairs = sorted(repeated, key=lambda pair: (infos[pair.second[0]][0], pair.second[1], pair.first))
    wanted: dict[str, set[int]] = defaultdict(set)
    for pair in pairs[:MOST_LISTED]:
        wanted[pair.second[0]].add(pair.second[1])
    found: dict[tuple[str, int], tuple[str, str]] = {}
    for file, records in wanted.items():
        for record, where, key in _looked_up(paths.path_of(data_dir) / file, infos[file][1], manifest, records):
            found[file, record] = where, key
    return [
        _problem(pair, infos[pair.second[0]][0], *found.get(pair.second, (f", record {pair.second[1]}", "")))
        for pair in pairs
    ]


def _problem(pair: Repeated, shard: int, where: str, key: str) -> Problem:
    (other, number), (file, record) = pair.first, pair.second
    return Problem(shard, record, file, where, f"has the key of record {number} of {other}{key}")


def _looked_up(path: AnyPath, info: ShardInfo, manifest: Manifest, records: set[int]) -> Iterator[tuple[int, str, str]]:
    """Yields (record, where it lies, its key) as texts. Shards that cannot be read are reported elsewhere."""
    with contextlib.suppress(OSError), path.open("rb", 0) as file:
        stream = RecordStream(file.read, manifest.compression)
        stride = info.stride
        for frame in walk(stream.read, lambda number, offset: stride if offset == number * (stride or 0) else None):
            if frame.number in records and frame.record is not None:
                where = location("", frame.number, frame.offset, bool(manifest.compression))
                key = reader.key_of(frame.record).decode(errors="backslashreplace")
                yield frame.number, where, f": {key!r}"
            if frame.number >= max(records):
                return
