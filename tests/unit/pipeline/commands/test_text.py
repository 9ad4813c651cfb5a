from pipeline.commands.text import count_of, table


def test_numbers_have_their_noun():
    assert [count_of(n, "shard") for n in (0, 1, 1024)] == ["0 shards", "1 shard", "1,024 shards"]


def test_columns_are_aligned():
    assert table(["name", "n", "what"], [["a", "1,000", "b"], ["long one", "2", "cd"]], left=(0, 2)) == [
        "name          n  what",
        "a         1,000  b",
        "long one      2  cd",
    ]
