import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.records import framing

RECORDS = [b"", b"a", b"hello" * 100]


def test_bytes_are_those_of_tensorflow(tmp_path):
    path = tmp_path / "a.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in RECORDS:
            writer.write(record)
    data = b"".join(map(framing.frame, RECORDS))
    assert data == path.read_bytes()
    assert [record for _, record in framing.records(data, "a")] == RECORDS
    assert [offset for offset, _ in framing.records(data, "a")] == [0, 16, 33]


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (5, "record 0, byte offset 0: the file ends inside a header"),
        (34, "record 2, byte offset 33"),
        (40, "inside a header"),
        (100, "record 2, byte offset 33: the file ends inside the record"),
    ],
)
def test_a_cut_file_names_record_and_offset(cut, message):
    with pytest.raises(DataError, match=message):
        list(framing.records(b"".join(map(framing.frame, RECORDS))[:cut], "a"))


@given(st.integers(0, 549 * 8 - 1))
@settings(max_examples=300, deadline=None)
def test_every_flipped_bit_is_found_in_its_record(bit):
    data = bytearray(b"".join(map(framing.frame, RECORDS)))
    assert len(data) == 549
    data[bit // 8] ^= 1 << bit % 8
    record = 0 if bit // 8 < 16 else 1 if bit // 8 < 33 else 2
    with pytest.raises(DataError, match=rf"^a, record {record}, byte offset"):
        list(framing.records(bytes(data), "a"))
