"""Columns as they are encoded: what they cost, and what they are refused for."""

import tracemalloc

import numpy as np
import pytest

from pipeline.manifest.columns import encode


def peak(function, *arguments):
    tracemalloc.start()
    try:
        function(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_string_does_not_take_the_memory_of_the_longest():
    values = [("a", "b")[number % 2] for number in range(20_000)]
    longest = ["x" * 256, *values]
    # Of references and codes; as NumPy's strings, each would take 1 KiB.
    assert peak(encode, {"train": longest}) < 2 << 20  # 2 MiB
    column, files = encode({"train": longest})
    assert column.values == ("a", "b", "x" * 256)
    assert column.dtype == "int8"
    assert len(files["train"]) == 128 + 20_001


def test_numbers_with_names_are_the_column_of_these_strings():
    texts = {"train": ["b", "a", "b"], "test": ["c"]}
    numbers = {"train": np.array([1, 0, 1]), "test": np.array([2])}
    assert encode(numbers, ["a", "b", "c"]) == encode(texts)


@pytest.mark.parametrize("values", [["a", 1], [1, "a"], [b"a", 0.5]])
def test_strings_beside_numbers_are_refused(values):
    with pytest.raises(ValueError, match="is not a string, as other values are"):
        encode({"train": values})


@pytest.mark.filterwarnings("error")
def test_numbers_that_only_float64_has_are_no_warning():
    column, _ = encode({"train": [1e300, 0.5], "test": [float("inf")]})
    assert column.dtype == "float64"


def test_bytes_keep_their_zeros():
    assert encode({"train": [b"a\0", b"a"]})[0].values == ("a", "a\0")
