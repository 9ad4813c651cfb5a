"""Columns that are made record by record: numbers take as little memory as in their file."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import manifest as manifests
from pipeline.errors import DataError, UsageError
from pipeline.index import __main__ as index
from pipeline.manifest.columns import encode
from pipeline.records.columns import Gathered, Scalars, of_records
from tests.helpers import foreign
from tests.helpers.datasets import write_dataset
from tests.helpers.raised import at

NUMBERS = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-3, 300).map(np.int64),
    st.floats(width=32).map(np.float32),
    st.floats(),
    st.booleans(),
)
OTHERS = st.one_of(st.text(max_size=2), st.binary(max_size=2), st.none(), st.integers(1 << 63, 1 << 65), st.just([1]))


def gathered(values, block):
    found = Gathered(block)
    for value in values:
        found.append(value)
    return found.taken()


def column_of(values):
    """Returns the column and its files; None if its values are of several kinds."""
    try:
        return encode({"train": values})
    except ValueError:
        return None


@given(st.lists(NUMBERS, min_size=1, max_size=12), st.integers(1, 5))
def test_numbers_are_an_array_and_make_the_column_that_all_of_them_would_at_once(values, block):
    found = gathered(values, block)
    assert isinstance(found, np.ndarray)
    assert encode({"train": found}) == encode({"train": values})


@given(st.lists(st.one_of(NUMBERS, OTHERS), min_size=1, max_size=8), st.integers(1, 5))
def test_strings_and_mistakes_are_as_if_all_values_had_been_seen_at_once(values, block):
    assert column_of(gathered(values, block)) == column_of(values)


def test_a_number_takes_eight_bytes_and_not_an_object():
    column = Gathered()
    tracemalloc.start()
    try:
        for value in range(1 << 18):
            column.append(np.int64(value))
        held = tracemalloc.get_traced_memory()[0]
        assert column.taken().tolist() == list(range(1 << 18))
    finally:
        tracemalloc.stop()
    assert held < 9 << 18


def test_columns_of_records_are_arrays_of_each_split(tmp_path):
    write_dataset(tmp_path, (3, 0, 4), test_counts=(2,))
    found = of_records(str(tmp_path), manifest := manifests.load(tmp_path), Scalars(manifest, []))
    assert {name: [values.dtype.name for values in of.values()] for name, of in found.items()} == {
        "bytes": ["int64", "int64"],
        "label": ["int64", "int64"],
    }
    assert {split: values.tolist() for split, values in found["label"].items()} == {
        "train": [row % 3 for row in range(7)],
        "test": [0, 1],
    }


def test_features_that_not_all_records_have_are_left_out_with_the_reason(tmp_path, capsys):
    base, two = {"always": 1, "key": b"k", "image/encoded": b"i"}, {"two": np.array([1, 2])}
    foreign.write(tmp_path / "train.tfrec", [base | two | {"gone": 1}, base | {"gone": 2, "late": 3}])
    foreign.write(tmp_path / "test.tfrec", [base | two | {"gone": 1}, base, base | {"gone": 1}])
    index.main([str(tmp_path)])
    index.main([str(tmp_path), "--add_columns=records"])
    assert manifests.load(tmp_path).columns.keys() == {"always", "bytes"}
    said = capsys.readouterr().out
    for name, why in {
        "gone": "record 1 of test.tfrec has no single value of it",
        "two": "has 2 values in the first record",
        "late": "is not in the first record",
        "key": "is the key",
        "image/encoded": "is an image",
    }.items():
        assert f"  {name}: left out, {why}\n" in said
    for name, record, why in (("two", 0, "feature 'two' has 2 values"), ("gone", 1, "feature 'gone' has 0 values")):
        with pytest.raises(DataError, check=at("test.tfrec", why, record=record)):
            index.main([str(tmp_path), f"--add_columns=records:{name}"])
    with pytest.raises(UsageError, match=r"^--add_columns=records: unknown 'twi'; did .* 'two'\? known: .*, gone, "):
        index.main([str(tmp_path), "--add_columns=records:bytes,twi"])
