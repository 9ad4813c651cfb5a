import threading

import pytest

from beam_jobs.sources import record_files

DATA = bytes(range(256)) * (40 << 12)  # 40 MiB
EVERY_MIB = range(0, len(DATA), 1 << 20)


class File:
    """An open file that keeps the (offset, size) of every call that reads."""

    def __init__(self):
        self.calls = []
        self._lock = threading.Lock()

    def size(self):
        return len(DATA)

    def read_at(self, size, offset):
        with self._lock:
            self.calls.append((offset, size))
        return DATA[offset : offset + size]


def calls(starts, size, remote):
    file, stops = File(), [start + size for start in starts]
    found = list(record_files.read_ranges(file, list(starts), stops, remote))
    assert found == [DATA[start:stop] for start, stop in zip(starts, stops, strict=True)]
    return sorted(file.calls)


@pytest.mark.parametrize(
    ("remote", "starts", "spans"),
    [
        (False, [0, 60 << 10, 200 << 10], [(0, (60 << 10) + 3000), (200 << 10, 3000)]),
        (True, [0, 200 << 10, 400 << 10, 4 << 20, (4 << 20) + 3000], [(0, (400 << 10) + 3000), (4 << 20, 6000)]),
        (True, [], []),
    ],
)
def test_ranges_are_read_together_over_gaps_of_64_kib_and_of_256_in_a_store(remote, starts, spans):
    assert calls(starts, 3000, remote) == spans


def test_of_a_tenth_of_a_stores_file_all_is_read_8_mib_at_once():
    together = calls(EVERY_MIB, 110 << 10, remote=True)  # 10.7% of it, far apart
    assert len(together) == 5
    assert all(size <= 8 << 20 for _, size in together)
    assert len(calls(EVERY_MIB, 100 << 10, remote=True)) == 40
