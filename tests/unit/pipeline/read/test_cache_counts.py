"""What caches did, in numbers and in words."""

import pytest

from pipeline.read.shard_cache import CacheCounts, _count, cache_counts


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        (CacheCounts(), ""),
        (CacheCounts(1, 2, 0, 3 << 20), "cache 1 hit, 2 misses (3.0 MiB fetched)"),
        (CacheCounts(1200, 1, 4, 700), "cache 1,200 hits, 1 miss (700 bytes fetched), 4 read from the store"),
    ],
)
def test_counts_as_one_line(counts, text):
    assert str(counts) == text


def test_counts_add_up():
    before = cache_counts()
    _count(CacheCounts(hits=2))
    _count(CacheCounts(misses=1, fetched_bytes=5))
    assert cache_counts().plus(before, -1) == CacheCounts(2, 1, 0, 5)
