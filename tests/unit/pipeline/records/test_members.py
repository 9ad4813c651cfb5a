"""Members of compressed shards and the table of them, byte for byte."""

import gzip
import itertools

import crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.records import members
from pipeline.records.members import MemberTable

DATA = np.random.default_rng(0).integers(0, 4, 5000, np.uint8).tobytes()


@pytest.fixture(autouse=True, params=["isal", "zlib alone"])
def library(request, monkeypatch):
    """What decompresses members: isal, where it is installed, and zlib."""
    if request.param == "isal":
        pytest.importorskip("isal", reason="needs isal, which is not there for this kind of processor")
    else:
        monkeypatch.setattr(members, "isal_zlib", None)


def inflated(member, size):
    found = bytearray(size)
    members.inflate(member, memoryview(found))
    return bytes(found)


def test_a_member_is_a_gzip_file_without_a_time_or_a_name():
    member = members.deflate(DATA)
    assert gzip.decompress(member) == inflated(member, 5000) == DATA
    assert member[:8] == b"\x1f\x8b\x08\x00" + bytes(4)
    assert len(member) < 1700
    assert members.deflate(DATA) == member
    assert inflated(members.deflate(b""), 0) == b""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda member: member[:-1], "cut"),
        (lambda member: member[:700], "cut"),
        (lambda member: b"", "cut"),
        (lambda member: members.deflate(DATA[:-1]), "4999 .* 5000 "),
        (lambda member: members.deflate(DATA + b"x"), "more .* 5000 "),
        (lambda member: members.deflate(bytes(1 << 24)), "more .* 5000 "),
        (lambda member: member + b"abc", " 3 bytes before "),
        (lambda member: b"x" + member[1:], "cannot be decompressed: .*header"),
        (lambda member: member[:-8] + bytes(8), "cannot be decompressed: .*check"),
    ],
)
def test_what_a_member_should_not_be_is_said(change, words):
    with pytest.raises(ValueError, match=words):
        inflated(change(members.deflate(DATA)), 5000)


@pytest.mark.parametrize("size", [600_000, 3_000_000])
def test_members_of_many_steps_are_whole(size):
    data = np.random.default_rng(1).integers(0, 200, size, np.uint8).tobytes()
    member = members.deflate(data)
    assert len(member) > 2 * (256 << 10)
    assert inflated(member, size) == data
    for wrong, words in (
        (member[:-1], "it is cut"),
        (member + bytes(300_000), "ends 300000 bytes before"),
        (members.deflate(data[:-1]), f" {size - 1} bytes"),
        (members.deflate(data + b"x"), "holds more"),
    ):
        with pytest.raises(ValueError, match=words):
            inflated(wrong, size)


def test_a_whole_member_needs_no_second_library(monkeypatch):
    member = members.deflate(DATA)
    if members.isal_zlib is not None:
        monkeypatch.delattr(members.zlib, "decompressobj")
    assert inflated(member, 5000) == DATA


@given(st.lists(st.integers(16, 900_000), max_size=60))
def test_members_hold_as_many_records_as_fit(lengths):
    begins = np.cumsum([0, *lengths])
    firsts = members.first_records(begins)
    assert (firsts[0], firsts[-1]) == (0, len(lengths))
    for first, stop in itertools.pairwise(firsts.tolist()):
        assert stop > first
        assert begins[stop] - begins[first] <= members.MEMBER_BYTES or stop == first + 1
        assert stop == len(lengths) or begins[stop + 1] - begins[first] > members.MEMBER_BYTES


def test_a_record_larger_than_a_member_has_one_of_its_own():
    large = members.MEMBER_BYTES + 1
    assert members.first_records(np.cumsum([0, 10, large, 10, 10, large, large])).tolist() == [0, 1, 2, 4, 5, 6]


TABLE = (
    b"members\x01" + bytes([2, 0, 0, 0, 0, 0, 0, 0])  # two members
    + b"".join(n.to_bytes(8, "little") for n in (0, 700, 1300))
    + b"".join(n.to_bytes(8, "little") for n in (0, 2, 3))
)  # fmt: skip
BEGINS = b"".join(n.to_bytes(8, "little") for n in (0, 500, 900, 1700))


@pytest.mark.parametrize(("stride", "more"), [(400, b""), (None, BEGINS)])
def test_the_table_is_these_bytes(stride, more):
    begins = None if stride else np.array([0, 500, 900, 1700])
    data = members.to_bytes([0, 700, 1300], np.array([0, 2, 3]), begins)
    assert data == TABLE + more
    assert len(data) <= members.size_bound(3)
    table = MemberTable.of(members.parse(data, 3, 1300, stride, f"{crc32c.crc32c(data):08x}"), stride)
    assert (table.offsets.tolist(), table.firsts.tolist()) == ([0, 700, 1300], [0, 2, 3])
    assert table.begins_of(1, 3).tolist() == ([400, 800, 1200] if stride else [500, 900, 1700])
    assert [table.member_of(record) for record in range(3)] == [0, 0, 1]


@pytest.mark.parametrize("begins", [(1, 500, 900, 1700), (0, 900, 900, 1700), (0, 900, 500, 1700)])
def test_records_that_do_not_ascend_from_0_are_refused(begins):
    data = TABLE + b"".join(n.to_bytes(8, "little") for n in begins)
    with pytest.raises(ValueError, match="records .* ascend"):
        members.parse(data, 3, 1300, None, f"{crc32c.crc32c(data):08x}")
