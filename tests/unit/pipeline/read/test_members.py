"""Compressed shards in members: only the needed ones are decompressed; flipped bits are in test_readers.py."""

import dataclasses
import gzip
import itertools

import crc32c
import numpy as np
import pytest

from pipeline import RandomAccess
from pipeline import manifest as manifests
from pipeline.errors import DataError
from pipeline.manifest import naming
from pipeline.manifest.splits import select
from pipeline.read import compressed
from pipeline.read.corruption import Corruption
from pipeline.read.records_reader import RecordsReader
from pipeline.read.rows_reader import RowsReader
from pipeline.read.shards import Shards
from pipeline.read.sidecars import shard_members
from pipeline.records import framing, tf_example
from tests.helpers.datasets import EXTRA, Kind, edit_manifest, images_of, key_of, write_dataset, write_shard
from tests.helpers.raised import at

COUNTS, SHAPE = (29, 0, 11), (8, 6, 3)
FILE = "train-00000-of-00003.tfrecord.gz"
ROWS, RECORDS = Kind(compression="GZIP", members=4), Kind(unequal_keys=True, compression="GZIP", members=4)


@pytest.fixture(params=[ROWS, RECORDS], ids=["rows", "records"])
def kind(request):
    return request.param


@pytest.fixture
def folder(kind, tmp_path):
    write_dataset(tmp_path, COUNTS, SHAPE, kind=kind)
    return tmp_path


def reader_of(folder, policy="raise", most=1000):
    manifest = manifests.load(folder)
    segments = select(manifest, "train").segments
    shards = Shards.found(str(folder), segments, Corruption(str(folder), policy, most))
    return RowsReader.fit(manifest, shards, with_keys=True) or RecordsReader(shards)


def read(reader, *pieces):
    return reader.read(np.array(pieces))


def keys_in(found):
    """Returns the keys of the records from a reader."""
    if hasattr(found, "keys"):
        return found.keys.tolist()
    return [tf_example.decode(record)["key"][0] for record in found.as_bytes()]


def expected(numbers, kind):
    return [key_of("train", number, kind) for number in numbers]


@pytest.fixture
def inflated(monkeypatch):
    """The sizes of the members that were decompressed, in order."""
    sizes = []

    def counted(member, into):
        sizes.append(len(member))
        return _inflate(member, into)

    _inflate = compressed.inflate
    monkeypatch.setattr(compressed, "inflate", counted)
    return sizes


class Counted(Shards):
    """Shards that note the byte ranges which are read."""

    def opened(self, segment):
        context, ranges = super().opened(segment), self.__dict__.setdefault("ranges", [])

        class Noted:
            def __enter__(self):
                file = context.__enter__()
                read_into = file.read_into
                file.read_into = lambda view, at: ranges.append((at, len(view))) or read_into(view, at)
                return file

            def __exit__(self, *error):
                return context.__exit__(*error)

        return Noted()


def test_a_window_in_the_middle_inflates_its_members_only(folder, kind, inflated):
    table = shard_members(str(folder), manifests.load(folder).splits["train"].shards[0])
    sizes = np.diff(table.offsets).tolist()
    assert table.firsts.tolist() == [0, 4, 8, 12, 16, 20, 24, 28, 29]
    reader = reader_of(folder)
    object.__setattr__(reader, "shards", shards := Counted(**_fields(reader.shards)))
    reader.__dict__["members" if isinstance(reader, RowsReader) else "_members"]._shards = shards
    assert keys_in(read(reader, [0, 13, 18])) == expected(range(13, 18), kind)
    assert inflated == sizes[3:5]
    assert shards.ranges == [(int(table.offsets[3]), sum(sizes[3:5]))]  # of the file, no other byte
    # The next windows: the member that the last one cut is not inflated, or read, again.
    del inflated[:], shards.ranges[:]
    assert keys_in(read(reader, [0, 18, 23])) == expected(range(18, 23), kind)
    assert keys_in(read(reader, [0, 23, 29])) == expected(range(23, 29), kind)
    assert inflated == sizes[5:]
    assert sum(size for _, size in shards.ranges) == sum(sizes[5:])


def _fields(shards):
    return {field.name: getattr(shards, field.name) for field in dataclasses.fields(shards)}


def test_members_that_nobody_reads_on_in_are_given_up(folder, inflated):
    reader = reader_of(folder)
    one = reader.members if isinstance(reader, RowsReader) else reader._members
    one._most = 2 * 4 * 230
    for first in (0, 4, 8, 12):
        read(reader, [0, first, first + 2])
    assert len(inflated) == 4
    assert len(one._kept) == 2
    for first in (10, 14):
        read(reader, [0, first, first + 2])
    assert (len(inflated), len(one._kept)) == (4, 0)  # all their records were read
    read(reader, [0, 2, 3])
    assert len(inflated) == 5


def test_a_member_in_which_a_stream_begins_waits_for_the_one_that_ends_in_it(folder, kind, inflated):
    reader = reader_of(folder)
    for start, stop in ((0, 6), (14, 20), (6, 12), (20, 29), (12, 14)):  # two streams, of 14 and 15 records
        assert keys_in(read(reader, [0, start, stop])) == expected(range(start, stop), kind)
    assert len(inflated) == 8


@pytest.mark.parametrize("task", [1, 2000, 1 << 20])
def test_threads_share_no_member(folder, kind, monkeypatch, inflated, task):
    monkeypatch.setattr(compressed, "_TASK", task)
    reader = reader_of(folder)
    found = read(reader, [1, 0, 11], [0, 3, 29])
    assert keys_in(found) == expected([*range(29, 40), *range(3, 29)], kind)
    assert len(inflated) == 3 + 8


def test_an_example_inflates_its_member(folder, kind, inflated):
    examples = RandomAccess(folder)
    for number in (39, 13, 14, 12, 15):
        assert examples[number]["key"] == key_of("train", number, kind)
        assert np.array_equal(examples[number]["image"], images_of(number, 1, SHAPE)[0])
    assert len(inflated) < 6  # 12 to 15 are in one member
    size = 222 if kind is ROWS else 220  # of records with keys of 10 to 12 characters: train#7 is shorter
    assert examples.locate(13).record == 13
    assert size * 12 < examples.locate(13).offset < 230 * 14


def flip(folder, bit, whole):
    data = bytearray(whole)
    data[bit // 8] ^= 1 << bit % 8
    (folder / FILE).write_bytes(data)


def test_all_records_of_a_member_count(folder):
    whole = (folder / FILE).read_bytes()
    table = shard_members(str(folder), manifests.load(folder).splits["train"].shards[0])
    flip(folder, 8 * (int(table.offsets[2]) + 40), whole)
    assert not read(reader_of(folder, "skip", 4), [0, 0, 29]).good.all()
    flipped = bytearray((folder / FILE).read_bytes())
    flipped[int(table.offsets[4]) + 40] ^= 1
    (folder / FILE).write_bytes(flipped)
    one = reader_of(folder, "skip", 6)
    for piece in ([0, 7, 10], [0, 14, 17]):
        read(one, piece)
    with pytest.raises(DataError, match="4 .*=6; 4 .* 8 or more"):
        read(one, [0, 10, 12], [0, 17, 21])
    with pytest.raises(DataError, match="4 .*=3: .* 4 or more"):
        read(reader_of(folder, "skip", 3), [0, 0, 29])


def rewritten(folder, change):
    """Writes the first shard again, of changed frames; the manifest fits it, but for the records' own CRCs."""
    manifest = manifests.load(folder)
    shard = manifest.splits["train"].shards[0]
    begins = shard_members(str(folder), shard).begins_of(0, 29).tolist()
    data = gzip.decompress((folder / FILE).read_bytes())
    frames = [data[begin:end] for begin, end in itertools.pairwise(begins)]
    new = write_shard(folder, FILE, change(frames), 4)
    edit_manifest(folder, lambda c: c["splits"]["train"]["shards"][0].update(_as_json(new)))
    return begins


def _as_json(shard):
    return {name: value for name, value in dataclasses.asdict(shard).items() if value is not None}


def test_a_fault_inside_a_whole_member_is_a_single_record(folder, kind):
    def damaged(frames):
        frames[9] = frames[9][:50] + bytes([frames[9][50] ^ 8]) + frames[9][51:]
        return frames

    begins = rewritten(folder, damaged)
    with pytest.raises(DataError, check=at(FILE, "CRC", record=9, offset=begins[9])):
        read(reader_of(folder), [0, 8, 12])
    found = read(reader_of(folder, "skip"), [0, 0, 29])
    assert np.flatnonzero(~found.good).tolist() == [9]
    good = expected(range(29), kind)
    assert keys_in(found) == [*good[:9], good[10], *good[10:]]


def test_a_shard_of_another_conversion_is_refused(folder):
    """Yesterday's shard, with whole records and members at the same places: its records' CRCs differ."""
    manifest = manifests.load(folder).to_bytes()
    crcs = (folder / naming.crcs_name(FILE)).read_bytes()

    def other(frames):
        return [framing.frame(frame[12:-4].replace(b"train#", b"other#")) for frame in frames]

    rewritten(folder, other)
    shard = manifests.load(folder).splits["train"].shards[0]
    (folder / naming.crcs_name(FILE)).write_bytes(crcs)
    (folder / "manifest.json").write_bytes(manifest)
    edit_manifest(
        folder,
        lambda c: c["splits"]["train"]["shards"][0].update(
            _as_json(shard) | {"crcs_crc32c": f"{crc32c.crc32c(crcs):08x}"}
        ),
    )
    for policy in ("raise", "skip"):
        with pytest.raises(DataError, check=at(FILE, "another conversion", record=5)):
            read(reader_of(folder, policy), [0, 5, 7])


def test_a_table_that_does_not_fit_is_named(folder):
    path = folder / naming.offsets_name(FILE)
    whole = path.read_bytes()
    other = np.frombuffer(whole, "<u8").copy()
    other[3] += 1
    for data in (other.tobytes(), whole[:-8], whole + whole):
        path.write_bytes(data)
        with pytest.raises(DataError, check=at(path, "CRC32C")):
            read(reader_of(folder), [0, 0, 29])
    path.unlink()
    with pytest.raises(DataError, match=f" {FILE}: ", check=at(path, "No such file")):
        read(reader_of(folder), [0, 0, 29])


def number(at, value):
    def change(data):
        numbers = np.frombuffer(data, "<u8").copy()
        numbers[at] = value
        return numbers.tobytes()

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[:7] + b"\2" + data[8:], "version 2"),
        (lambda data: b"M" + data[1:], "not a table"),
        (lambda data: data[:-3], "not a table"),
        (lambda data: data[:8], "not a table"),
        (number(1, 7), "not a table of 29 records"),
        (number(1, 1 << 60), "not a table of 29 records"),
        (number(2, 1), "members do not ascend"),
        (number(3, 1 << 40), "members do not ascend"),
        (number(12, 0), "first records do not ascend"),
        (number(12, (1 << 64) - 1), "first records do not ascend"),
    ],
)
def test_a_table_that_the_manifest_lists_is_checked_as_well(folder, change, words):
    path = folder / naming.offsets_name(FILE)
    data = change(path.read_bytes())
    path.write_bytes(data)
    crc = f"{crc32c.crc32c(data):08x}"
    edit_manifest(folder, lambda c: c["splits"]["train"]["shards"][0].update(offsets_crc32c=crc))
    with pytest.raises(DataError, check=at(path, words)):
        read(reader_of(folder), [0, 0, 29])


def test_a_truncated_shard_is_named_before_anything_is_read(folder):
    path = folder / FILE
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, check=at(path, size - 1, size)):
        reader_of(folder, "skip")


def test_records_with_more_features_lie_in_members_too(tmp_path):
    write_dataset(tmp_path, COUNTS, SHAPE, kind=Kind(extra=True, compression="GZIP", members=5))
    found = RandomAccess(tmp_path, "train[7:]")
    assert set(found.features) == {"image", "label", "key", *EXTRA}
    assert [example["id"] for example in found] == [1000 + number for number in range(7, 40)]
