"""Conversion out of an object store, against an S3 server on the loopback interface."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import pathlib
import socket
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs import convert, sources
from beam_jobs.sources.base import SourceOptions
from pipeline import manifest
from pipeline.errors import DataError, UsageError
from pipeline.files.paths import LocalPath
from pipeline.files.remote import RemotePath
from tests.helpers.foreign import png


def digits(data_dir: pathlib.Path, *flags: str) -> list[str]:
    return ["--dataset=digits", f"--data_dir={data_dir}", "--num_shards=train:5,test:2", *flags]


def write_parquet(path: pathlib.Path, start: int, stop: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = range(start, stop)
    images = [png(np.full((8, 6 + row % 3, 3), row % 251, np.uint8)) for row in rows]
    content = {"image": images, "label": [row % 7 for row in rows]}
    pq.write_table(pa.table(content), path, row_group_size=10)


def upload(folder: pathlib.Path, place: RemotePath) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            (place / path.relative_to(folder).as_posix()).write_bytes(path.read_bytes())


def shards_of(folder: pathlib.Path | RemotePath) -> dict[str, bytes]:
    made = manifest.load(folder)
    return {shard.file: (folder / shard.file).read_bytes() for shard in made.shards}


@pytest.fixture
def parquets(tmp_path):
    for number in range(3):
        write_parquet(tmp_path / f"source/data/train-{number:05d}-of-00003.parquet", 100 * number, 100 * number + 37)
    write_parquet(tmp_path / "source/data/test-00000-of-00001.parquet", 1000, 1020)
    return tmp_path / "source"


def test_parquet_in_a_store_gives_the_same_shards(bucket, parquets, tmp_path):
    upload(parquets, bucket / "source")
    (bucket / "source/data/_hidden.parquet").write_bytes(b"no data")
    flags = ["--dataset=parquet", "--num_shards=train:3,test:1"]
    convert.main([*flags, f"--source={parquets}", f"--data_dir={tmp_path / 'here'}"])
    convert.main([*flags, f"--source={bucket / 'source'}", f"--data_dir={bucket / 'there'}"])
    here, there = manifest.load(tmp_path / "here"), manifest.load(bucket / "there")
    assert shards_of(tmp_path / "here") == shards_of(bucket / "there")
    assert there == dataclasses.replace(here, source=there.source)
    assert [(entry.file, entry.num_bytes) for entry in there.source] == [
        (entry.file, entry.num_bytes) for entry in here.source
    ]
    for entry in there.source:
        data = (parquets / entry.file).read_bytes()
        footer = data[-8 - int.from_bytes(data[-8:-4], "little") :]
        assert entry.sha256 == hashlib.sha256(footer).hexdigest()


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("data/test-00000-of-00001.parquet", ["test-00000-of-00001.parquet"]),
        ("data/train-0000[02]*", ["train-00000-of-00003.parquet", "train-00002-of-00003.parquet"]),
        ("**/test*.parquet", ["data/test-00000-of-00001.parquet"]),
    ],
)
def test_a_parquet_file_or_a_glob_in_a_store(bucket, parquets, pattern, names):
    upload(parquets, bucket)
    source = sources.open_source(SourceOptions("parquet", f"{bucket}/{pattern}"))
    assert [entry.file for entry in source.files] == names
    local = sources.open_source(SourceOptions("parquet", f"{parquets}/{pattern}"))
    assert [entry.file for entry in local.files] == names
    split = next(iter(source.splits))
    rows = np.arange(source.splits[split])
    assert source.read(split, rows).images == local.read(split, rows).images


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["raw", "png"])
def test_a_data_set_of_ours_in_a_store_gives_the_same_bytes(bucket, tmp_path, encoding):
    convert.main(digits(tmp_path / "first", f"--image_encoding={encoding}"))
    upload(tmp_path / "first", bucket / "first")
    flags = ["--dataset=tfrecord", "--num_shards=train:7,test:1", "--seed=3"]
    convert.main([*flags, f"--source={tmp_path / 'first'}", f"--data_dir={tmp_path / 'here'}"])
    convert.main([*flags, f"--source={bucket / 'first'}", f"--data_dir={bucket / 'there'}"])
    assert shards_of(tmp_path / "here") == shards_of(bucket / "there")
    assert manifest.load(tmp_path / "here") == manifest.load(bucket / "there")


@pytest.mark.parametrize("encoding", ["raw", pytest.param("png", marks=pytest.mark.slow)])
def test_others_records_in_a_store_give_the_same_bytes_and_digests(bucket, tmp_path, encoding):
    convert.main(digits(tmp_path / "first", f"--image_encoding={encoding}"))
    (tmp_path / "theirs").mkdir()
    for name, data in shards_of(tmp_path / "first").items():
        is_train = name.startswith("train")
        (tmp_path / "theirs" / name).write_bytes(data if is_train else gzip.compress(data))
    upload(tmp_path / "theirs", bucket / "theirs")
    flags = ["--dataset=tfrecord", "--num_shards=train:3,test:1"]
    flags += ["--image_shape=28x28x1"] if encoding == "raw" else []
    convert.main([*flags, f"--source={tmp_path / 'theirs'}", f"--data_dir={tmp_path / 'here'}"])
    convert.main([*flags, f"--source={bucket / 'theirs'}", f"--data_dir={tmp_path / 'there'}"])
    assert shards_of(tmp_path / "here") == shards_of(tmp_path / "there")
    assert manifest.load(tmp_path / "here") == manifest.load(tmp_path / "there")


def test_two_passes_in_a_store_give_the_same_bytes(bucket, parquets, tmp_path):
    upload(parquets, bucket / "source")
    flags = ["--dataset=parquet", "--num_shards=train:3,test:1", "--passes=2"]
    convert.main([*flags, f"--source={parquets}", f"--data_dir={tmp_path / 'here'}"])
    convert.main([*flags, f"--source={bucket / 'source'}", f"--data_dir={bucket / 'there'}"])
    assert shards_of(tmp_path / "here") == shards_of(bucket / "there")
    here, there = manifest.load(tmp_path / "here"), manifest.load(bucket / "there")
    assert there == dataclasses.replace(here, source=there.source)
    names = set(LocalPath(tmp_path / "here").files(recursive=True))
    assert set((bucket / "there").files(recursive=True)) == names


def test_a_file_of_a_store_that_is_replaced_meanwhile_is_noticed(bucket, tmp_path):
    write_parquet(tmp_path / "a.parquet", 0, 20)
    write_parquet(tmp_path / "b.parquet", 0, 21)
    convert.main(digits(tmp_path / "first"))
    upload(tmp_path, bucket)
    parquet = sources.open_source(SourceOptions("parquet", f"{bucket / 'a.parquet'}"))
    ours = sources.open_source(SourceOptions("tfrecord", f"{bucket / 'first'}"))
    shard = ours.where("train", 0)[0]
    (bucket / "a.parquet").write_bytes((tmp_path / "b.parquet").read_bytes())
    (bucket / "first" / shard).write_bytes((tmp_path / "first" / shard).read_bytes()[:-1])
    with pytest.raises(DataError, match=r"a\.parquet: changed while it was being converted .*; run "):
        parquet.read("train", np.arange(20))
    with pytest.raises(DataError, match=rf"{shard}: changed while it was being converted \([\d,]+ bytes before"):
        ours.read("train", np.arange(5))


def test_the_options_of_a_url_are_those_of_pyarrow(bucket, parquets, endpoint):
    upload(parquets, bucket)
    place = f"{bucket}/data/test-00000-of-00001.parquet?endpoint_override={endpoint}&region=us-east-1"
    source = sources.open_source(SourceOptions("parquet", place))
    assert source.read("test", np.arange(3)).labels.tolist() == [row % 7 for row in range(1000, 1003)]


@pytest.mark.parametrize("dataset", ["parquet", "tfrecord"])
@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("s3://nowhere-at-all/x", "no such file or folder"),
        ("s3://nowhere-at-all/x/*", "nowhere-at-all.*(NO_SUCH_BUCKET|not exist|matches no file)"),
        ("{bucket}/missing.parquet", "missing.parquet: no such file or folder; --source of"),
        ("{bucket}/*.parquet", "matches no file"),
        ("{bucket}/empty", r"holds no (\*.parquet|file like \*.tfrecord)"),
    ],
)
def test_a_source_that_is_not_in_the_store_is_one_line(bucket, dataset, place, problem):
    (bucket / "empty/readme.txt").write_bytes(b"nothing")
    with pytest.raises(DataError, match=problem) as caught:
        sources.open_source(SourceOptions(dataset, place.format(bucket=bucket)))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("dataset", ["parquet", "tfrecord"])
def test_a_store_that_cannot_be_reached_is_one_line_soon(dataset):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    place = f"s3://key:secret@unreachable/x?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    began = time.monotonic()
    with pytest.raises(DataError, match=r"^s3://unreachable/x.*: cannot be read: .*NETWORK_CONNECTION") as caught:
        sources.open_source(SourceOptions(dataset, place))
    assert time.monotonic() - began < 30
    assert len(str(caught.value).splitlines()) == 1
    assert "secret" not in str(caught.value)


def test_other_data_sets_are_read_from_folders_alone(tmp_path):
    problem = r"--source=s3://b/x: mnist is read from local or mounted folders; parquet and tfrecord from object stores"
    with pytest.raises(UsageError, match=problem):
        convert.main(["--dataset=mnist", "--source=s3://b/x?region=us-east-1", f"--data_dir={tmp_path / 'out'}"])
