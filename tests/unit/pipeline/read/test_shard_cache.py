"""The cache of one input: jobs, copies, and what becomes of them. The originals are in another local folder."""

import logging
import multiprocessing
import os
import pathlib
import pickle
import threading
import time

import crc32c
import numpy as np
import pytest

from pipeline.errors import DataError, UsageError
from pipeline.manifest.splits import select
from pipeline.read import shard_cache
from pipeline.read.cache_folder import CacheFolder
from pipeline.read.corruption import Corruption, skipped_records
from pipeline.read.records_reader import RecordsReader
from pipeline.read.shard_cache import CacheCounts, ShardCache, cache_counts, make_cache
from pipeline.read.shards import Shards
from tests.helpers.datasets import Kind, write_dataset
from tests.helpers.raised import at

DIGEST = "0123456789abcdef" * 4


@pytest.fixture(autouse=True)
def _warnings_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever level Beam's runners have left at the root."""
    caplog.set_level(logging.WARNING, logger="pipeline")


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "store"
    folder.mkdir()
    for n in range(6):
        (folder / f"shard{n}").write_bytes(bytes([n]) * 1000)
    return folder


def make(store, most_bytes=100_000, skips=False):
    return ShardCache(str(store), DIGEST, CacheFolder(store.parent / "cache", most_bytes), skips)


def entries(cache):
    return [cache.entry(f"shard{n}", 1000, f"{crc32c.crc32c(bytes([n]) * 1000):08x}") for n in range(6)]


def read(cache, entry):
    """Returns the first byte of a file's copy; None if there is none."""
    with cache.opened(entry) as file:
        return file and file.read_at(0, 1)[0]


def counted(before):
    return cache_counts().plus(before, -1)


def test_what_is_fetched_ahead_stays_until_it_is_released(store):
    cache, before = make(store, 3000), cache_counts()
    all_six = entries(cache)
    cache.fetch_ahead(all_six[:3])
    assert [read(cache, entry) for entry in all_six[:3]] == [0, 1, 2]
    assert counted(before) == CacheCounts(misses=3, fetched_bytes=3000)
    assert read(cache, all_six[3]) is None  # no room
    assert counted(before).uncached == 1
    cache.release(all_six[:3])
    assert read(cache, all_six[3]) == 3
    assert counted(before) == CacheCounts(misses=4, uncached=1, fetched_bytes=4000)


def test_a_window_that_was_fetched_in_vain_is_fetched_when_there_is_room(store):
    cache = make(store, 3000)
    all_six = entries(cache)
    cache.fetch_ahead(all_six[:3])
    assert [read(cache, entry) for entry in all_six[:3]] == [0, 1, 2]
    cache.fetch_ahead(all_six[3:])  # while the others are in use
    cache.release(all_six[:3])
    assert [read(cache, entry) for entry in all_six[3:]] == [3, 4, 5]


def test_threads_that_want_one_file_fetch_it_once(store, monkeypatch):
    cache, before, fetch, began = make(store), cache_counts(), shard_cache.Copies._fetch, threading.Event()

    def slow(*arguments):
        began.wait(10)
        return fetch(*arguments)

    monkeypatch.setattr(shard_cache.Copies, "_fetch", slow)
    found = []
    threads = [threading.Thread(target=lambda: found.append(read(cache, entries(cache)[4]))) for _ in range(8)]
    for thread in threads:
        thread.start()
    began.set()
    for thread in threads:
        thread.join()
    assert found == [4] * 8
    assert counted(before).misses == 1


def test_an_error_of_the_store_is_raised_and_the_next_use_tries_again(store):
    cache = make(store)
    entry = entries(cache)[1]
    os.rename(store / "shard1", store / "away")
    for _ in range(2):
        cache.fetch_ahead([entry])
        with pytest.raises(DataError, check=at("shard1", "No such file")):
            read(cache, entry)
    os.rename(store / "away", store / "shard1")
    assert read(cache, entry) == 1


@pytest.mark.parametrize("is_new", [True, False], ids=["of another process", "of this process"])
def test_a_wrong_copy_is_fetched_again(store, is_new, caplog):
    cache, before = make(store), cache_counts()
    entry = entries(cache)[2]
    assert read(cache, entry) == 2
    path = pathlib.Path(CacheFolder(store.parent / "cache").file(entry))
    status = path.stat()
    path.write_bytes(bytes([7]) + path.read_bytes()[1:])
    if is_new:  # nothing but its bytes tells
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        cache = make(store)
    assert read(cache, entry) == 2
    assert counted(before) == CacheCounts(misses=2, fetched_bytes=2000)
    assert f"{path}: 1000 bytes of CRC32C " in caplog.text
    path.write_bytes(b"")  # as after a crash of the machine
    assert read(make(store), entry) == 2


def test_a_copy_that_is_changed_while_it_is_used_is_an_error_and_removed(store):
    cache = make(store)
    entry = entries(cache)[2]
    with pytest.raises(DataError, check=at("shard2", "it was written to")), cache.opened(entry) as file:
        os.utime(file.path, ns=(1, 1))
    assert not os.path.exists(CacheFolder(store.parent / "cache").file(entry))
    assert read(cache, entry) == 2


@pytest.mark.parametrize("kind", [Kind(), Kind(compression="GZIP")], ids=["plain", "compressed"])
def test_a_copy_that_goes_bad_after_its_check_is_an_error_and_never_skipped(tmp_path, kind):
    data, every = tmp_path / "data", np.array([[0, 0, 9], [1, 0, 7]])
    made = write_dataset(data, (9, 7), kind=kind)
    cache = ShardCache(str(data), made.digest, CacheFolder(tmp_path / "cache"), skips=True)
    segments = select(made, "train").segments
    reader = RecordsReader(Shards.found(data, segments, Corruption(str(data), "skip", 9), cache))
    expected = reader.read(every).as_bytes().tolist()
    [copy] = tmp_path.glob(f"cache/*/{made.splits['train'].shards[1].file}")
    before = copy.stat()
    with copy.open("r+b") as file:
        file.seek(200)
        byte = file.read(1)[0]
        file.seek(200)
        file.write(bytes([byte ^ 1]))
    os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DataError, check=at(copy, "after this copy's CRC32C was checked")):
        reader.read(every)
    assert skipped_records(data) == ()
    assert not copy.exists()
    assert reader.read(every).as_bytes().tolist() == expected


def test_another_process_that_does_not_finish_is_not_waited_for_forever(store, monkeypatch, caplog):
    monkeypatch.setattr(shard_cache, "_STALLED_SECONDS", 0.2)
    cache = make(store)
    entry = entries(cache)[0]
    draft = CacheFolder(store.parent / "cache").draft(entry)
    assert read(cache, entry) is None
    assert (
        f"another process does not finish what it fetches; shards without a copy are read from {store}" in caplog.text
    )
    draft.close()
    assert read(cache, entry) == 0


def test_a_file_that_is_not_the_manifest_s_is_fetched_twice_and_named(store, monkeypatch):
    cache, fetched, fetch = make(store), [], shard_cache.Copies._fetch
    monkeypatch.setattr(shard_cache.Copies, "_fetch", lambda *given: fetched.append(1) or fetch(*given))
    wrong = cache.entry("shard5", 1000, "12345678")
    with pytest.raises(DataError, check=at("shard5", "CRC32C", "12345678")):
        read(cache, wrong)
    assert len(fetched) == 2
    skipping = make(store, skips=True)
    assert [read(skipping, wrong) for _ in range(3)] == [None] * 3
    assert len(fetched) == 4  # it is known by then


def test_a_pickled_cache_has_the_same_copies(store):
    cache, before = make(store), cache_counts()
    assert read(cache, entries(cache)[3]) == 3
    assert read(pickle.loads(pickle.dumps(cache)), entries(cache)[3]) == 3
    assert counted(before) == CacheCounts(hits=1, misses=1, fetched_bytes=1000)


def read_in_child(answer):
    answer.put([read(_CACHE[0], entry) for entry in entries(_CACHE[0])])


_CACHE = []


def test_a_forked_process_has_jobs_of_its_own_and_holds_nothing_of_its_parent(store):
    cache = make(store, 6000)
    cache.fetch_ahead(entries(cache))
    assert [read(cache, entry) for entry in entries(cache)] == [0, 1, 2, 3, 4, 5]
    cache.release(entries(cache))  # its threads wait now; a fork has none of them
    _CACHE[:] = [cache]
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    process = context.Process(target=read_in_child, args=(answer,), daemon=True)
    process.start()
    try:
        assert answer.get(timeout=30) == [0, 1, 2, 3, 4, 5]
    finally:
        process.kill()
        process.join()
    _CACHE.clear()


def test_a_cache_of_data_on_this_machine_is_not_used(tmp_path, caplog):
    made = write_dataset(tmp_path / "data")
    segments = select(made, "train").segments
    assert make_cache(tmp_path / "data", made, segments, None) is None
    for _ in range(2):
        assert make_cache(tmp_path / "data", made, segments, tmp_path / "cache") is None
    assert (
        caplog.text.count(f"cache_dir={tmp_path / 'cache'} is not used: {tmp_path / 'data'} is a folder of this") == 1
    )
    assert not (tmp_path / "cache").exists()


def test_a_cache_too_small_for_a_shard_names_the_least_that_works(tmp_path):
    made = write_dataset(tmp_path / "data")
    segments = select(made, "train").segments
    largest = max(made.splits["train"].shards, key=lambda shard: shard.num_bytes)
    assert make_cache("s3://b/data", made, segments, tmp_path / "c", largest.num_bytes)
    with pytest.raises(UsageError, match=f"^cache_bytes={largest.num_bytes - 1}: .* {largest.num_bytes} "):
        make_cache("s3://b/data", made, segments, tmp_path / "c", largest.num_bytes - 1)


def test_so_many_files_are_held_at_most(store, monkeypatch):
    monkeypatch.setattr(shard_cache, "_MOST_AHEAD", 2)
    cache = make(store)
    cache.fetch_ahead(entries(cache))
    deadline = time.monotonic() + 30
    while cache_counts().misses < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [read(cache, entry) for entry in entries(cache)] == [0, 1, 2, 3, 4, 5]
    assert len(cache._jobs) == 2
    cache.release(entries(cache))
    assert len(cache._jobs) == 0


DATA = {"a": bytes(range(250)) * 4, "b": b"b" * 1000, "c": b"c" * 1000, "empty": b""}


@pytest.fixture
def cache_of(tmp_path):
    """Returns a function that makes the cache of a folder with the files of `DATA`."""
    for name, data in DATA.items():
        (tmp_path / name).write_bytes(data)
    return lambda most_bytes=100_000, skips=False: ShardCache(
        str(tmp_path), DIGEST, CacheFolder(tmp_path / "cache", most_bytes), skips
    )


def entry_of(cache, name, crc=None):
    return cache.entry(name, len(DATA[name]), crc or f"{crc32c.crc32c(DATA[name]):08x}")


def content(cache, entry):
    """Returns the bytes of a file's copy; None if there is none."""
    with cache.opened(entry) as file:
        return file and bytes(file.read_at(0, entry.num_bytes))


def test_blocks_and_short_writes_make_the_file_whole(cache_of, monkeypatch):
    pwrite = os.pwrite
    monkeypatch.setattr(shard_cache, "_BLOCK", 400)
    monkeypatch.setattr(os, "pwrite", lambda file, data, offset: pwrite(file, data[:150], offset))
    cache = cache_of()
    assert content(cache, entry_of(cache, "a")) == DATA["a"]


def test_a_reason_is_told_once(cache_of, caplog):
    cache, before = cache_of(1500), cache_counts()
    cache.fetch_ahead([entry_of(cache, "a")])
    for name in "abcbc":
        assert content(cache, entry_of(cache, name)) == (DATA["a"] if name == "a" else None)
    assert cache_counts().plus(before, -1).uncached == 4
    assert caplog.text.count("cache_bytes, ") == 1


def test_what_is_known_to_be_wrong_or_is_empty_is_not_fetched(cache_of, monkeypatch):
    fetched, fetch = [], shard_cache.Copies._fetch
    monkeypatch.setattr(shard_cache.Copies, "_fetch", lambda *given: fetched.append(1) or fetch(*given))
    cache, before = cache_of(skips=True), cache_counts()
    wrong, empty = entry_of(cache, "b", "12345678"), entry_of(cache, "empty")
    assert content(cache, wrong) is None
    for entry in (wrong, empty):
        cache.fetch_ahead([entry])
        assert content(cache, entry) is None
    assert (len(fetched), cache._ahead) == (2, {})
    assert cache_counts().plus(before, -1) == CacheCounts(uncached=1)
    with pytest.raises(DataError, check=at("b", "CRC32C", "12345678")):
        content(cache_of(), wrong)


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
    shard_cache._count(CacheCounts(hits=2))
    shard_cache._count(CacheCounts(misses=1, fetched_bytes=5))
    assert cache_counts().plus(before, -1) == CacheCounts(2, 1, 0, 5)
