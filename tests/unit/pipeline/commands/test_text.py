import numpy as np
import pytest

from pipeline.commands.text import count_of, printable, range_of, scale_of, shape_of, size_of, sizes_of, some_of, table


def test_numbers_have_their_noun():
    assert [count_of(n, "shard") for n in (0, 1, 1024)] == ["0 shards", "1 shard", "1,024 shards"]
    assert [count_of(n, "class", "classes") for n in (0, 1, 2)] == ["0 classes", "1 class", "2 classes"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\0\x1b[2J", "a\\nb\\x00\\x1b[2J"),
        ("\ud800\u202e\u200b", "\\ud800\\u202e\\u200b"),
        (
            "l\u00e9zard\u00a0vert, \u72ac\u3000\u732b, \u0645\u06cc\u200c\u0631\u0648\u0645",
            None,
        ),  # as people write them
    ],
)
def test_line_breaks_and_invisible_characters_are_escaped(text, shown):
    assert printable(text) == (shown or text)
    assert table([[("class", text)]]) == ["class", shown or text]


@pytest.mark.parametrize(
    ("values", "digits", "text"), [((4,), 0, "4"), ((9, 1024, 3), 0, "3 to 1,024"), ((1.04, 1.01), 1, "1.0")]
)
def test_a_range_of_one_value_is_the_value(values, digits, text):
    assert range_of(values, digits) == text


@pytest.mark.parametrize(
    ("num_bytes", "unit", "text"),
    [
        (0, (1, "bytes"), "0 bytes"),
        (1023, (1, "bytes"), "1,023 bytes"),
        (1024, (1024, "KiB"), "1.0 KiB"),
        (np.int64(5 << 30), (1 << 30, "GiB"), "5.0 GiB"),
        (1 << 60, (1 << 40, "TiB"), "1,048,576.0 TiB"),
    ],
)
def test_a_size_is_in_the_unit_that_fits_it(num_bytes, unit, text):
    assert scale_of(num_bytes) == unit
    assert size_of(num_bytes) == text


def test_of_many_names_the_first_ones_are_shown():
    assert [some_of(list(names), 2) for names in ("", "a", "ab", "abc")] == ["", "a", "a, b", "a, b, ..."]


def test_a_range_of_sizes_names_each_unit_once():
    assert sizes_of([5 << 20, 9 << 20]) == "5.0 to 9.0 MiB"
    assert sizes_of([3 << 10, 9 << 20, 5 << 20]) == "3.0 KiB to 9.0 MiB"
    assert sizes_of([1 << 20, (1 << 20) + 9]) == "1.0 MiB"


def test_a_size_that_varies_is_a_question_mark_in_a_shape():
    assert [shape_of(sizes) for sizes in ((28, 28, 1), (None, 32, 3), ())] == ["28x28x1", "?x32x3", ""]


def test_columns_are_aligned():
    rows = [[("name", "a"), ("n", "1,000"), ("what", "b")], [("name", "long one"), ("n", "2"), ("what", "cd")]]
    assert table(rows, left=("what",)) == [
        "name          n  what",
        "a         1,000  b",
        "long one      2  cd",
    ]
    assert table([]) == []
