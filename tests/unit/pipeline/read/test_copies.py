"""What is fetched from a store, byte by byte, and what is not fetched at all."""

import logging
import os

import crc32c
import pytest

from pipeline.errors import DataError
from pipeline.read import shard_cache
from pipeline.read.cache_folder import CacheFolder
from pipeline.read.shard_cache import CacheCounts, ShardCache, cache_counts
from tests.raised import at

DATA = {"a": bytes(range(250)) * 4, "b": b"b" * 1000, "c": b"c" * 1000, "empty": b""}


@pytest.fixture
def cache_of(tmp_path):
    """Returns a function that makes the cache of a folder with the files of `DATA`."""
    for name, data in DATA.items():
        (tmp_path / name).write_bytes(data)

    def cache_of(most_bytes=100_000, skips=False):
        return ShardCache(str(tmp_path), "0123456789abcdef" * 4, CacheFolder(tmp_path / "cache", most_bytes), skips)

    return cache_of


def entry_of(cache, name, crc=None):
    return cache.entry(name, len(DATA[name]), crc or f"{crc32c.crc32c(DATA[name]):08x}")


def read(cache, entry):
    """Returns a file's copy; None: there is none."""
    with cache.opened(entry) as file:
        return file and bytes(file.read_at(0, entry.num_bytes))


def test_blocks_and_short_writes_make_the_file_whole(cache_of, monkeypatch):
    pwrite = os.pwrite
    monkeypatch.setattr(shard_cache, "_BLOCK", 400)
    monkeypatch.setattr(os, "pwrite", lambda file, data, offset: pwrite(file, data[:150], offset))
    cache = cache_of()
    assert read(cache, entry_of(cache, "a")) == DATA["a"]


def test_a_reason_is_told_once(cache_of, caplog):
    caplog.set_level(logging.WARNING, logger="pipeline")
    cache, before = cache_of(1500), cache_counts()
    cache.fetch_ahead([entry_of(cache, "a")])
    for name in "abcbc":
        assert read(cache, entry_of(cache, name)) == (DATA["a"] if name == "a" else None)
    assert cache_counts().plus(before, -1).uncached == 4
    assert caplog.text.count("is less than the shards take that are in use") == 1


def test_what_is_known_to_be_wrong_or_is_empty_is_not_fetched(cache_of, monkeypatch):
    fetched, fetch = [], shard_cache.Copies._fetch
    monkeypatch.setattr(shard_cache.Copies, "_fetch", lambda *given: fetched.append(1) or fetch(*given))
    cache, before = cache_of(skips=True), cache_counts()
    wrong, empty = entry_of(cache, "b", "12345678"), entry_of(cache, "empty")
    assert read(cache, wrong) is None
    for entry in (wrong, empty):
        cache.fetch_ahead([entry])
        assert read(cache, entry) is None
    assert (len(fetched), cache._ahead) == (2, {})
    assert cache_counts().plus(before, -1) == CacheCounts(uncached=1)
    with pytest.raises(DataError, check=at("b", "CRC32C", "12345678")):
        read(cache_of(), wrong)
