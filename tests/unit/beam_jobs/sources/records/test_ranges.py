import io
import threading

import pytest

from beam_jobs.sources import files
from beam_jobs.sources.records import ranges as record_ranges

DATA = bytes(range(256)) * (40 << 12)  # 40 MiB


@pytest.fixture
def calls(monkeypatch):
    """Returns the (offset, size) of every call that reads."""
    made = []
    lock = threading.Lock()

    def read_at(_, offset, size):
        with lock:
            made.append((offset, size))
        return DATA[offset : offset + size]

    monkeypatch.setattr(files, "read_at", read_at)
    return made


def read(starts, size, remote):
    stops = [start + size for start in starts]
    found = list(record_ranges.read(io.BytesIO(DATA), starts, stops, remote))
    assert found == [DATA[start:stop] for start, stop in zip(starts, stops, strict=True)]


def test_a_stores_ranges_are_read_together_over_gaps_of_256_kib(calls):
    read([0, 200 << 10, 400 << 10, 4 << 20, (4 << 20) + 3000], 3000, remote=True)
    assert sorted(calls) == [(0, (400 << 10) + 3000), (4 << 20, 6000)]


def test_of_a_tenth_of_a_stores_file_all_is_read_8_mib_at_once(calls):
    read(list(range(0, len(DATA), 1 << 20)), 110 << 10, remote=True)  # 10.7% of it, far apart
    assert len(calls) == 5
    assert all(size <= 8 << 20 for _, size in calls)


def test_fewer_far_apart_are_read_one_by_one(calls):
    read(list(range(0, len(DATA), 1 << 20)), 100 << 10, remote=True)
    assert len(calls) == 40


def test_local_ranges_are_read_together_over_gaps_of_64_kib(calls):
    read([0, 60 << 10, 200 << 10], 3000, remote=False)
    assert calls == [(0, (60 << 10) + 3000), (200 << 10, 3000)]


def test_no_ranges():
    assert list(record_ranges.read(io.BytesIO(DATA), [], [], True)) == []
