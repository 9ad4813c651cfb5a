import re

import pytest

from beam_jobs import flag_values
from pipeline.errors import UsageError


def numbers(text):
    return flag_values.numbers_by_split("num_shards", text, 99_999)


def fractions(text):
    return flag_values.fractions("split", text)


def two_sizes(text):
    return flag_values.sizes("resize", text, 2)


def three_sizes(text):
    return flag_values.sizes("image_shape", text, 3)


def names(text):
    return flag_values.names("keep_columns", text)


def pairs(text):
    return flag_values.pairs("feature_map", text)


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (numbers, "", None),
        (numbers, "4", 4),
        (numbers, "99999", 99_999),
        (numbers, "train:8,test:2", {"train": 8, "test": 2}),
        (numbers, "train:8, test:2", {"train": 8, "test": 2}),
        (fractions, "", {}),
        (fractions, "train:1", {"train": 1.0}),
        (fractions, "train:0.9,validation:0.1", {"train": 0.9, "validation": 0.1}),
        (fractions, "a:.25,b:.25,c:0.5", {"a": 0.25, "b": 0.25, "c": 0.5}),
        (fractions, "a:0.1,b:0.2,c:0.7", {"a": 0.1, "b": 0.2, "c": 0.7}),  # as floats they sum to 0.99...9
        (two_sizes, "", None),
        (two_sizes, "1x16384", (1, 16_384)),
        (three_sizes, "28x28x1", (28, 28, 1)),
        (names, "", ()),
        (names, "a", ("a",)),
        (names, "a, b c,d", ("a", "b c", "d")),
        (pairs, "", ()),
        (pairs, "image:image_raw,label:class/label", (("image", "image_raw"), ("label", "class/label"))),
        (pairs, "image:a:b", (("image", "a:b"),)),
    ],
)
def test_a_good_value_is_read(read, text, value):
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (numbers, "0", "--num_shards=0: must be in 1..99999"),
        (numbers, "-3", "--num_shards=-3: must be in 1..99999"),
        (numbers, "100000", "--num_shards=100000: must be in 1..99999"),
        (numbers, "train:0", "--num_shards=0: must be in 1..99999"),
        (numbers, "train:8,test:100000", "--num_shards=100000: must be in 1..99999"),
        (numbers, "9" * 5000, "is not a number or split:number"),
        (numbers, "1.5", "--num_shards=1.5: '1.5' is not a number or split:number"),
        (numbers, "many", "'many' is not a number or split:number"),
        (numbers, "--3", "'--3' is not a number or split:number"),
        (numbers, "train:2,train:3", "--num_shards=train:2,train:3: names split 'train' twice"),
        (numbers, "train:2,", "'' is not a number or split:number"),
        (numbers, "train:-1", "'train:-1' is not a number or split:number"),
        (numbers, "1train:2", "'1train:2' is not a number or split:number"),
        (numbers, "tr/ain:2", "'tr/ain:2' is not a number or split:number"),
        (numbers, "entraînement:2", "is not a number or split:number"),
        (numbers, "4\n", "is not a number or split:number"),
        (numbers, "٤", "is not a number or split:number"),  # a digit, but not of ASCII
        (fractions, "train", "--split=train: 'train' is not split:fraction"),
        (fractions, "0.5", "'0.5' is not split:fraction"),
        (fractions, "train:0.9,test:0.2", "must be above 0 and sum to 1; they sum to 1.1"),
        (fractions, "train:0.9", "must be above 0 and sum to 1; they sum to 0.9"),
        (fractions, "train:1,test:0", "must be above 0 and sum to 1; they sum to 1"),
        (fractions, "train:1,test:0.0", "must be above 0"),
        (fractions, "train:-0.5,test:1.5", "'train:-0.5' is not split:fraction"),
        (fractions, "train:nan", "'train:nan' is not split:fraction"),
        (fractions, "train:inf", "'train:inf' is not split:fraction"),
        (fractions, "train:5e-1,test:5e-1", "'train:5e-1' is not split:fraction"),
        (fractions, "train:0.5,train:0.5", "names split 'train' twice"),
        (fractions, "train:0.5,te-st:0.5", "'te-st:0.5' is not split:fraction"),
        (fractions, "train:" + "9" * 400, "must be above 0 and sum to 1"),
        (two_sizes, "28", "--resize=28: must be 2 sizes, as in 224x224"),
        (two_sizes, "28x28x1", "must be 2 sizes, as in 224x224"),
        (two_sizes, "28X28", "must be 2 sizes, as in 224x224"),
        (two_sizes, "x28", "must be 2 sizes"),
        (two_sizes, "28x", "must be 2 sizes"),
        (two_sizes, "-1x28", "must be 2 sizes"),
        (two_sizes, "28 x 28", "must be 2 sizes"),
        (two_sizes, "28.0x28", "must be 2 sizes"),
        (two_sizes, "0x28", "--resize=0x28: every size must be in 1..16384"),
        (two_sizes, "28x16385", "--resize=28x16385: every size must be in 1..16384"),
        (two_sizes, "9999999999x1", "must be 2 sizes"),
        (three_sizes, "28x28", "--image_shape=28x28: must be 3 sizes, as in 224x224x3"),
        (names, ",", "--keep_columns=,: must be names between commas, each once"),
        (names, "a,,b", "must be names between commas, each once"),
        (names, "a,b,a", "--keep_columns=a,b,a: must be names between commas, each once"),
        (names, "a, a", "each once"),
        (names, " ", "must be names between commas"),
        (pairs, "image", "--feature_map=image: must be ours:theirs,..., each of ours once"),
        (pairs, "image:", "must be ours:theirs"),
        (pairs, ":image", "must be ours:theirs"),
        (pairs, "image:a,image:b", "each of ours once"),
        (pairs, "image:a,", "must be ours:theirs"),
    ],
)
def test_a_bad_value_is_one_error_with_flag_and_value(read, text, message):
    with pytest.raises(UsageError) as error:
        read(text)
    assert message in str(error.value)
    assert text in str(error.value) or "must be in 1..99999" in message
    assert re.match(r"--\w+=", str(error.value))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("ftp://host/x", "--source=ftp://host/x: must be a local path, or one of s3://, gs://, hdfs://"),
        ("https://host/x", "must be a local path, or one of "),
        ("a\0b", "--source: holds a NUL character"),
        ("\ud800", "--source: holds characters that no path can have"),
    ],
)
def test_what_can_be_no_path(value, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        flag_values.check_path("source", value)


@pytest.mark.parametrize(
    "value", ["", "a/b", "gs://bucket/x", "S3://bucket", "/x y/ü", "C:x", "a:/b", "*.parquet", "x\udcff"]
)
def test_what_can_be_a_path(value):
    flag_values.check_path("source", value)


@pytest.mark.parametrize(("value", "fits"), [(0, False), (1, True), (2, True), (3, False), (-1, False)])
def test_a_range_holds_both_its_ends(value, fits):
    if fits:
        flag_values.check_range("passes", value, 1, 2)
    else:
        with pytest.raises(UsageError, match=rf"^--passes={value}: must be in 1\.\.2$"):
            flag_values.check_range("passes", value, 1, 2)
