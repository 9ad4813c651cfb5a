import pytest

from pipeline.manifest import naming


def test_shard_names_have_five_digits_and_read_back():
    assert naming.shard_name("train", 3, 10) == "train-00003-of-00010.tfrecord"
    assert naming.shard_name("a_1", 123456, 1234567) == "a_1-123456-of-1234567.tfrecord"
    for split, index, count in [("train", 0, 1), ("test", 99999, 100000), ("a_1", 123456, 1234567)]:
        assert naming.parse_shard_name(naming.shard_name(split, index, count)) == (split, index, count)


def test_shards_of_a_version_have_its_number():
    name = naming.shard_name("train", 3, 10, "GZIP", version=12)
    assert name == "train-v12-00003-of-00010.tfrecord.gz"
    assert naming.parse_shard_name(name) == ("train", 3, 10)
    assert naming.version_of_shard(name) == 12
    assert naming.version_of_shard("train-00003-of-00010.tfrecord") == 1
    assert naming.shard_of_sidecar("crcs.train-v2-00000-of-00001.tf-record") == "train-v2-00000-of-00001.tfrecord"


def test_names_of_versions_read_back():
    name = naming.version_name(2, "54836350b36b" + "0" * 52)
    assert name == "versions/2-54836350b36b.json"
    assert naming.parse_version_name(name.partition("/")[2]) == (2, "54836350b36b")
    assert naming.parse_version_name("log.jsonl") is None


@pytest.mark.parametrize(("split", "index", "count"), [("train", 10, 10), ("train", -1, 2), ("a/b", 0, 1), ("", 0, 1)])
def test_impossible_names_are_refused(split, index, count):
    with pytest.raises(ValueError, match="shard|split"):
        naming.shard_name(split, index, count)


@pytest.mark.parametrize(
    "name",
    [
        "train-3-of-10.tfrecord",
        "train-00010-of-00010.tfrecord",
        "train-00003-of-00010.tfrecord.tmp",
        "../train-00000-of-00001.tfrecord",
        "manifest.json",
        "train-000003-of-00010.tfrecord",
        "train-v1-00003-of-00010.tfrecord",
        "train-v02-00003-of-00010.tfrecord",
    ],
)
def test_other_names_are_not_shards(name):
    assert naming.parse_shard_name(name) is None


def test_base_names():
    assert all(map(naming.is_file_name, ("a.tfrecord", "train/a", "a/b/..c")))
    refused = ("", ".", "..", "/a", "a/", "a//b", "../a", "a/../b", "a/./b", "a\\b", "c:a", "a/c:b", "a\0")
    assert not any(map(naming.is_file_name, refused))
