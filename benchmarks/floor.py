"""The minimum work of converting raw images: read the source, compute the CRCs, write the same bytes.

Reading is `read` of each file, a CRC is crc32c's of each record and each shard, writing is one `write` and one
fsync per shard, one after the other. The bytes of the shards are already in memory.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import time

import crc32c

from pipeline import manifest
from pipeline.records import framing


@dataclasses.dataclass(frozen=True)
class Floor:
    """The files to read, and the bytes of the shards made from them: each whole file and the records in it."""

    source: list[pathlib.Path]
    shards: dict[str, tuple[bytes, list[bytes]]]

    @classmethod
    def load(cls, source: pathlib.Path, data_dir: pathlib.Path) -> Floor:
        """Loads the shards of a conversion of `source`."""
        shards = {}
        for split in manifest.load(data_dir).splits.values():
            for shard in split.shards:
                data = (data_dir / shard.file).read_bytes()
                starts = range(0, len(data), shard.stride or len(data))
                ends = [start + (shard.stride or len(data)) - framing.FOOTER for start in starts]
                records = [data[start + framing.HEADER : end] for start, end in zip(starts, ends, strict=True)]
                shards[shard.file] = data, records
        return cls(sorted(source.glob("*.bin")), shards)

    def seconds(self, folder: pathlib.Path) -> tuple[float, float]:
        """Does the work in a new folder, which is then deleted; returns seconds and CPU seconds."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        os.sync()
        began, cpu = time.perf_counter(), time.process_time()
        for path in self.source:
            path.read_bytes()
        for name, (data, records) in self.shards.items():
            for record in records:
                crc32c.crc32c(record)
            crc32c.crc32c(data)
            with open(folder / name, "wb", buffering=0) as file:
                file.write(data)
                os.fsync(file.fileno())
        seconds = time.perf_counter() - began, time.process_time() - cpu
        shutil.rmtree(folder)
        return seconds
