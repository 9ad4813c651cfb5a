"""Checks of framed records, in compiled code and without it, against the walk of a file."""

import numpy as np
import pytest

from pipeline.errors import DataError
from pipeline.files.reading import OpenFile
from pipeline.read import frames
from pipeline.records import framing

SIZES = [0, 1, 7, 8, 9, 255, 256, 767, 768, 769, 3_000, 12_287, 12_288, 12_289, 13_056, 30_000, 100_003]
FIRST = 123_456_789_012  # offset in the file


def framed(sizes):
    random = np.random.default_rng(len(sizes))
    records = [random.integers(0, 256, size, np.uint8).tobytes() for size in sizes]
    each = [framing.frame(record) for record in records]
    begins = FIRST + np.cumsum([0, *map(len, each)])
    return records, np.frombuffer(b"".join(each), np.uint8).copy(), begins


def test_whole_records_have_no_problem_and_the_crcs_of_their_bytes(engine):
    records, data, begins = framed(SIZES)
    problems, crcs = frames.check(data, begins)
    assert not problems.any()
    assert crcs.tolist() == [framing.masked_crc32c(record) for record in records]


@pytest.mark.parametrize("size", [3, 1_000, 13_000])
def test_each_flipped_bit_is_seen_where_it_is(engine, size):
    _, data, begins = framed([40, size, 40])
    first, end = (begins[1:3] - FIRST).tolist()
    step = 1 if size < 10 else 997
    for bit in {*range(8 * first, 8 * (first + framing.HEADER)), *range(8 * first, 8 * end, step), 8 * end - 1}:
        data[bit // 8] ^= 1 << bit % 8
        problems, _ = frames.check(data, begins)
        in_header = bit // 8 - first < framing.HEADER
        assert problems.tolist() == [0, frames.BAD_LENGTH if in_header else frames.BAD_RECORD, 0], bit
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("move", [-1, 1, -15, 30])
def test_a_whole_record_at_other_places_is_none(engine, move):
    _, data, begins = framed([40, 40, 40])
    begins[1] += move
    problems, _ = frames.check(data, begins)
    assert problems[0] & frames.BAD_LENGTH
    assert problems[1]
    assert problems[2] == 0


def test_a_frame_too_short_for_a_record(engine):
    _, data, begins = framed([0])
    assert [frames.check(data, np.array([0, size]))[0].tolist() for size in range(16)] == [[frames.BAD_LENGTH]] * 16
    assert frames.check(data, begins)[0].tolist() == [0]
    assert frames.check(data[:0], begins[:1])[0].tolist() == []


@pytest.mark.parametrize("wrong", [[0, 57], [0, 30, 20, 56]])
def test_places_that_are_not_those_of_frames_are_refused(engine, wrong):
    _, data, _ = framed([40])
    with pytest.raises(ValueError, match="not those of the frames"):
        frames.check(data, np.array(wrong))


def test_frames_are_read_from_their_places_in_any_order_and_in_runs(engine, tmp_path):
    records, data, begins = framed([40, 0, 700, 41, 100_000, 9, 300_000, 8])
    (tmp_path / "file").write_bytes(bytes(7) + data.tobytes())
    begins = begins - FIRST + 7
    for wanted in ([3, 4, 0, 1, 2, 6, 7, 5, 4], [0, 2, 4, 6], [7, 6], list(range(8)), [5, 5, 5], []):
        sizes = [len(records[i]) + framing.OVERHEAD for i in wanted]
        places = 3 + np.cumsum([0, *sizes])  # the memory begins earlier
        memory = np.zeros(places[-1], np.uint8)
        with OpenFile(str(tmp_path / "file")) as file:
            problems, crcs = frames.read(file, begins[wanted], places, memory)
        assert not problems.any()
        assert crcs.tolist() == [framing.masked_crc32c(records[i]) for i in wanted]
        assert memory[3:].tobytes() == b"".join(framing.frame(records[i]) for i in wanted)


def test_a_file_that_ends_too_early_is_named(engine, tmp_path):
    _, data, begins = framed([40, 700, 41])
    (tmp_path / "file").write_bytes(data[:-1].tobytes())
    begins = begins - FIRST
    with OpenFile(str(tmp_path / "file")) as file, pytest.raises(DataError, match="truncated") as raised:
        frames.read(file, begins[:-1], begins, np.zeros(len(data), np.uint8))
    assert raised.value.path == str(tmp_path / "file")


@pytest.mark.parametrize("places", [[0, 56, 112], [0, 56, 1_000_000], [56, 0]])
def test_places_that_are_not_in_the_memory_are_refused(compiled, tmp_path, places):
    _, data, _ = framed([40])
    (tmp_path / "file").write_bytes(data.tobytes())
    with OpenFile(str(tmp_path / "file")) as file, pytest.raises(ValueError, match="places: not those of frames"):
        frames.read(file, np.zeros(len(places) - 1, np.int64), np.array(places), np.zeros(80, np.uint8))
