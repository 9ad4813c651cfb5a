"""Says of two records of one key where the second is and what the key is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from beam_jobs.shards import reader
from beam_jobs.shards.key_check import Repeated
from beam_jobs.storage import paths
from beam_jobs.storage.paths import AnyPath
from beam_jobs.validation.report import MOST_LISTED, Problem
from beam_jobs.validation.stream import ShardStream
from beam_jobs.validation.walk import Walk
from pipeline.manifest import Manifest, ShardInfo


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
        for record, place, key in _looked_up(paths.path_of(data_dir) / file, infos[file][1], manifest, records):
            found[file, record] = place, key
    return [_problem(pair, infos[pair.second[0]][0], *found.get(pair.second, ("", ""))) for pair in pairs]


def _problem(pair: Repeated, shard: int, offset: str, key: str) -> Problem:
    (other, number), (file, record) = pair.first, pair.second
    return Problem(shard, record, file, f", record {record}{offset}", f"has the key of record {number} of {other}{key}")


def _looked_up(path: AnyPath, info: ShardInfo, manifest: Manifest, records: set[int]) -> Iterator[tuple[int, str, str]]:
    """Yields (record, its offset, its key) as texts. What cannot be read is said elsewhere."""
    try:
        with ShardStream(path, manifest.compression) as stream:
            for step in Walk(stream, info.num_examples, info.stride, None).steps():
                if step.number in records and step.record is not None:
                    unit = " of the decompressed stream" if stream.is_compressed else ""
                    key = reader.key_of(step.record).decode(errors="backslashreplace")
                    yield step.number, f", byte offset {step.offset}{unit}", f": {key!r}"
                if step.number >= max(records):
                    return
    except OSError:
        return
