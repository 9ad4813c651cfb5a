"""The converter on Parquet files and folders of images, as a user runs it: every record against the row it is of."""

import io
import pathlib

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import manifest
from pipeline.records import framing, tf_example
from tests.helpers import forked
from tests.helpers.datasets import files_of
from tests.helpers.forked import ROOT

CIFAR10 = ROOT.parent / "shared" / "data" / "cifar10"
ONE_PROCESS = ("--direct_running_mode=in_memory", "--direct_num_workers=1")
CLASSES = ["ape", "bee", "cat", "dog"]


def convert(dataset, source, out, *flags):
    forked.output(
        ["-m", "beam_jobs.convert", f"--dataset={dataset}", f"--source={source}", f"--data_dir={out}", *flags]
    )
    return manifest.load(out)


def image(number, kind="PNG"):
    stream = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (6, 8, 3), np.uint8)
    PIL.Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def rows(start, stop):
    return [
        {
            "img": {"bytes": image(n, "PNG" if n % 3 else "JPEG"), "path": f"{n}.png"},
            "animal": CLASSES[n * n % 4],
            "id": f"ü{n}",
            "weight": n / 7,
            "ratio": n / 7,
            "half": n / 2,
            "time": 1700000001.0 + n,
            "count": n * 10**9,
            "caption": f"the {n}th",
            "boxes": [n] * (n % 3),
            "point": [n + 0.5, -n],
        }
        for n in range(start, stop)
    ]


TYPES = {
    "count": pa.int64(), "boxes": pa.list_(pa.int32()), "point": pa.list_(pa.float32(), 2), "weight": pa.float64(),
}  # fmt: skip
FLAGS = (
    "--label_column=animal",
    "--key_column=id",
    "--keep_columns=weight:float32,ratio:string,half,time:int64,count,caption,boxes,point",
)


def write(path, content):
    table = pa.Table.from_pylist(content)
    for name, kind in TYPES.items():
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(table[name].to_pylist(), kind))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=7)


@pytest.fixture
def source(tmp_path):
    """Three files in Hugging Face's layout: 60 rows to train on and 20 to test with."""
    folder = tmp_path / "source"
    write(folder / "data" / "train-00000-of-00002.parquet", rows(0, 40))
    write(folder / "data" / "train-00001-of-00002.parquet", rows(40, 60))
    write(folder / "data" / "test-00000-of-00001.parquet", rows(60, 80))
    return folder


def examples(folder, split):
    found = []
    for shard in manifest.load(folder).split(split).shards:
        for _, _, record in framing.records(io.BytesIO((folder / shard.file).read_bytes()).read, shard.file):
            found.append(tf_example.decode(record))
    return found


def test_every_row_becomes_one_example_with_its_columns(source, tmp_path):
    out = tmp_path / "out"
    made = convert("parquet", source, out, *FLAGS, "--num_shards=train:3,test:1")
    assert made.class_names == ("ape", "bee")  # the squares modulo 4 are 0 and 1
    shapes = {name: (feature.dtype, feature.shape) for name, feature in made.features.items() if name != "image"}
    assert shapes == {
        "label": ("int64", ()), "key": ("string", ()), "weight": ("float32", ()), "count": ("int64", ()),
        "ratio": ("string", ()), "half": ("float32", ()), "time": ("int64", ()),
        "caption": ("string", ()), "boxes": ("int64", (None,)), "point": ("float32", (2,)),
    }  # fmt: skip
    assert [file.file for file in made.source] == [
        "data/test-00000-of-00001.parquet", "data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet",
    ]  # fmt: skip
    for split, start, stop in (("train", 0, 60), ("test", 60, 80)):
        by_key = {entry["key"][0].decode(): entry for entry in examples(out, split)}
        assert len(by_key) == len(examples(out, split)) == stop - start
        for row in rows(start, stop):
            entry = by_key[row["id"]]
            assert entry["image"] == [row["img"]["bytes"]]
            assert entry["label"].tolist() == [CLASSES.index(row["animal"])]
            assert entry["weight"] == np.float32(row["weight"])
            assert float(entry["ratio"][0]) == row["ratio"]
            assert entry["half"].tolist() == [row["half"]]
            assert entry["time"].tolist() == [row["time"]]
            assert entry["count"].tolist() == [row["count"]]
            assert entry["caption"] == [row["caption"].encode()]
            assert list(entry["boxes"]) == row["boxes"]
            assert entry["point"].tolist() == row["point"]
    assert made.split("train").num_examples == 60


def test_folders_of_images_become_the_same_pixels(tmp_path):
    root = tmp_path / "source"
    for split, numbers in (("train", range(40)), ("val", range(40, 50))):
        for n in numbers:
            path = root / split / CLASSES[n % 4] / f"{n}.{'png' if n % 3 else 'JPG'}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image(n, "PNG" if n % 3 else "JPEG"))
    out = tmp_path / "out"
    made = convert("image_folder", root, out, "--num_shards=3")
    assert made.class_names == tuple(CLASSES)
    assert {name: split.num_examples for name, split in made.splits.items()} == {"train": 40, "validation": 10}
    found = examples(out, "train")
    assert len(found) == 40
    for entry in found:
        key = entry["key"][0].decode()
        n = int(pathlib.PurePosixPath(key).stem)
        assert key == f"train/{CLASSES[n % 4]}/{n}.{'png' if n % 3 else 'JPG'}"
        assert entry["image"] == [(root / key).read_bytes()]
        assert entry["label"].tolist() == [n % 4]
    convert("image_folder", root, tmp_path / "one", "--num_shards=3", *ONE_PROCESS)
    assert files_of(out) == files_of(tmp_path / "one")


@pytest.mark.skipif(not CIFAR10.is_dir(), reason=f"CIFAR-10's images are not in {CIFAR10}")
def test_cifar10_of_hugging_face_is_converted_untouched(tmp_path):
    made = convert("parquet", CIFAR10 / "cifar10-test-*.parquet", tmp_path / "out")
    assert made.split("test").label_histogram == (1000,) * 10
    content = pq.read_table(CIFAR10 / "cifar10-test-00000-of-00001.parquet")
    images, labels = content["img"].combine_chunks().field("bytes").to_pylist(), content["label"].to_pylist()
    found = examples(tmp_path / "out", "test")
    assert len(found) == 10_000
    for entry in found:
        row = int(entry["key"][0].rsplit(b"#", 1)[1])
        assert entry["image"] == [images[row]]
        assert entry["label"].tolist() == [labels[row]]
