import pickle

import numpy as np
import pytest

from beam_jobs import plan, sources
from pipeline.errors import UsageError
from pipeline.example import encode

MIB = 1 << 20


@pytest.mark.parametrize(
    ("examples", "num_bytes", "shards"),
    [
        (10, 0, 1),
        (10, 1, 1),
        (60_000, 16 * MIB, 1),
        (60_000, 16 * MIB + 1, 2),
        (60_000, 52_800_000, 4),
        (60_000, 64 * 16 * MIB, 64),
        (60_000, 64 * 16 * MIB + 1, 64),
        (10**6, 64 * 256 * MIB, 64),
        (10**6, 64 * 256 * MIB + 1, 65),
        (10**9, 1000 * 256 * MIB, 1000),
        (3, 1000 * MIB, 3),
    ],
)
def test_default_number_of_shards(examples, num_bytes, shards):
    assert plan.default_num_shards(examples, num_bytes) == shards


def test_a_plan_lists_its_files_and_their_bytes(mnist_folder):
    source = sources.open_source("mnist", str(mnist_folder()))
    made = plan.make_plan(source, "/out", 5, {"train": 3})
    assert made.num_shards == {"train": 3, "test": 1}
    assert made.elements == [("train", 0), ("train", 1), ("train", 2), ("test", 0)]
    assert made.file_names[1] == "train-00001-of-00003.tfrecord"
    assert made.options == {"num_shards": {"train": 3, "test": 1}, "seed": 5}
    keys = {split: source.read(split, np.array([0])).keys.itemsize for split in ("train", "test")}
    assert keys == source.key_sizes
    record = encode(bytes(784), 0, b"train-images-idx3-ubyte#00")
    assert plan.stride(source, "train") == 16 + len(record)
    assert made.num_bytes == 50 * plan.stride(source, "train") + 20 * plan.stride(source, "test")


def test_a_plan_is_cheap_to_ship(mnist_folder):
    source = sources.open_source("mnist", str(mnist_folder()))
    source.read("train", np.arange(50))
    assert len(pickle.dumps(plan.make_plan(source, "/out", 5, None))) < 2000


def test_more_shards_than_examples_is_an_error(mnist_folder):
    source = sources.open_source("mnist", str(mnist_folder()))
    with pytest.raises(UsageError, match="21 shards for the 20 examples of split 'test'; at most 20"):
        plan.make_plan(source, "/out", 0, {"test": 21})
    with pytest.raises(UsageError, match="unknown 'trian'; did you mean 'train'"):
        plan.make_plan(source, "/out", 0, {"trian": 2})


def test_more_classes_than_a_record_can_hold_are_refused(mnist_folder, monkeypatch):
    source = sources.open_source("mnist", str(mnist_folder()))
    monkeypatch.setattr(type(source), "class_names", tuple(map(str, range(129))))
    with pytest.raises(UsageError, match=r"has 129 classes; records hold labels 0\.\.127, so at most 128"):
        plan.make_plan(source, "/x", 0, None)
