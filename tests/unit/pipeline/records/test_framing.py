import gzip
import io
import tracemalloc
import zlib

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.records import framing
from pipeline.records.framing import Kind, check, records, walk
from pipeline.records.stream import RecordStream
from tests.helpers.raised import at

RECORDS = [b"", b"a", b"hello" * 100]
DATA = b"".join(map(framing.frame, RECORDS))  # frames at 0, 16 and 33, of 549 bytes
COMPRESSED = {
    "one member": gzip.compress(DATA),
    "members that cut records": b"".join(gzip.compress(DATA[i : i + 7]) for i in range(0, len(DATA), 7)),
    "padded": gzip.compress(DATA[:40]) + bytes(20000) + gzip.compress(DATA[40:]) + bytes(3),
    "ZLIB": zlib.compress(DATA),
}


def compression_of(name):
    return "ZLIB" if name == "ZLIB" else "GZIP"


def frames(data, *arguments):
    return list(walk(io.BytesIO(data).read, *arguments))


def header(length):
    packed = length.to_bytes(8, "little")
    return packed + framing.masked_crc32c(packed).to_bytes(4, "little")


def flipped(at):
    return DATA[:at] + bytes([DATA[at] ^ 1]) + DATA[at + 1 :]


@pytest.mark.parametrize("read_size", [1, 5, 16, 549, 1000])
def test_every_record_comes_with_its_number_and_offsets_however_the_bytes_do(read_size):
    file = io.BytesIO(DATA)
    found = list(walk(lambda size: file.read(read_size)))
    assert [(f.number, f.offset, f.end, f.record, f.fault) for f in found] == [
        (0, 0, 16, b"", None),
        (1, 16, 33, b"a", None),
        (2, 33, 549, RECORDS[2], None),
    ]


@pytest.mark.parametrize(
    ("data", "kind", "number", "offset", "facts"),
    [
        (DATA[:5], Kind.CUT_HEADER, 0, 0, "5 of 12 bytes"),
        (DATA[:40], Kind.CUT_HEADER, 2, 33, "7 of 12 bytes"),
        (DATA[:100], Kind.CUT_RECORD, 2, 33, "67 of 516 bytes"),
        (DATA + b"\0", Kind.CUT_HEADER, 3, 549, "1 of 12 bytes"),
        (flipped(17), Kind.LENGTH_CRC, 1, 16, "length"),
        (DATA + header(1 << 62), Kind.TOO_LONG, 3, 549, f"{1 << 62:,} bytes, above {framing.MAX_RECORD:,}"),
    ],
)
def test_a_walk_ends_at_the_fault_that_hides_the_next_record(data, kind, number, offset, facts):
    *before, last = frames(data)
    assert [frame.record for frame in before] == RECORDS[:number]
    assert (last.number, last.offset, last.end, last.record, last.fault.kind) == (number, offset, offset, None, kind)
    assert facts in last.fault.text
    advice = "help" if kind is not Kind.TOO_LONG else "a record of that size is not read: write it as several"
    with pytest.raises(DataError, check=at("a", record=number, offset=offset, advice=advice)):
        list(records(io.BytesIO(data).read, "a", advice="help"))


def test_a_walk_goes_past_a_wrong_record_and_past_a_wrong_length_whose_frame_is_known():
    assert [(f.record, f.fault and f.fault.kind) for f in frames(flipped(28))] == [
        (b"", None),
        (None, Kind.RECORD_CRC),
        (RECORDS[2], None),
    ]
    size_of = {(1, 16): 17}.get
    found = frames(flipped(17), lambda number, offset: size_of((number, offset)))
    assert [(f.record, f.fault and f.fault.kind) for f in found] == [
        (b"", None),
        (b"a", Kind.LENGTH_CRC),
        (RECORDS[2], None),
    ]
    assert [frame.record for frame in frames(flipped(17), lambda number, offset: 15)] == [b"", None]


@given(st.integers(0, 549 * 8 - 1))
@settings(max_examples=300)
def test_every_flipped_bit_is_found_in_its_record(bit):
    data = bytearray(DATA)
    data[bit // 8] ^= 1 << bit % 8
    first = next(frame for frame in frames(bytes(data)) if frame.fault)
    assert first.number == (0 if bit // 8 < 16 else 1 if bit // 8 < 33 else 2)


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_records_are_read_and_the_stored_bytes_counted(name):
    data = COMPRESSED[name]
    stream = RecordStream(io.BytesIO(data).read, compression_of(name))
    assert [record for _, _, record in records(stream.read, "a")] == RECORDS
    plain = RecordStream(io.BytesIO(data).read, "")
    plain.finish()
    assert (stream.num_bytes, stream.crc) == (plain.num_bytes, plain.crc) == (len(data), plain.crc)


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_bytes_that_are_cut_or_wrong_are_named_by_the_record_they_hide(name):
    data = COMPRESSED[name]
    for bad in (data[:-12], data[:-4] + b"\1\2\3\4", data + b"garbage"):
        stream = RecordStream(io.BytesIO(bad).read, compression_of(name))
        *before, last = walk(stream.read)
        assert [frame.record for frame in before] == RECORDS[: last.number]
        assert last.fault.kind is Kind.COMPRESSION


def test_records_before_damaged_bytes_are_given():
    noise = [bytes((i * j * 7 + j * j) % 251 for j in range(3000)) for i in range(100)]
    data = bytearray(gzip.compress(b"".join(map(framing.frame, noise)), 1))
    data[len(data) * 3 // 4] ^= 0xFF
    frames = list(walk(RecordStream(io.BytesIO(bytes(data)).read, "GZIP").read))
    before = next(frame.number for frame in frames if frame.fault)
    assert 20 < before < 100
    assert [frame.record for frame in frames[:before]] == noise[:before]


def test_a_claimed_length_costs_only_the_bytes_that_are_there():
    claim = header(framing.MAX_RECORD) + bytes(5 << 20)
    for data, compression in ((claim, ""), (gzip.compress(claim), "GZIP")):
        stream = RecordStream(io.BytesIO(data).read, compression)
        tracemalloc.start()
        [frame] = walk(stream.read)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert frame.fault.kind is Kind.CUT_RECORD
        assert peak < 20 << 20


def test_a_frame_is_judged_by_its_length_and_crcs():
    frame = framing.frame(b"abc\0")
    assert check(frame) is None
    assert check(memoryview(framing.frame(b""))) is None
    for size in (0, 1, 11, 12, 15, 16, 19):
        assert check(memoryview(frame[:size])).kind is Kind.LENGTH
    assert check(b"\1" + frame[1:]).kind is Kind.LENGTH_CRC
    assert check(frame[:-1] + b"\0").kind is Kind.RECORD_CRC


def test_frames_are_those_of_tensorflow(tmp_path):
    with tf.io.TFRecordWriter(str(tmp_path / "a")) as writer:
        for record in RECORDS:
            writer.write(record)
    assert (tmp_path / "a").read_bytes() == DATA
