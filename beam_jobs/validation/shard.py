"""Checks one shard against the manifest: the file, its records, their examples, and the files beside it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from beam_jobs.examples.statistics import PixelSums, entropy
from beam_jobs.shards import key_check, reader
from beam_jobs.shards.key_check import KeyHashes
from beam_jobs.storage.paths import StoragePath
from beam_jobs.validation import members
from beam_jobs.validation.example import ExampleCheck
from beam_jobs.validation.report import Problem, ShardReport
from pipeline.commands.text import count_of
from pipeline.manifest import Manifest, naming
from pipeline.read import sidecars
from pipeline.records.framing import Frame, location, walk
from pipeline.records.members import MemberTable
from pipeline.records.members import parse as parse_members

Numbers = TypeVar("Numbers", np.int64, np.uint32)

_ENTROPY_TOLERANCE = 1e-4  # it is rounded to 4 decimals


def check_shard(
    data_dir: StoragePath, manifest: Manifest, number: int, decodes: bool
) -> tuple[ShardReport, Iterator[tuple[int, KeyHashes]]]:
    """Reads a shard once, front to back; returns what was found, and its keys for `key_check`.

    Memory: a block of the file, a record, and about 100 bytes per record.

    Args:
      data_dir: the data set's folder.
      manifest: its manifest.
      number: of the shard among all of the data set.
      decodes: whether to check the pixels too.
    """
    report = ShardReport(number, PixelSums(len(manifest.image_mean)))
    check = _Check(data_dir, manifest, report, ExampleCheck(manifest, decodes, report))
    try:
        check.run()
    except OSError as error:
        check.add(f"cannot be read: {error.strerror or error}")
        report.is_whole = False
    return report, key_check.group(manifest.shards[number].file, check.key_hashes, check.key_records)


class _Check:
    def __init__(self, folder: StoragePath, manifest: Manifest, report: ShardReport, examples: ExampleCheck) -> None:
        self._folder, self._manifest, self._info = folder, manifest, manifest.shards[report.shard]
        self._report, self._examples = report, examples
        self.key_hashes: list[bytes] = []
        self.key_records: list[int] = []
        self._is_compressed = bool(manifest.compression)
        self._begins = array("Q")  # of the records, before compression
        self._end = 0  # of the last one
        self._crcs = array("I")  # of the records; 0 of a damaged one
        places = zip(naming.sidecar_names(self._info.file), naming.beside_names(self._info.file), strict=True)
        self._sidecars = [
            beside if (folder / beside).exists() and not (folder / name).exists() else name for name, beside in places
        ]
        self._known: NDArray[np.int64] | None = None  # the offsets that lie beside the shard
        self._ended, self._damaged = True, False  # the walk reached the file's end; a frame is not as it was written

    def add(self, text: str, file: str = "") -> None:
        """Adds a problem of a whole file: the shard, or one beside it."""
        self._report.add(Problem(self._report.shard, -1, file or self._info.file, "", text))

    def run(self) -> None:
        info, names = self._info, self._sidecars
        table = self._read_offsets(names[0])
        known_crcs = self._beside(names[1], sidecars.parse_crcs, info.crcs_crc32c)
        with reader.opened(self._folder / info.file, "" if table else self._manifest.compression) as stream:
            self._report.is_whole = True
            found = members.frames(stream.read, table, self._size_of, self._add_member) if table else None
            for frame in found or walk(stream.read, self._size_of):
                self._check_frame(frame)
            stream.finish()
        self._report.num_bytes, self._report.records = stream.num_bytes, len(self._begins)
        self._report.is_whole &= self._ended and len(self._begins) == self._info.num_examples
        self._examples.finish()
        self._check_file(f"{stream.crc:08x}")
        if self._known is not None:
            self._check_offsets(self._known)
        if known_crcs is not None:
            self._check_crcs(known_crcs)
        if self._report.is_whole:
            self._check_entropy()

    def _read_offsets(self, name: str) -> MemberTable | None:
        """Reads the file of offsets; returns the table of members of a compressed shard that has one."""
        info = self._info

        def parse(data: bytes, num_bytes: int, num_examples: int, crc: str) -> NDArray[np.int64]:
            del num_bytes
            return parse_members(data, num_examples, info.num_bytes, info.stride, crc)

        found = self._beside(name, parse if self._is_compressed else sidecars.parse_offsets, info.offsets_crc32c)
        table = MemberTable.of(found, info.stride) if self._is_compressed and found is not None else None
        self._known = table.begins if table else found
        return table

    def _add_member(self, where: str, text: str) -> None:
        self._report.add(Problem(self._report.shard, -1, self._info.file, where, text))
        self._damaged, self._report.is_whole = True, False

    def _size_of(self, number: int, offset: int) -> int | None:
        """Returns the bytes that a record's frame must take; None where nothing tells."""
        stride, known = self._info.stride, self._known
        if number >= self._info.num_examples:
            return None
        if stride is not None:
            return stride if offset == number * stride else None
        return int(known[number + 1] - offset) if known is not None and known[number] == offset else None

    def _check_frame(self, frame: Frame) -> None:
        """Checks a record; notes whether its frame is damaged."""
        problems = [] if frame.fault is None else [frame.fault.text]
        if frame.end == frame.offset:  # the walk ended here
            self._ended = False
            rest = self._info.num_examples - frame.number - 1
            problems[0] += f"; the {count_of(rest, 'record')} after it cannot be found" if rest > 0 else ""
        else:
            self._begins.append(frame.offset)
            self._end = frame.end
            self._crcs.append(frame.crc)
            if self._info.stride is not None and self._size_of(frame.number, frame.offset) not in (
                None,
                frame.end - frame.offset,
            ):
                problems.append(
                    f"it takes {count_of(frame.end - frame.offset, 'byte')}, but the stride is {self._info.stride}"
                )
        self._damaged |= bool(problems)
        key = None
        if frame.record is None:
            self._report.is_whole = False
        else:
            key, more = self._examples.check(frame.record)
            problems += more
            self._report.is_whole &= not more
        if key is not None:
            self.key_hashes.append(key_check.hash_of(key))
            self.key_records.append(frame.number)
        where = location("", frame.number, frame.offset, self._is_compressed)
        for text in problems:
            self._report.add(Problem(self._report.shard, frame.number, self._info.file, where, text))

    def _check_file(self, crc: str) -> None:
        info = self._info
        if self._report.num_bytes != info.num_bytes:
            self.add(f"has {count_of(self._report.num_bytes, 'byte')}, the manifest says {info.num_bytes:,}")
        elif crc != info.crc32c and not self._damaged:
            # Else the damaged records say it already.
            others = [other.file for other in self._manifest.shards if other.crc32c == crc]
            swapped = f"; that is the CRC32C of {others[0]}" if others else ""
            self.add(f"every record is whole, but the file's CRC32C is {crc}, the manifest says {info.crc32c}{swapped}")
        if self._ended and len(self._begins) != info.num_examples:
            self.add(f"has {count_of(len(self._begins), 'record')}, the manifest says {info.num_examples:,}")

    def _beside(self, name: str, parse: Callable[..., NDArray[Numbers]], crc: str | None) -> NDArray[Numbers] | None:
        """Returns the numbers in a file beside the shard; None where there is none, or not the one that is listed."""
        if crc is None:
            return None
        try:
            data = (self._folder / name).read_bytes()
            return parse(data, len(data), self._info.num_examples, crc)
        except OSError as error:
            self.add(f"cannot be read: {error.strerror or error}", name)
        except ValueError as error:
            self.add(str(error), name)
        return None

    def _check_crcs(self, known: NDArray[np.uint32]) -> None:
        real = np.array(self._crcs, np.uint32)[: len(known)]
        wrong = np.flatnonzero((known[: len(real)] != real) & (real != 0))
        if len(wrong):
            first, more = wrong[0], f" ({len(wrong)} entries are wrong)" if len(wrong) > 1 else ""
            text = f"says that the CRC of record {first} is {known[first]:08x}; it is {real[first]:08x}{more}"
            self.add(text, self._sidecars[1])

    def _check_offsets(self, known: NDArray[np.int64]) -> None:
        is_all = self._ended and len(self._begins) == self._info.num_examples
        real = np.array([*self._begins, *([self._end] if is_all else [])], np.int64)[: len(known)]
        wrong = np.flatnonzero(known[: len(real)] != real)
        if len(wrong):
            first, more = wrong[0], f" ({len(wrong)} entries are wrong)" if len(wrong) > 1 else ""
            what = f"record {first} begins" if first < self._info.num_examples else "the file ends"
            text = f"says that {what} at byte offset {known[first]}; it is {real[first]}{more}"
            self.add(text, self._sidecars[0])

    def _check_entropy(self) -> None:
        said = self._info.label_entropy
        real = entropy(list(self._report.labels.values()))
        if said is not None and (real is None or abs(real - said) > _ENTROPY_TOLERANCE):
            self.add(f"the entropy of its labels is {real} bits, the manifest says {said}")
