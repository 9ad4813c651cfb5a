import pytest

from pipeline.commands.text import count_of, range_of, table


def test_numbers_have_their_noun():
    assert [count_of(n, "shard") for n in (0, 1, 1024)] == ["0 shards", "1 shard", "1,024 shards"]


@pytest.mark.parametrize(
    ("values", "digits", "text"), [((4,), 0, "4"), ((9, 1024, 3), 0, "3 to 1,024"), ((1.04, 1.01), 1, "1.0")]
)
def test_a_range_of_one_value_is_the_value(values, digits, text):
    assert range_of(values, digits) == text


def test_columns_are_aligned():
    rows = [[("name", "a"), ("n", "1,000"), ("what", "b")], [("name", "long one"), ("n", "2"), ("what", "cd")]]
    assert table(rows, left=("what",)) == [
        "name          n  what",
        "a         1,000  b",
        "long one      2  cd",
    ]
    assert table([]) == []
