import re

import pytest

from beam_jobs import flag_values
from pipeline.commands import values
from pipeline.errors import UsageError

READERS = {
    "numbers": lambda text: flag_values.numbers_by_split("num_shards", text, 99_999),
    "fractions": lambda text: flag_values.fractions("split", text),
    "two_sizes": lambda text: values.sizes("resize", text, 2),
    "three_sizes": lambda text: values.sizes("image_shape", text, 3),
    "names": lambda text: values.names("keep_columns", text),
    "pairs": lambda text: values.pairs("feature_map", text),
}


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        ("numbers", "", None),
        ("numbers", "4", 4),
        ("numbers", "99999", 99_999),
        ("numbers", "train:8,test:2", {"train": 8, "test": 2}),
        ("numbers", "train:8, test:2", {"train": 8, "test": 2}),
        ("fractions", "", {}),
        ("fractions", "train:1", {"train": 1.0}),
        ("fractions", "train:0.9,validation:0.1", {"train": 0.9, "validation": 0.1}),
        ("fractions", "a:.25,b:.25,c:0.5", {"a": 0.25, "b": 0.25, "c": 0.5}),
        ("fractions", "a:0.1,b:0.2,c:0.7", {"a": 0.1, "b": 0.2, "c": 0.7}),  # as floats they sum to 0.99...9
        ("two_sizes", "", None),
        ("two_sizes", "1x16384", (1, 16_384)),
        ("two_sizes", "28", (28, 28)),
        ("three_sizes", "28x28x1", (28, 28, 1)),
        ("names", "", ()),
        ("names", "a", ("a",)),
        ("names", "a, b c,d", ("a", "b c", "d")),
        ("pairs", "", ()),
        ("pairs", "image:image_raw,label:class/label", (("image", "image_raw"), ("label", "class/label"))),
        ("pairs", "image:a:b", (("image", "a:b"),)),
    ],
)
def test_a_good_value_is_read(read, text, value):
    assert READERS[read](text) == value


BAD = {
    "numbers": [
        *("0", "-3", "100000", "train:0", "train:8,test:100000", "9" * 5000, "1.5", "many", "--3", "train:2,train:3"),
        *("train:2,", "train:-1", "1train:2", "tr/ain:2", "entraînement:2", "4\n"),
        "٤",  # a digit, but not of ASCII
    ],
    "fractions": [
        *(
            "train",
            "0.5",
            "train:0.9,test:0.2",
            "train:0.9",
            "train:1,test:0",
            "train:1,test:0.0",
            "train:-0.5,test:1.5",
        ),
        *("train:nan", "train:inf", "train:5e-1,test:5e-1", "train:0.5,train:0.5", "train:0.5,te-st:0.5"),
        "train:" + "9" * 400,
    ],
    "two_sizes": [
        *("28x28x1", "28X28", "x28", "28x", "-1x28", "28 x 28", "28.0x28", "0x28", "28x16385", "9999999999x1"),
    ],
    "three_sizes": ["28x28"],
    "names": [",", "a,,b", "a,b,a", "a, a", " "],
    "pairs": ["image", "image:", ":image", "image:a,image:b", "image:a,"],
}


@pytest.mark.parametrize(("read", "text"), [(read, text) for read, texts in BAD.items() for text in texts])
def test_a_bad_value_is_one_error_with_flag_and_value(read, text):
    with pytest.raises(UsageError, match=r"^--\w+=") as error:
        READERS[read](text)
    assert text in str(error.value) or re.search(r"\b1\.\.99999\b", str(error.value))


@pytest.mark.parametrize(
    ("read", "text", "fact"),
    [
        ("numbers", "train:8,test:100000", "--num_shards=100000: .*1..99999"),
        ("numbers", "train:2,train:3", "'train'"),
        ("numbers", "1.5", "'1.5'"),
        ("fractions", "train:0.9,test:0.2", r"sum to 1\.1"),
        ("fractions", "train:nan", "'train:nan'"),
        ("two_sizes", "28x28x28", "2 sizes"),
        ("two_sizes", "0x28", "1..16384"),
        ("three_sizes", "28x28", "3 sizes"),
    ],
)
def test_an_error_tells_the_part_or_the_bound(read, text, fact):
    with pytest.raises(UsageError, match=fact):
        READERS[read](text)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("ftp://host/x", "--source=ftp://host/x: .*s3://, gs://, hdfs://"),
        ("https://host/x", "--source=https://host/x"),
        ("a\0b", "--source: .*NUL"),
        ("\ud800", "--source"),
    ],
)
def test_what_can_be_no_path(value, message):
    with pytest.raises(UsageError, match=message):
        flag_values.check_path("source", value)


@pytest.mark.parametrize(
    "value", ["", "a/b", "gs://bucket/x", "S3://bucket", "/x y/ü", "C:x", "a:/b", "*.parquet", "x\udcff"]
)
def test_what_can_be_a_path(value):
    flag_values.check_path("source", value)
