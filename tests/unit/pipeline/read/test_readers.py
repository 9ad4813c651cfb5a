"""What both readers of records promise, on real files with real damage."""

import gzip
import io
import pathlib
import zlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import manifest as manifests
from pipeline.errors import DataError
from pipeline.manifest.splits import select
from pipeline.read import compressed, frames, records_reader, rows_reader
from pipeline.read.corruption import Corruption, skipped_records
from pipeline.read.records_reader import RecordsReader
from pipeline.read.rows_reader import RowsReader, all_pieces
from pipeline.read.shards import Shards
from pipeline.read.sidecars import shard_members, shard_offsets
from pipeline.records import framing, tf_example
from tests.helpers.datasets import Kind, images_of, key_of, to_memory, write_dataset
from tests.helpers.lanes import examples
from tests.helpers.raised import at

COUNTS = (5, 0, 4, 3)
SHAPE = (8, 6, 3)
KINDS = {
    "rows": Kind(),
    "rows, NumPy": Kind(),
    "rows, unequal": Kind(unequal_keys=True),
    "records": Kind(unequal_keys=True),
    "records, GZIP": Kind(compression="GZIP"),
    "rows, GZIP members": Kind(compression="GZIP", members=2),
    "rows, GZIP members, NumPy": Kind(compression="GZIP", members=3),
    "rows, unequal, GZIP members": Kind(unequal_keys=True, compression="GZIP", members=2),
    "records, GZIP members": Kind(unequal_keys=True, compression="GZIP", members=2),
}


class Opened:
    """A data set, read by the reader that is meant for its kind."""

    def __init__(self, folder, kind, counts=COUNTS, as_rows=True):
        self.folder, self.kind = folder, kind
        self.file = "train-00003-of-00004.tfrecord" + (".gz" if kind.compression else "")
        self.are_rows = as_rows and (not kind.compression or kind.members > 0)
        write_dataset(folder, counts, kind=kind)

    def reader(self, split="train", policy="raise", data_dir=None):
        manifest, data_dir = manifests.load(self.folder), data_dir or str(self.folder)
        shards = Shards.found(data_dir, select(manifest, split).segments, Corruption(data_dir, policy, most=100))
        if self.are_rows:
            return RowsReader.fit(manifest, shards, with_keys=True)
        return RecordsReader(shards)

    def read_all(self, split="train", policy="raise"):
        return self.reader(split, policy).read(all_pieces(select(manifests.load(self.folder), split)))

    def check(self, found, numbers, split="train"):
        """Checks that these are the records of a split with these numbers; returns the rows that are not stand-ins."""
        if self.are_rows:
            images, labels, keys = found.images.tobytes(), found.labels.tolist(), found.keys.tolist()
        else:
            decoded = [tf_example.decode(record) for record in found.as_bytes()]
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
    return Opened(tmp_path, KINDS[request.param], as_rows=request.param.startswith("rows"))


# Damage to compressed files is in test_compressed.py and test_members.py.
skippable = pytest.mark.parametrize("opened", [name for name in KINDS if "GZIP" not in name], indirect=True)


@pytest.mark.parametrize("pieces", [np.zeros((0, 3), np.int64), np.array([[1, 2, 2]])])
@pytest.mark.quick(5)
def test_no_record_is_one_row_of_nothing(opened, pieces):
    found = opened.reader().read(pieces)
    assert found.good.tolist() == [True]
    if opened.are_rows:
        assert not found.images.any()
        assert (found.images.shape, found.labels.tolist(), found.keys.tolist()) == ((1, 144), [0], [b""])
    else:
        assert found.as_bytes().tolist() == [b""]


class Damaged:
    """Some flipped bits, and which records of which shards they cost: as zlib and `framing.walk` see it."""

    def __init__(self, opened, flips):
        self.bad, self.units, self.offsets, self.streams = {}, {}, {}, set()
        for segment, shard in enumerate(
            s for s in manifests.load(opened.folder).splits["train"].shards if s.num_examples
        ):
            path = opened.folder / shard.file
            whole = path.read_bytes()
            data = bytearray(whole)
            for bit in {flip % (8 * len(data)) for of, flip in flips if of == segment}:
                data[bit // 8] ^= 1 << bit % 8
            path.write_bytes(data)
            if not opened.kind.compression:
                self._find(segment, shard.file, whole, bytes(data), 0, 0)
            elif table := opened.kind.members and shard_members(str(opened.folder), shard):
                ends, begin = table.offsets.tolist(), 0
                for (low, high), (first, stop) in zip(pairwise(ends), pairwise(table.firsts.tolist()), strict=True):
                    content = gzip.decompress(whole[low:high])
                    if inflated(data[low:high]) == content:
                        self._find(segment, shard.file, content, content, first, begin)
                    else:
                        self._find(segment, shard.file, content, b"", first, begin)
                        unit = f"GZIP member at byte offset {low}, records {first} to {stop - 1}"
                        self.units |= {(segment, record): unit for record in range(first, stop)}
                    begin += len(content)
            elif data != whole:  # at the end the whole file is checked
                self.streams.add(segment)

    def _find(self, segment, file, whole, data, first, begin):
        """Compares frames with the original ones, which begin at the same places."""
        for frame in framing.walk(io.BytesIO(whole).read, number=first, offset=begin):
            at, stop = frame.offset - begin, frame.end - begin
            self.bad[segment, frame.number] = data[at:stop] != whole[at:stop]
            self.offsets[segment, frame.number] = (file, frame.number, frame.offset)


def inflated(data):
    """Decompresses one GZIP member with zlib; returns None if it is corrupt or followed by more data."""
    one = zlib.decompressobj(31)
    try:
        content = one.decompress(bytes(data))
    except zlib.error:
        return None
    return content if one.eof and not one.unused_data else None


@st.composite
def _reads(draw):
    """How a data set is stored, read and damaged: kind, counts, pieces, flips, policy, reader, sizes of a task."""
    kind = Kind(unequal_keys=draw(st.booleans()), **draw(st.sampled_from(COMPRESSIONS)))
    counts = tuple(draw(st.lists(st.integers(0, 13), min_size=1, max_size=4).filter(any)))
    pieces = []
    for segment in draw(st.permutations(range(sum(map(bool, counts))))):
        count = [count for count in counts if count][segment]
        cuts = sorted(draw(st.lists(st.integers(0, count), min_size=2, max_size=4)) + [0, count] * draw(st.booleans()))
        pieces += draw(st.permutations([[segment, *pair] for pair in pairwise(cuts)]))
    flips = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1 << 20)), max_size=3))
    sizes = draw(st.tuples(*[st.sampled_from([1, 300, 1000, 1 << 20])] * 2))
    is_stream = kind.compression and not kind.members  # of which nothing can be skipped
    policy = "raise" if is_stream else draw(st.sampled_from(["raise", "skip"]))
    return kind, counts, pieces, flips, policy, draw(st.booleans()), draw(st.booleans()), sizes


COMPRESSIONS = [{}, {"compression": "GZIP"}, *({"compression": "GZIP", "members": n} for n in (1, 3, 5))]


@given(_reads())
@settings(max_examples=examples(300), derandomize=True)
def test_every_record_is_read_or_named_and_no_other_one_suffers(compiled, tmp_path_factory, case):
    kind, counts, pieces, flips, policy, as_rows, is_compiled, (task, chunk) = case
    opened = Opened(tmp_path_factory.mktemp("one"), kind, counts, as_rows)
    damaged = Damaged(opened, flips)
    wanted = [(segment, record) for segment, start, stop in pieces for record in range(start, stop)]
    firsts = np.cumsum([0, *(count for count in counts if count)])
    numbers = [int(firsts[segment]) + record for segment, record in wanted]
    good = [not damaged.bad.get(one) for one in wanted]
    with pytest.MonkeyPatch.context() as patch:
        if not is_compiled:
            patch.setattr(frames, "_unpack", None)
        for module in (rows_reader, records_reader, compressed):
            patch.setattr(module, "_TASK", task)
        for module in (rows_reader, frames):
            patch.setattr(module, "_CHUNK", chunk)
        try:
            found = opened.reader(policy=policy).read(np.array(pieces).reshape(-1, 3))
        except DataError as error:
            raised = error
        else:
            raised = None
    expected = {damaged.offsets[one] for one in wanted if damaged.bad.get(one)}
    if damaged.streams.intersection(segment for segment, start, stop in pieces if start < stop):
        # Of a stream, the records before the damage may be given; none is wrong, and nobody gets to its end.
        assert raised or all(
            (segment, [n for n in counts if n][segment] - 1) not in wanted for segment in damaged.streams
        )
        if raised:
            return
    if wanted and (not any(good) or (policy == "raise" and not all(good))):
        assert raised
        assert "\n" not in str(raised)
        bad = {one for one in wanted if damaged.bad.get(one)}
        parts = {damaged.units[one] for one in bad if one in damaged.units}
        if any(good) or policy == "raise":
            assert raised.part in parts or (pathlib.Path(raised.path).name, raised.record, raised.offset) in expected
        return
    assert raised is None
    if not wanted:
        assert found.good.tolist() == [True]
        return
    assert found.good.tolist() == good
    # In the place of a corrupt one stands the next good one, else the last.
    left = np.flatnonzero(good)
    stand_ins = left[np.minimum(np.searchsorted(left, np.arange(len(good))), len(left) - 1)]
    opened.check(found, [numbers[place] for place in stand_ins])
    assert {(pathlib.Path(r.file).name, r.record, r.offset) for r in skipped_records(opened.folder)} == expected


def test_slices_join_parts_of_shards(opened):
    opened.check(opened.read_all("train[10:]+train[3:6]+train[:1]"), [10, 11, 3, 4, 5, 0])
    opened.check(opened.read_all("test[1:3]"), [1, 2], "test")


@skippable
def test_a_shard_of_whole_records_but_other_bytes_is_refused(opened):
    one = opened.folder / opened.file
    records = [record for _, _, record in framing.records(io.BytesIO(one.read_bytes()).read, "")]
    one.write_bytes(b"".join(framing.frame(record.replace(b"train#", b"other#")) for record in records))
    for policy in ("raise", "skip"):
        with pytest.raises(DataError, check=at(opened.file, "CRC")):
            opened.read_all(policy=policy)


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
