import pathlib

import pytest

from beam_jobs.sources import file_names
from pipeline.errors import DataError


def test_words_of_names():
    assert file_names.words("Mnist-train.tfrecord-00000-of-00001") == [
        "mnist",
        "train",
        "tfrecord",
        "00000",
        "of",
        "00001",
    ]
    assert file_names.words("val2 a_b") == ["val", "2", "a", "b"]


def test_a_file_that_is_missing_is_named():
    folder = pathlib.Path("/data")
    for count in (1, 2, 5):
        whole = [("train-", index, f"{count:05d}", ".parquet") for index in range(count)]
        file_names.check_complete(folder, whole)
        for index in range(count) if count > 1 else ():
            message = rf"/data/train-0000{index}-of-0000{count}.parquet: is missing, and {count - 1} of {count} files"
            with pytest.raises(DataError, match=message):
                file_names.check_complete(folder, whole[:index] + whole[index + 1 :])
