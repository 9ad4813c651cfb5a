import dataclasses

import pytest

from beam_jobs.config import ConvertConfig
from beam_jobs.sources.base import SourceOptions
from pipeline.errors import UsageError
from tests.helpers.raised import said

# Every flag, with a value that is not its default, and whether the bytes of the shards can depend on it.
SHAPING = {
    "image_column": "pixels",
    "label_column": "target",
    "key_column": "id",
    "split_column": "fold",
    "splits": "train,test",
    "na_is_class": True,
    "label_separator": True,
    "float_labels": True,
    "delimiter": ";",
    "default": ["score:0.0"],
    "keep_columns": "a,b",
    "feature_map": "image:image_raw",
    "image_shape": "28x28x1",
    "boxes_column": "objects.bbox",
    "box_format": "xywh",
    "box_labels_column": "objects.category",
    "points_column": "joints",
    "point_format": "xy",
    "mask_column": "mask",
    "mask_fill": "255",
    "image_set": "Segmentation",
    "image_encoding": "png",
    "resize": "14x14",
    "scaled_decoding": True,
    "channels": 3,
    "compression": "GZIP",
    "split": "train:0.5,test:0.5",
    "folds": 3,
    "group_by": "patient",
    "stratify": "label",
    "passes": 2,
    "transform": "my_module:made",
}
OTHERS = {
    "dataset": "digits",  # the manifest has these four in places of their own
    "source": "elsewhere",
    "columns": "records",
    "num_shards": "3",
    "seed": 7,
    "follow_links": True,  # which files these are, the digests say
    "image_dir": "pictures",
    "mask_dir": "masks",
    "data_dir": "other",
    "max_shard_bytes": 1 << 21,
    "max_rejects": 3,
    "overwrite": True,
    "append": True,
    "dry_run": True,
}


def config(**changes):
    return ConvertConfig(**({"dataset": "mnist", "data_dir": "out"} | changes))


def test_one_number_is_a_size_of_equal_sides():
    assert config(resize="14") == config(resize="14x14")
    assert config(resize="14").size == (14, 14)


def test_every_flag_is_classified_here():
    assert {field.name for field in dataclasses.fields(ConvertConfig)} == SHAPING.keys() | OTHERS.keys()


@pytest.mark.parametrize(("flag", "value"), (SHAPING | OTHERS).items())
def test_the_flags_that_shape_the_bytes_and_no_others_are_told_where_they_are_given(flag, value):
    needed = {"resize": "14x14"} if flag == "scaled_decoding" else {}
    needed |= {"folds": 4} if flag in ("group_by", "stratify") else {}
    assert config(**{flag: value, **needed}).shaping_flags == ({flag: value} if flag in SHAPING else {}) | needed


def test_values_are_read():
    read = config(
        num_shards="train:8,test:2", split="a:0.5,b:0.5", resize="20x10", image_shape="9x8x3", keep_columns="a,b",
        feature_map="image:x,label:y", source="files", image_column="i", label_column="l", key_column="k",
    )  # fmt: skip
    assert read.shards_by_split == {"train": 8, "test": 2}
    assert read.split_fractions == {"a": 0.5, "b": 0.5}
    assert read.size == (20, 10)
    assert read.source_options == SourceOptions(
        dataset="mnist", source="files", image_column="i", label_column="l", key_column="k", keep_columns=("a", "b"),
        feature_map=(("image", "x"), ("label", "y")), image_shape=(9, 8, 3),
    )  # fmt: skip
    plain = config()
    assert (plain.shards_by_split, plain.split_fractions, plain.size) == (None, {}, None)
    assert plain.source_options == SourceOptions("mnist")


@pytest.mark.parametrize(
    ("flag", "value", "fact"),
    [
        ("dataset", "", "--dataset"),
        ("data_dir", "", "--data_dir"),
        ("source", "a\0b", "--source: .*NUL"),
        ("data_dir", "a\0b", "--data_dir: .*NUL"),
        ("seed", -1, "--seed=-1: .*0..9223372036854775807"),
        ("seed", 2**63, "--seed=9223372036854775808"),
        ("num_shards", "0", "--num_shards=0: .*1..99999"),
        ("image_encoding", "pgn", "--image_encoding: .*'pgn'.*'png'.*jpeg, png, raw, source"),
        ("image_encoding", "", "--image_encoding: .*''"),
        ("compression", "gzip", "--compression: .*'gzip'"),
        ("compression", "ZLIB", "--compression: .*'ZLIB'"),
        ("channels", 2, "--channels=2: .*1 or 3"),
        ("delimiter", "::", "--delimiter=::: .*one character"),
        ("channels", -1, "--channels=-1: .*1 or 3"),
        ("passes", 0, "--passes=0: .*1..2"),
        ("passes", 3, "--passes=3: .*1..2"),
        ("max_rejects", -1, "--max_rejects=-1: .*0.."),
        ("max_shard_bytes", (1 << 20) - 1, "--max_shard_bytes=1048575: .*1048576..4294967296"),
        ("max_shard_bytes", (4 << 30) + 1, "--max_shard_bytes=4294967297: .*1048576..4294967296"),
        ("resize", "14x", "--resize=14x: "),
        ("scaled_decoding", True, "--scaled_decoding=True: .*--resize=HxW"),
        ("split", "train:0.5", "--split=train:0.5: "),
        ("split", "0.8", "--split=0.8: '0.8' is not split:fraction, as in train:0.8,test:0.2"),
        ("image_shape", "28x28", "--image_shape=28x28: "),
        ("keep_columns", "a,a", "--keep_columns=a,a: "),
        ("feature_map", "x", "--feature_map=x: "),
        ("columns", "foo", "--columns=foo: must be FILE.parquet, records"),
        ("columns", "nowhere.parquet", "--columns=nowhere.parquet: there is no file nowhere.parquet"),
    ],
)
def test_a_value_that_cannot_work_is_named_with_its_bound(flag, value, fact):
    with pytest.raises(UsageError, match=fact):
        config(**{flag: value})


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"folds": 3, "split": "a:0.5,b:0.5"}, ("--folds=3", "--split=a:0.5,b:0.5")),
        ({"folds": 1}, ("--folds=1", "2..100")),
        ({"folds": 101}, ("--folds=101", "2..100")),
        ({"group_by": "patient"}, ("--group_by=patient", "--split", "--folds")),
        ({"stratify": "label"}, ("--stratify=label", "--split", "--folds")),
        ({"group_by": "label", "folds": 2}, ("--group_by=label", "--stratify=label")),
        ({"group_by": "file:(", "folds": 2}, ("--group_by=file:(", "regular expression")),
        ({"stratify": "file:(a)(b)", "folds": 2}, ("--stratify=file:(a)(b)", "2 groups")),
    ],
)
def test_new_splits_that_cannot_be_drawn_are_refused(changes, facts):
    with pytest.raises(UsageError, check=said(*facts)):
        config(**changes)
    assert config(folds=4).split_fractions == {"fold0": 0.25, "fold1": 0.25, "fold2": 0.25, "fold3": 0.25}
