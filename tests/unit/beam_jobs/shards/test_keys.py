import random

import crc32c
import pytest

from beam_jobs.shards.keys import Repeated, as_error, by_bucket, repeats
from pipeline.manifest import ShardInfo
from pipeline.records import framing
from pipeline.records.tf_example import encode


@pytest.fixture
def shard(tmp_path):
    """A function that writes a shard with given keys and returns its entry in a manifest."""

    def write(file, keys):
        data = b"".join(framing.frame(encode({"image": b"image", "label": 3, "key": key})) for key in keys)
        (tmp_path / file).write_bytes(data)
        return ShardInfo(file, len(keys), len(data), f"{crc32c.crc32c(data):08x}", None)

    return write


def groups_of(folder, shards):
    """Groups the hashes of shards by their bucket, as the pipeline does."""
    groups = {}
    for info in shards:
        for bucket, hashes in by_bucket(folder, info):
            groups.setdefault(bucket, []).append(hashes)
    return groups


def repeated(folder, shards):
    return sorted(pair for group in groups_of(folder, shards).values() for pair in repeats(group)[:1])


def keys(start, stop):
    return [b"key %d" % i for i in range(start, stop)]


def test_keys_that_differ_are_no_repeats(shard, tmp_path):
    awkward = [b"", b"\0", b"\0\0", b"a", b"a\0", b"A", b"a ", "ä".encode(), "ä".encode("latin-1"), b"x" * 10_000]
    shards = [shard("a", keys(0, 3000)), shard("b", keys(3000, 6000)), shard("c", awkward), shard("d", [])]
    assert repeated(tmp_path, shards) == []


@pytest.mark.parametrize(
    ("first", "second"), [(("a", 0), ("a", 1)), (("a", 7), ("b", 3)), (("b", 0), ("c", 99)), (("a", 99), ("c", 0))]
)
def test_a_key_that_comes_twice_is_found_in_whatever_shards(first, second, shard, tmp_path):
    content = {"a": keys(0, 100), "b": keys(100, 200), "c": keys(200, 300)}
    for file, number in (first, second):
        content[file][number] = b"twice"
    shards = [shard(file, content[file]) for file in content]
    assert repeated(tmp_path, shards) == [Repeated(first, second)]
    random.Random(1).shuffle(shards)
    assert repeated(tmp_path, shards) == [Repeated(first, second)]


def test_of_many_repeats_the_first_is_told(shard, tmp_path):
    shards = [shard("train", keys(0, 50)), shard("test", [*keys(60, 70), *keys(20, 50)])]
    error = as_error(tmp_path, repeated(tmp_path, shards))
    assert str(error) == (
        "duplicate key 'key 20': record 10 of test and record 20 of train; "
        "every example needs its own: choose another --key_column"
    )


def test_the_first_two_of_three_are_told(shard, tmp_path):
    shards = [shard("a", [b"x", b"y", b"x"]), shard("b", [b"x"])]
    assert repeated(tmp_path, shards) == [Repeated(("a", 0), ("a", 2))]


def test_a_key_that_is_no_text_can_be_told(shard, tmp_path):
    error = as_error(tmp_path, repeated(tmp_path, [shard("a", [b"\xff\n", b"\xff\n"])]))
    assert "duplicate key '\\\\xff\\n': record 0 of a and record 1 of a" in str(error)
    assert "\n" not in str(error)


def test_a_retried_bundle_that_gives_its_hashes_twice_is_no_repeat(shard, tmp_path):
    a, b = shard("a", keys(0, 500)), shard("b", keys(500, 900))
    assert repeated(tmp_path, [a, b, a, a, b]) == []
    c = shard("c", [b"key 3"])
    assert repeated(tmp_path, [c, a, c, b, a]) == [Repeated(("a", 3), ("c", 0))]
