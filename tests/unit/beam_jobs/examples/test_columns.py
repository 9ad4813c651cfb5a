"""Columns joined from the receipts of shards: their memory, and what is left of the receipts."""

import tracemalloc

import numpy as np
import pytest

from beam_jobs.examples import columns
from pipeline.errors import DataError
from pipeline.manifest import Feature

NUMBERS = {f"f{number}": Feature("int64") for number in range(16)}
COUNT = 50_000


def joined(features, splits, flag="records"):
    of_column = {name: name for name in next(iter(splits.values()))[0]}
    return columns.joined(flag, features, of_column, splits)


def peak_per_value(features, splits, flag="records"):
    """Returns the peak of bytes per record for the columns, besides the receipts, one column at a time."""
    count = COUNT * sum(map(len, splits.values()))
    tracemalloc.start()
    try:
        for _, _, files in joined(features, splits, flag):
            del files
        return tracemalloc.get_traced_memory()[1] / count
    finally:
        tracemalloc.stop()


def test_one_column_is_in_memory_at_a_time_and_nothing_that_was_read():
    values = np.random.default_rng(0).integers(1 << 60, size=(2, COUNT))
    splits = {"train": [{name: columns.of_numbers(part) for name in NUMBERS} for part in values]}
    assert peak_per_value(NUMBERS, splits) < 6 * 8
    assert splits == {"train": [{}, {}]}


def test_strings_take_the_memory_of_their_numbers():
    texts = [b"x" * 256, *[b"ab"[number % 2 :] for number in range(COUNT - 1)]]
    features = {"site": Feature("string")}
    splits = {"train": [{"site": columns._of_strings(texts)}], "test": [{"site": columns._of_strings([b"c"] * COUNT)}]}
    assert peak_per_value(features, splits) < 20


def test_numbers_of_strings_are_those_of_all_shards():
    packed = [columns._of_strings(texts) for texts in ([b"b", b"d"], [b"a", b"b"], [b"c"])]
    splits = {"train": [{"site": packed[0]}, {"site": packed[1]}], "test": [{"site": packed[2]}]}
    [(name, column, files)] = joined({"site": Feature("string")}, splits)
    assert (name, column.values, column.dtype) == ("site", ("a", "b", "c", "d"), "int8")
    assert {split: list(data[-count:]) for (split, data), count in zip(files.items(), (4, 1), strict=True)} == {
        "train": [1, 3, 0, 1],
        "test": [2],
    }


def test_a_named_column_that_cannot_be_is_refused_before_any_is_made():
    features = {"id": Feature("int64"), "text": Feature("string")}
    splits = {"train": [{"id": columns.of_numbers(np.arange(2)), "text": columns._of_strings([b"x" * 300, b""])}]}
    with pytest.raises(DataError, match="'text' has strings of more than 256 characters"):
        next(joined(features, splits, "records:id,text"))
