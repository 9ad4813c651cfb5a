"""Compressed shards: read forward once, whatever the windows are, and every kind of damage named."""

import dataclasses
import gzip
import os
import zlib

import crc32c
import numpy as np
import pytest

from pipeline import manifest as manifests
from pipeline.errors import DataError
from pipeline.manifest.splits import select
from pipeline.read import gzip_reader as read_gzip
from pipeline.read.corruption import Corruption
from pipeline.read.gzip_reader import GzipReader
from pipeline.read.shards import Shards
from pipeline.records import framing
from tests.datasets import Kind, write_dataset

FILE = "train-00000-of-00002.tfrecord.gz"
KIND = Kind(compression="GZIP")
STRIDE = 3678  # bytes of a framed record


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("gzip")
    write_dataset(path, (30, 10), (40, 30, 3), kind=KIND)
    data = gzip.decompress((path / FILE).read_bytes())
    stride = len(data) // 30
    return path, [data[at + 12 : at + stride - 4] for at in range(0, len(data), stride)]


class Counted(Shards):
    """Shards that note what was opened."""

    def opened(self, segment):
        self.__dict__.setdefault("opens", []).append(segment)
        return super().opened(segment)


def reader_of(path, kind=Shards):
    segments = select(manifests.load(path), "train").segments
    shards = kind.found(path, segments, Corruption(str(path)))
    return GzipReader(shards), shards


@pytest.fixture
def folder(made, tmp_path):
    for path in made[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_windows_go_on_where_the_last_one_ended(made, monkeypatch):
    path, records = made
    size = (path / FILE).stat().st_size
    monkeypatch.setattr(read_gzip, "_AHEAD", 10000)
    reader, shards = reader_of(path, Counted)
    for start in range(0, 30, 3):
        assert reader.read(0, start, start + 3) == records[start : start + 3]
    blocks = -(-size // 10000)
    assert blocks > 5
    assert len(shards.opens) == blocks  # each byte was read once
    assert reader.read(0, 0, 2) == records[:2]  # the next epoch


def test_a_shard_is_read_in_few_requests(made):
    path, records = made
    reader, shards = reader_of(path, Counted)
    assert reader.read(0, 0, 30) == records
    assert shards.opens == [0]


def test_the_middle_is_reached_by_starting_over(made):
    path, records = made
    reader, _ = reader_of(path)
    for start, stop in [(12, 13), (29, 30), (0, 30), (12, 14), (13, 20), (14, 15), (20, 30), (7, 7)]:
        assert reader.read(0, start, stop) == records[start:stop]


def test_streams_that_nobody_goes_on_with_are_given_up(made, monkeypatch):
    monkeypatch.setattr(read_gzip, "_KEPT", 3)
    path, records = made
    reader, shards = reader_of(path, Counted)
    for stop in range(1, 8):
        assert reader.read(0, 0, stop) == records[:stop]
    assert len(shards.opens) == 7
    for start in (5, 6, 7):  # the last three wait
        assert reader.read(0, start, start + 1) == records[start : start + 1]
    assert len(shards.opens) == 7
    assert reader.read(0, 2, 3) == records[2:3]
    assert len(shards.opens) == 8


def test_a_cut_of_a_shard_that_changes_meanwhile_is_named(folder, monkeypatch):
    monkeypatch.setattr(read_gzip, "_AHEAD", 10000)
    reader, _ = reader_of(folder)
    assert len(reader.read(0, 0, 3)) == 3
    os.utime(folder / FILE, ns=(1, 1))
    with pytest.raises(DataError, match=f"{FILE}: was written again since the input began"):
        reader.read(0, 3, 30)


@pytest.mark.parametrize(
    ("byte", "message"),
    [
        (3, "record 0, byte offset 0: its length or the CRC of its length is wrong"),
        (60, "record 0, byte offset 0: the record's CRC is wrong"),
        (STRIDE * 7 + 100, "record 7, byte offset 25746: the record's CRC is wrong"),
        (STRIDE * 29 + STRIDE - 1, "record 29, byte offset 106662: the record's CRC is wrong"),
        (STRIDE * 12 + 7, "record 12, byte offset 44136: its length or the CRC of its length is wrong"),
    ],
)
def test_a_wrong_byte_before_the_compression_is_named_by_record(folder, byte, message):
    data = bytearray(gzip.decompress((folder / FILE).read_bytes()))
    assert len(data) == 30 * STRIDE
    data[byte] ^= 1
    resized(folder, gzip.compress(bytes(data), mtime=0))
    reader, _ = reader_of(folder)
    with pytest.raises(DataError, match=f"{FILE}, {message}"):
        reader.read(0, 0, 30)


def resized(folder, data):
    """Writes a shard and its size into the manifest, so that nothing but its content is wrong."""
    manifest = manifests.load(folder)
    shards = manifest.splits["train"].shards
    shard = dataclasses.replace(shards[0], num_bytes=len(data))
    split = dataclasses.replace(manifest.splits["train"], shards=(shard, *shards[1:]))
    (folder / FILE).write_bytes(data)
    (folder / "manifest.json").write_bytes(
        dataclasses.replace(manifest, splits=manifest.splits | {"train": split}).to_bytes()
    )


def test_every_flipped_bit_of_the_file_is_refused_and_the_file_named(folder):
    whole = (folder / FILE).read_bytes()
    for bit in [*range(0, 80), *np.random.default_rng(0).integers(80, len(whole) * 8, 80).tolist()]:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        (folder / FILE).write_bytes(damaged)
        reader, _ = reader_of(folder)
        with pytest.raises(DataError, match=FILE):
            reader.read(0, 0, 30)


def test_a_file_of_whole_records_but_other_bytes_is_refused_at_its_end(folder):
    data = gzip.decompress((folder / FILE).read_bytes())
    resized(folder, gzip.compress(data, 1, mtime=0))
    reader, _ = reader_of(folder)
    assert len(reader.read(0, 0, 29)) == 29
    with pytest.raises(DataError, match=f"{FILE}: every record is whole, but the file's CRC32C is "):
        reader.read(0, 29, 30)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda data: gzip.compress(data[:-STRIDE], mtime=0),
            r"record 29, byte offset 106662: the file ends inside the",
        ),
        (
            lambda data: gzip.compress(data[:-5], mtime=0),
            r"record 29, byte offset 106662: the file ends inside the rec",
        ),
        (lambda data: gzip.compress(data + data[:STRIDE], mtime=0), "record 30, .*: the manifest lists fewer records"),
        (lambda data: gzip.compress(data, mtime=0)[:-9], r"record \d+, .*: cannot be decompressed: Compressed file e"),
        (lambda data: gzip.compress(data, mtime=0) + b"abc", "record 30, .*: cannot be decompressed: Not a gzipped"),
        (lambda data: data, "record 0, byte offset 0: cannot be decompressed: Not a gzipped file"),
        (zlib.compress, "record 0, byte offset 0: cannot be decompressed: Not a gzipped file"),
    ],
    ids=["a record less", "cut", "a record more", "cut compressed", "bytes after it", "not compressed", "zlib"],
)
def test_other_content_than_the_manifest_says_is_named(folder, change, message):
    resized(folder, change(gzip.decompress((folder / FILE).read_bytes())))
    reader, _ = reader_of(folder)
    with pytest.raises(DataError, match=f"{FILE}, {message}"):
        reader.read(0, 0, 30)


def test_a_length_that_would_claim_all_memory_is_refused(folder):
    data = framing.header(1 << 40) + bytes(100)
    resized(folder, gzip.compress(data, mtime=0))
    reader, _ = reader_of(folder)
    with pytest.raises(DataError, match=f"{FILE}, record 0, byte offset 0: its length or the CRC of its length"):
        reader.read(0, 0, 1)


def test_several_members_are_one_shard(folder):
    data = gzip.decompress((folder / FILE).read_bytes())
    members = b"".join(gzip.compress(data[at : at + 9999], mtime=0) for at in range(0, len(data), 9999))
    resized(folder, members)
    manifest = (folder / "manifest.json").read_text()
    old = manifests.load(folder).splits["train"].shards[0].crc32c
    (folder / "manifest.json").write_text(manifest.replace(old, f"{crc32c.crc32c(members):08x}"))
    reader, _ = reader_of(folder)
    assert reader.read(0, 0, 30) == [data[at + 12 : at + STRIDE - 4] for at in range(0, len(data), STRIDE)]
