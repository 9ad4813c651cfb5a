"""The key of every record of a selection, read from the shards."""

from __future__ import annotations

from collections.abc import Iterator

from tqdm import tqdm

from pipeline.audit.key_log import key_text
from pipeline.errors import DataError
from pipeline.manifest.splits import Segment, Selection
from pipeline.manifest.storage import File, PathLike, folder
from pipeline.records import example_proto, walk
from pipeline.records.stream import RecordStream, forward

_SHOW_AFTER = 2.0  # seconds until there is a bar


def read_keys(data_dir: PathLike, selection: Selection, compression: str) -> list[str]:
    """Returns the keys by record id, as a key log has them.

    Args:
      data_dir: the data set's folder.
      selection: the records.
      compression: of the shards: none, or `GZIP`.

    Raises:
      DataError: a shard is missing, cut or corrupt, or two records have the same key.
    """
    keys: list[str] = []
    with tqdm(total=selection.num_examples, unit=" keys", unit_scale=True, delay=_SHOW_AFTER, disable=None) as bar:
        for segment in selection.segments:
            keys += _keys_of(folder(data_dir) / segment.shard.file, segment, compression)
            bar.update(segment.num_examples)
    _check_unique(keys, selection)
    return keys


def _keys_of(file: File, segment: Segment, compression: str) -> Iterator[str]:
    count = 0
    with file.open() as opened:
        stream = RecordStream(forward(opened), compression)
        found = walk.records(stream.read, file, is_compressed=bool(compression), advice="; convert the data again")
        for offset, _, record in found:
            if segment.start <= count < segment.stop:
                yield _key_of(record, walk.location(file, count, offset))
            count += 1
    if count != segment.shard.num_examples:
        raise DataError(f"{file}: {count} records, but the manifest says {segment.shard.num_examples}")


def _key_of(record: bytes, where: str) -> str:
    try:
        values = example_proto.decode(record, ["key"]).get("key", [])
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None
    if not isinstance(values, list) or len(values) != 1:
        raise DataError(f"{where}: not an Example with one key")
    return key_text(values[0])


def _check_unique(keys: list[str], selection: Selection) -> None:
    if len(set(keys)) == len(keys):
        return
    seen: dict[str, int] = {}
    for record, key in enumerate(keys):
        if key in seen:
            one, other = (f"row {row} of {file}" for file, row in map(selection.locate, (seen[key], record)))
            raise DataError(f"key {key!r}: {one} and {other} both have it; a log cannot tell them apart")
        seen[key] = record
