"""What both readers of records promise, on real files with real damage."""

import io

import numpy as np
import pytest

from pipeline import manifest as manifests
from pipeline.errors import DataError
from pipeline.manifest.splits import select
from pipeline.read import compressed, records_reader, rows_reader
from pipeline.read.corruption import Corruption, skipped_records
from pipeline.read.records_reader import RecordsReader
from pipeline.read.rows_reader import RowsReader, all_pieces
from pipeline.read.shards import Shards
from pipeline.read.sidecars import shard_offsets
from pipeline.records import framing, tf_example
from tests.datasets import Kind, images_of, key_of, to_memory, write_dataset
from tests.raised import at

COUNTS = (5, 0, 4, 3)
SHAPE = (8, 6, 3)
KINDS = {
    "rows": Kind(),
    "rows, NumPy": Kind(),
    "records": Kind(unequal_keys=True),
    "records, GZIP": Kind(compression="GZIP"),
    "rows, GZIP members": Kind(compression="GZIP", members=2),
    "rows, GZIP members, NumPy": Kind(compression="GZIP", members=3),
    "records, GZIP members": Kind(unequal_keys=True, compression="GZIP", members=2),
}


class Opened:
    """A data set, read by the reader that is meant for its kind."""

    def __init__(self, folder, kind):
        self.folder, self.kind = folder, kind
        self.file = "train-00003-of-00004.tfrecord" + (".gz" if kind.compression else "")
        self.are_rows = not kind.unequal_keys and (not kind.compression or kind.members > 0)
        write_dataset(folder, COUNTS, kind=kind)

    def reader(self, split="train", policy="raise", data_dir=None):
        manifest, data_dir = manifests.load(self.folder), data_dir or str(self.folder)
        shards = Shards.found(data_dir, select(manifest, split).segments, Corruption(data_dir, policy, most=100))
        if self.are_rows:
            return RowsReader.fit(manifest, shards, with_keys=True)
        return RecordsReader(shards, manifest.compression)

    def read_all(self, split="train", policy="raise"):
        return self.reader(split, policy).read(all_pieces(select(manifests.load(self.folder), split)))

    def check(self, found, numbers, split="train"):
        """Checks that these are the records of a split of these numbers; returns the rows that are no stand-ins."""
        if self.are_rows:
            images, labels, keys = found.images.tobytes(), found.labels.tolist(), found.keys.tolist()
        else:
            decoded = [tf_example.decode(record) for record in found.records]
            images = b"".join(d["image"][0] for d in decoded)
            labels, keys = [int(d["label"][0]) for d in decoded], [d["key"][0] for d in decoded]
        assert images == b"".join(images_of(n, 1, SHAPE).tobytes() for n in numbers)
        assert labels == [n % 3 for n in numbers]
        assert keys == [key_of(split, n, self.kind) for n in numbers]
        return np.flatnonzero(found.good).tolist()

    def damage(self, shard, *records, byte=40):
        """Flips a bit of records of a shard; returns the offsets of their frames."""
        info = manifests.load(self.folder).splits["train"].shards[shard]
        offsets = shard_offsets(str(self.folder), info)[list(records)].tolist()
        data = bytearray((self.folder / info.file).read_bytes())
        for offset in offsets:
            data[offset + byte] ^= 4
        (self.folder / info.file).write_bytes(data)
        return offsets


@pytest.fixture(params=KINDS)
def opened(request, tmp_path):
    if request.param.startswith("rows"):
        request.getfixturevalue("without_compiled" if "NumPy" in request.param else "compiled")
    return Opened(tmp_path, KINDS[request.param])


# Damage to compressed files is in test_compressed.py and test_members.py.
skippable = pytest.mark.parametrize("opened", [name for name in KINDS if "GZIP" not in name], indirect=True)


def test_pieces_are_read_in_the_order_they_are_given(opened):
    reader = opened.reader()
    for pieces, numbers in (
        ([[0, 0, 5], [1, 0, 4], [2, 0, 3]], range(12)),
        ([[0, 1, 2]], [1]),
        ([[2, 1, 3], [0, 0, 5], [1, 3, 4], [0, 4, 5]], [10, 11, 0, 1, 2, 3, 4, 8, 4]),
        ([[1, 2, 2], [0, 2, 4], [2, 0, 0]], [2, 3]),
    ):
        assert opened.check(reader.read(np.array(pieces)), numbers) == list(range(len(numbers)))


@pytest.mark.parametrize("pieces", [np.zeros((0, 3), np.int64), np.array([[1, 2, 2]])])
def test_no_record_is_one_row_of_nothing(opened, pieces):
    found = opened.reader().read(pieces)
    assert found.good.tolist() == [True]
    if opened.are_rows:
        assert not found.images.any()
        assert (found.images.shape, found.labels.tolist(), found.keys.tolist()) == ((1, 144), [0], [b""])
    else:
        assert found.records.tolist() == [b""]


def test_slices_join_parts_of_shards(opened):
    opened.check(opened.read_all("train[10:]+train[3:6]+train[:1]"), [10, 11, 3, 4, 5, 0])
    opened.check(opened.read_all("test[1:3]"), [1, 2], "test")


@pytest.mark.parametrize("task", [1, 500, 1 << 20])
def test_threads_share_a_piece(opened, monkeypatch, task):
    monkeypatch.setattr(rows_reader, "_TASK", task)
    monkeypatch.setattr(rows_reader, "_CHUNK", 3 * 222)
    monkeypatch.setattr(records_reader, "_TASK", task)
    monkeypatch.setattr(compressed, "_TASK", task)
    write_dataset(opened.folder, (40, 7), kind=opened.kind)
    found = opened.reader().read(np.array([[0, 1, 40], [1, 0, 7], [0, 0, 40]]))
    opened.check(found, [*range(1, 47), *range(40)])


@skippable
def test_damage_outside_the_pieces_is_not_read(opened):
    opened.damage(2, 3)
    opened.check(opened.reader().read(np.array([[1, 0, 3]])), [5, 6, 7])


@skippable
def test_a_shard_of_whole_records_but_other_bytes_is_refused(opened):
    one = opened.folder / opened.file
    records = [record for _, _, record in framing.records(io.BytesIO(one.read_bytes()).read, "")]
    one.write_bytes(b"".join(framing.frame(record.replace(b"train#", b"other#")) for record in records))
    for policy in ("raise", "skip"):
        with pytest.raises(DataError, check=at(opened.file, "CRC")):
            opened.read_all(policy=policy)


@skippable
def test_skipped_records_are_marked_and_another_good_one_stands_there(opened):
    offsets = opened.damage(0, 0, 1, 4) + opened.damage(3, 1, 2)
    found = opened.read_all(policy="skip")
    assert opened.check(found, [2, 2, 2, 3, 5, 5, 6, 7, 8, 9, 9, 9]) == [2, 3, 5, 6, 7, 8, 9]
    skipped = skipped_records(opened.folder)
    assert [(r.file[-19], r.record, r.offset) for r in skipped] == list(
        zip("00033", (0, 1, 4, 1, 2), offsets, strict=True)
    )
    # Pieces that cut shards: the records' own CRCs.
    again = opened.reader(policy="skip").read(np.array([[0, 3, 5], [2, 0, 2]]))
    assert opened.check(again, [3, 9, 9, 9]) == [0, 2]
    assert len(skipped_records(opened.folder)) == 5


@skippable
def test_a_window_without_a_good_record_is_an_error(opened):
    opened.damage(3, 0, 1, 2)
    reader = opened.reader(policy="skip")
    with pytest.raises(DataError, check=at(opened.file, "all 3 records")):
        reader.read(np.array([[2, 0, 3]]))
    opened.check(reader.read(np.array([[2, 0, 3], [0, 0, 1]])), [0, 0, 0, 0])


def test_a_file_that_is_cut_or_gone_between_two_reads_is_named(opened):
    reader = opened.reader()
    reader.read(np.array([[2, 0, 3]]))
    path = opened.folder / opened.file
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    for piece in ([2, 0, 3], [2, 1, 2]):
        with pytest.raises(DataError, check=at(opened.file, size - 1, size)):
            reader.read(np.array([piece]))
    path.unlink()
    with pytest.raises(DataError, check=at(opened.file, "No such file")):
        reader.read(np.array([[2, 1, 2]]))


def test_a_remote_folder_is_read_alike(opened):
    url = to_memory(opened.folder, "readers")
    reader = opened.reader(data_dir=url)
    opened.check(reader.read(np.array([[0, 0, 5], [2, 1, 3], [1, 0, 2]])), [0, 1, 2, 3, 4, 10, 11, 5, 6])
    if not opened.kind.compression:
        [offset] = opened.damage(3, 1)
        to_memory(opened.folder, "readers")
        with pytest.raises(DataError, check=at(f"{url}/{opened.file}", "CRC", record=1, offset=offset)):
            reader.read(np.array([[2, 0, 3]]))
