"""Checks one shard against the manifest: the file, its records, their examples, and what lies beside it."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator

import crc32c

from beam_jobs.examples.statistics import entropy
from beam_jobs.shards import key_check
from beam_jobs.shards.key_check import KeyHashes
from beam_jobs.storage import paths
from beam_jobs.storage.paths import AnyPath
from beam_jobs.validation.example import ExampleCheck
from beam_jobs.validation.report import Problem, ShardReport
from beam_jobs.validation.stream import ShardStream
from beam_jobs.validation.walk import Walk
from pipeline.manifest import Manifest, ShardInfo, naming

_ENTROPY_TOLERANCE = 1e-4  # it is rounded to 4 decimals


def check_shard(
    data_dir: str, manifest: Manifest, number: int, decodes: bool
) -> tuple[ShardReport, Iterator[tuple[int, KeyHashes]]]:
    """Reads a shard once, from its begin to its end; returns what was found, and its keys for `key_check`.

    Args:
      data_dir: the data set's folder.
      manifest: its manifest.
      number: of the shard among all of the data set.
      decodes: look at the pixels too.

    Memory: a block of the file, a record, and about 100 bytes a record.
    """
    info = manifest.shards[number]
    check = _Check(paths.path_of(data_dir), manifest, info, ShardReport(number), ExampleCheck(manifest, decodes))
    try:
        check.run()
    except OSError as error:
        check.add(f"cannot be read: {error.strerror or error}")
    check.report.labels = dict(check.examples.labels)
    check.report.sizes = dict(check.examples.sizes)
    check.report.sums = check.examples.sums
    return check.report, key_check.group(info.file, check.key_hashes, check.key_records)


class _Check:
    def __init__(
        self, folder: AnyPath, manifest: Manifest, info: ShardInfo, report: ShardReport, examples: ExampleCheck
    ) -> None:
        self._folder = folder
        self._manifest = manifest
        self._info = info
        self.report = report
        self.examples = examples
        self.key_hashes: list[bytes] = []
        self.key_records: list[int] = []

    def add(self, text: str, file: str = "") -> None:
        """Adds a problem of a whole file: the shard, or one beside it."""
        self.report.add(Problem(self.report.shard, -1, file or self._info.file, "", text))

    def run(self) -> None:
        known = self._offsets()
        with ShardStream(self._folder / self._info.file, self._manifest.compression) as stream:
            walk = Walk(stream, self._info.num_examples, self._info.stride, known)
            damaged = self._records(walk, stream.is_compressed)
            self.report.num_bytes, crc = stream.finish()
        self.examples.finish()
        self._check_file(walk, damaged, crc)
        if known is not None:
            self._check_offsets(known, walk)
        if self.report.is_whole:
            self._check_entropy()

    def _records(self, walk: Walk, is_compressed: bool) -> bool:
        """Checks every record; returns whether the container of one is damaged."""
        damaged, self.report.is_whole = False, True
        unit = " of the decompressed stream" if is_compressed else ""
        for step in walk.steps():
            place = f", record {step.number}, byte offset {step.offset}{unit}"
            problems = [] if step.problem is None else [step.problem]
            damaged |= step.problem is not None
            key = None
            if step.record is not None:
                key, more = self.examples.check(step.record)
                problems += more
                self.report.is_whole &= not more
            else:
                self.report.is_whole = False
            if key is not None:
                self.key_hashes.append(key_check.hash_of(key))
                self.key_records.append(step.number)
            for text in problems:
                self.report.add(Problem(self.report.shard, step.number, self._info.file, place, text))
        self.report.records = len(walk.offsets)
        self.report.is_whole &= walk.is_complete and len(walk.offsets) == self._info.num_examples
        return damaged

    def _check_file(self, walk: Walk, damaged: bool, crc: str) -> None:
        info = self._info
        if self.report.num_bytes != info.num_bytes:
            self.add(f"has {self.report.num_bytes} bytes, the manifest says {info.num_bytes}")
        elif crc != info.crc32c and not damaged:
            # Else the damaged records say it already.
            others = [other.file for other in self._manifest.shards if other.crc32c == crc]
            swapped = f"; that is the CRC32C of {others[0]}" if others else ""
            self.add(f"every record is whole, but the file's CRC32C is {crc}, the manifest says {info.crc32c}{swapped}")
        if walk.is_complete and len(walk.offsets) != info.num_examples:
            self.add(f"has {len(walk.offsets)} records, the manifest says {info.num_examples}")

    def _offsets(self) -> array[int] | None:
        """Returns the offsets that lie beside the shard; None where they are not there, or not as the manifest says."""
        if self._info.offsets_crc32c is None:
            return None
        name, size = naming.offsets_name(self._info.file), 8 * (self._info.num_examples + 1)
        try:
            data = (self._folder / name).read_bytes()
        except OSError as error:
            self.add(f"cannot be read: {error.strerror or error}", name)
            return None
        crc = f"{crc32c.crc32c(data):08x}"
        if len(data) != size:
            self.add(f"has {len(data)} bytes, of {self._info.num_examples} records it has {size}", name)
        elif crc != self._info.offsets_crc32c:
            self.add(f"its CRC32C is {crc}, the manifest says {self._info.offsets_crc32c}", name)
        else:
            offsets = array("Q", data)
            if sys.byteorder == "big":
                offsets.byteswap()
            return offsets
        return None

    def _check_offsets(self, known: array[int], walk: Walk) -> None:
        real = walk.offsets
        if walk.is_complete and len(real) == self._info.num_examples:
            real = array("Q", [*real, self.report.num_bytes])
        wrong = [number for number, (one, other) in enumerate(zip(known, real, strict=False)) if one != other]
        if wrong:
            first, more = wrong[0], f" ({len(wrong)} entries are wrong)" if len(wrong) > 1 else ""
            what = f"record {first} begins" if first < self._info.num_examples else "the file ends"
            text = f"says that {what} at byte offset {known[first]}; it is {real[first]}{more}"
            self.add(text, naming.offsets_name(self._info.file))

    def _check_entropy(self) -> None:
        said = self._info.label_entropy
        real = entropy(list(self.examples.labels.values()))
        if said is not None and (real is None or abs(real - said) > _ENTROPY_TOLERANCE):
            self.add(f"the entropy of its labels is {real} bits, the manifest says {said}")
