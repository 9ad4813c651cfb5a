import pickle
import re

import pytest

from beam_jobs.config import ConvertConfig
from pipeline.errors import UsageError


def config(**changes):
    return ConvertConfig(**({"dataset": "mnist", "data_dir": "out"} | changes))


@pytest.mark.parametrize(
    ("text", "shards"),
    [("", None), ("4", 4), ("train:8,test:2", {"train": 8, "test": 2}), ("train:8, test:2", {"train": 8, "test": 2})],
)
def test_num_shards_is_one_number_or_one_a_split(text, shards):
    assert config(num_shards=text).shards_by_split == shards


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": ""}, "--dataset is missing"),
        ({"data_dir": ""}, "--data_dir is missing"),
        ({"data_dir": "gs://bucket/x"}, "--data_dir=gs://bucket/x: must be a local or mounted path"),
        ({"source": "s3://bucket/x"}, "--source=s3://bucket/x: must be a local or mounted path"),
        ({"source": "a\0b"}, "NUL"),
        ({"seed": -1}, "--seed=-1: must be in 0..9223372036854775807"),
        ({"seed": 2**63}, "--seed=9223372036854775808"),
        ({"num_shards": "0"}, "--num_shards=0: must be in 1..99999"),
        ({"num_shards": "-3"}, "--num_shards=-3: must be in 1..99999"),
        ({"num_shards": "100000"}, "must be in 1..99999"),
        ({"num_shards": "train:0"}, "must be in 1..99999"),
        ({"num_shards": "many"}, "'many' is not a number or split:number"),
        ({"num_shards": "train:2,train:3"}, "names split 'train' twice"),
        ({"num_shards": "train:2,"}, "'' is not a number or split:number"),
        ({"num_shards": "--3"}, "is not a number or split:number"),
    ],
)
def test_a_value_that_cannot_work_is_named_with_its_bound(changes, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        config(**changes)


def test_pickles():
    assert pickle.loads(pickle.dumps(config(seed=3))) == config(seed=3)
