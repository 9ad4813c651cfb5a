import dataclasses
import pickle
import re

import numpy as np
import pytest

from beam_jobs import plan
from beam_jobs.config import ConvertConfig
from beam_jobs.examples import images
from pipeline.errors import UsageError
from pipeline.records.tf_example import encode
from tests.made_source import Content

MIB = 1 << 20


@pytest.mark.parametrize(
    ("examples", "num_bytes", "most", "shards"),
    [
        (10, 0, 256 * MIB, 1),
        (10, 1, 256 * MIB, 1),
        (60_000, 16 * MIB, 256 * MIB, 1),
        (60_000, 16 * MIB + 1, 256 * MIB, 2),
        (60_000, 52_800_000, 256 * MIB, 4),
        (60_000, 64 * 16 * MIB, 256 * MIB, 64),
        (60_000, 64 * 16 * MIB + 1, 256 * MIB, 64),
        (10**6, 51 * 256 * MIB, 256 * MIB, 64),
        (10**6, 64 * 256 * MIB, 256 * MIB, 80),  # a quarter more, as records may differ in length
        (10**9, 1000 * 256 * MIB, 256 * MIB, 1250),
        (3, 1000 * MIB, 256 * MIB, 3),
        (10**6, 10 * MIB, MIB, 10),
        (10**6, 64 * MIB, MIB, 64),
        (10**6, 65 * MIB, MIB, 82),
        (10**9, 10**9 * MIB, MIB, 99_999),
    ],
)
def test_default_number_of_shards(examples, num_bytes, most, shards):
    assert plan.default_num_shards(examples, num_bytes, most) == shards


@pytest.fixture
def two(pixels):
    return {"train": Content(pixels(50, (28, 28, 1))), "test": Content(pixels(20, (28, 28, 1), 1))}


def test_a_plan_lists_its_files_and_their_bytes(two, plan_of):
    made = plan_of(two, num_shards="train:3", seed=5)
    assert made.num_shards == {"train": 3, "test": 1}
    assert made.elements == [("train", 0), ("train", 1), ("train", 2), ("test", 0)]
    assert made.file_names[1] == "train-00001-of-00003.tfrecord"
    assert made.options == {"num_shards": {"train": 3, "test": 1}, "seed": 5}
    lengths = [
        16 + len(encode({"image": bytes(784), "label": 0, "key": key})) for key in (b"train.rows#00", b"test.rows#00")
    ]
    assert made.num_bytes == 50 * lengths[0] + 20 * lengths[1]


def test_a_plan_is_cheap_to_ship(two, plan_of):
    made = plan_of(two)
    made.source.read("train", np.arange(50))
    assert len(pickle.dumps(made)) < 2500
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"num_shards": "test:21"}, "--num_shards: 21 shards for 20 examples of split 'test'; at most 20"),
        ({"num_shards": "51"}, "--num_shards: 51 shards for 50 examples of split 'train'; at most 50"),
        ({"num_shards": "trian:2"}, "--num_shards: split: unknown 'trian'; did you mean 'train'"),
        ({"split": "a:0.5,b:0.5", "num_shards": "train:2"}, "--num_shards: split: unknown 'train'"),
    ],
)
def test_numbers_of_shards_that_cannot_be(flags, message, two, plan_of):
    with pytest.raises(UsageError, match=re.escape(message)):
        plan_of(two, **flags)


def test_shards_that_would_be_too_large_are_an_error_with_the_number_that_is_enough(plan_of, pixels):
    content = {"train": Content(pixels(20, (400, 400, 3)))}  # 9.6 MB
    assert plan_of(content, max_shard_bytes=MIB).num_shards == {"train": 10}
    with pytest.raises(UsageError) as error:
        plan_of(content, max_shard_bytes=MIB, num_shards="9")
    assert re.search(
        r"--num_shards: 9 shards of split 'train' would have about 10668\d\d bytes each, "
        r"over --max_shard_bytes=1048576; give 10 or more",
        str(error.value),
    )
    assert plan_of(content, max_shard_bytes=MIB, num_shards="10").num_shards == {"train": 10}


SHAPING = [
    {"num_shards": "2"},
    {"num_shards": "train:2"},
    {"seed": 1},
    {"image_encoding": "png"},
    {"image_encoding": "jpeg"},
    {"image_encoding": "raw"},  # the same bytes, but the manifest says what was asked for
    {"image_encoding": "raw", "resize": "14x14"},
    {"image_encoding": "raw", "resize": "14x15"},
    {"image_encoding": "raw", "channels": 3},
    {"image_encoding": "png", "channels": 3},
    {"compression": "GZIP"},
    {"split": "train:0.5,test:0.5"},
    {"split": "train:0.6,test:0.4"},
    {"passes": 2},
]
OTHERS = [{"max_shard_bytes": 1 << 21}, {"max_rejects": 10}, {"overwrite": True}, {"num_shards": "1"}, {"seed": 0}]


def test_every_flag_that_shapes_the_bytes_gives_another_digest(two, plan_of):
    digests = [plan_of(two, **flags).digest for flags in ({}, *SHAPING)]
    assert len(set(digests)) == len(SHAPING) + 1


@pytest.mark.parametrize("flags", OTHERS, ids=str)
def test_no_other_flag_changes_the_digest(flags, two, plan_of):
    assert plan_of(two, **flags).digest == plan_of(two).digest


def test_the_place_and_the_name_of_the_source_do_not_change_the_digest(two, plan_of, made, tmp_path):
    first = plan_of(two)
    config = ConvertConfig(dataset="made", data_dir="/elsewhere", source=str(made(two, "moved.pickle")))
    assert plan.make_plan(config, tmp_path / "elsewhere").digest == first.digest


def test_the_content_of_the_source_changes_the_digest(two, plan_of, pixels):
    first = plan_of(two).digest
    changed = pixels(50, (28, 28, 1))
    changed[49, 27, 27, 0] ^= 1
    assert plan_of(two | {"train": Content(changed)}).digest != first


def test_what_the_first_images_say_changes_the_digest(plan_of, pixels):
    """A source is described by its files; how they are stored by a look at some rows."""
    grey = Content([images.encoded(image, "png") for image in pixels(3, (6, 6, 1))])
    colour = Content([images.encoded(image, "png") for image in pixels(3, (6, 6, 3))])
    plans = [plan_of({"train": content}) for content in (grey, colour)]
    assert [made.sample.images.channels for made in plans] == [1, 3]
    same_files = dataclasses.replace(plans[0], sample=plans[1].sample)
    assert same_files.digest != plans[0].digest
