"""Compressed shards: read forward once, whatever the windows are, and every kind of damage named."""

import dataclasses
import gzip
import os
import shutil

import pytest

from pipeline import manifest as manifests
from pipeline.errors import DataError
from pipeline.manifest.splits import select
from pipeline.read.compressed import ForwardReader
from pipeline.read.corruption import Corruption
from pipeline.read.shards import Shards
from pipeline.read.sidecars import Sidecars
from tests.helpers.datasets import Kind, write_dataset
from tests.helpers.raised import at

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
    """Shards that record which files were opened."""

    def opened(self, segment):
        self.__dict__.setdefault("opens", []).append(segment)
        return super().opened(segment)


def reader_of(path, kind=Shards, **options):
    segments = select(manifests.load(path), "train").segments
    shards = kind.found(path, segments, Corruption(str(path)))
    return ForwardReader(shards, Sidecars(shards), **options), shards


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made[0], tmp_path, dirs_exist_ok=True)


def test_windows_go_on_where_the_last_one_ended(made):
    path, records = made
    size = (path / FILE).stat().st_size
    reader, shards = reader_of(path, Counted, block=10000)
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


def test_streams_that_nobody_goes_on_with_are_given_up(made):
    path, records = made
    reader, shards = reader_of(path, Counted, kept=3)
    for stop in range(1, 8):
        assert reader.read(0, 0, stop) == records[:stop]
    assert len(shards.opens) == 7
    for start in (5, 6, 7):  # the last three wait
        assert reader.read(0, start, start + 1) == records[start : start + 1]
    assert len(shards.opens) == 7
    assert reader.read(0, 2, 3) == records[2:3]
    assert len(shards.opens) == 8


def test_a_cut_of_a_shard_that_changes_meanwhile_is_named(folder):
    reader, _ = reader_of(folder, block=10000)
    assert len(reader.read(0, 0, 3)) == 3
    os.utime(folder / FILE, ns=(1, 1))
    with pytest.raises(DataError, check=at(FILE, "written again")):
        reader.read(0, 3, 30)


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


def test_a_file_of_whole_records_but_other_bytes_is_refused_at_its_end(folder):
    data = gzip.decompress((folder / FILE).read_bytes())
    resized(folder, gzip.compress(data, 1, mtime=0))
    reader, _ = reader_of(folder)
    assert len(reader.read(0, 0, 29)) == 29
    with pytest.raises(DataError, check=at(FILE, "CRC32C", record=None)):
        reader.read(0, 29, 30)


@pytest.mark.parametrize(
    ("change", "record", "fact"),
    [
        (lambda data: gzip.compress(data[:-STRIDE], mtime=0), 29, "more records"),
        (lambda data: gzip.compress(data + data[:STRIDE], mtime=0), 30, "fewer records"),
        (lambda data: gzip.compress(data, mtime=0) + b"abc", 30, "decompressed"),
        (lambda data: data, 0, "decompressed"),
        (lambda data: gzip.compress(data[:25800] + b"!" + data[25801:]), 7, "CRC"),
    ],
    ids=["a record less", "a record more", "bytes after it", "not compressed", "a byte"],
)
def test_other_content_than_the_manifest_says_is_named(folder, change, record, fact):
    resized(folder, change(gzip.decompress((folder / FILE).read_bytes())))
    reader, _ = reader_of(folder)
    with pytest.raises(DataError, check=at(FILE, fact, record=record, offset=record * STRIDE)):
        reader.read(0, 0, 30)
