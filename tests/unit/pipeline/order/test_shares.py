"""The rows of each source of a mixture, against a search over all ways to share them."""

import itertools
import re
from fractions import Fraction

import pytest

from pipeline.errors import UsageError
from pipeline.order.shares import check_divided, checked_shares, shares_of


def all_shares(rows, parts):
    if parts == 1:
        yield (rows,)
        return
    for first in range(rows + 1):
        for rest in all_shares(rows - first, parts - 1):
            yield (first, *rest)


@pytest.mark.parametrize("weights", [(0.7, 0.3), (0.15, 0.85), (1, 1, 1), (5, 3, 1), (0.1, 0.2, 0.7), (8.5, 1.5)])
def test_no_other_shares_are_nearer_to_the_weights(weights):
    exact = [Fraction(str(weight)) for weight in weights]
    for rows in range(1, 31):
        quotas = [rows * weight / sum(exact) for weight in exact]
        cost = lambda shares: sum((share - quota) ** 2 for share, quota in zip(shares, quotas, strict=True))  # noqa: B023, E731
        found = shares_of(rows, weights)
        assert sum(found) == rows
        best = min(map(cost, all_shares(rows, len(weights))))
        # Of several that are as near, the one that gives more to the sources that are named first.
        assert found == max(shares for shares in all_shares(rows, len(weights)) if cost(shares) == best)


def test_weights_count_as_they_are_written():
    assert shares_of(10, (0.15, 0.85)) == (2, 8)  # 1.5 and 8.5; as binary fractions 0.15 is a little less
    assert shares_of(128, (0.7, 0.3)) == shares_of(128, (7, 3)) == shares_of(128, (70.0, 30.0)) == (90, 38)


def test_a_source_without_a_row_is_an_error():
    assert checked_shares(6, [("a", 1), ("b", 5)]) == (1, 5)
    with pytest.raises(UsageError, match="^source 'a': .* 1 of 41, .*=6 "):
        checked_shares(6, [("a", 1), ("b", 40)])
    with pytest.raises(UsageError, match="global_batch_size=41 "):
        checked_shares(6, [("a", 1), ("b", 40)])
    assert checked_shares(41, [("a", 1), ("b", 40)]) == (1, 40)


def test_the_error_names_the_nearest_weights_and_rows_that_work():
    with pytest.raises(UsageError) as error:
        check_divided(128, [("a", 0.7), ("b", 0.3)], 4)
    assert str(error.value) == (
        "global_batch_size=128 gives the sources a 90, b 38 rows, of which 4 replicas need equal parts; nearest that "
        "work: the weights 88 and 40, or global_batch_size=120 and 132"
    )
    check_divided(128, [("a", 88), ("b", 40)], 4)
    working = [g for g in range(1, 200) if all(share and share % 4 == 0 for share in shares_of(g, (0.7, 0.3)))]
    assert max(g for g in working if g < 128) == 120
    assert min(g for g in working if g > 128) == 132


def test_it_says_nothing_exactly_where_all_shares_are_divided():
    for rows, replicas in itertools.product(range(2, 60), (1, 2, 3, 5)):
        shares = shares_of(rows, (2, 1))
        if all(share % replicas == 0 for share in shares):
            check_divided(rows, [("a", 2), ("b", 1)], replicas)
        else:
            with pytest.raises(UsageError, match=f" {replicas} replicas "):
                check_divided(rows, [("a", 2), ("b", 1)], replicas)


def test_what_an_error_names_does_work():
    batches, weights = r"global_batch_size=([-\d]+)(?: and ([-\d]+))?$", r"the weights ([\d and]+)[,\n]?"
    for rows, pair, parts in itertools.product(range(2, 50), [(2, 1), (40, 1), (3, 1)], (2, 3, 4)):
        if not all(shares_of(rows, pair)):
            continue
        try:
            check_divided(rows, [*zip("ab", pair, strict=True)], parts)
        except UsageError as error:
            said = str(error).partition("nearest that work: ")[2]
            assert said
            for size in filter(None, re.search(batches, said).groups()):
                assert all(share > 0 and share % parts == 0 for share in shares_of(int(size), pair))
            if named := re.match(weights, said):
                near = [int(weight) for weight in named[1].split(" and ")]
                assert sum(near) == rows
                assert all(share > 0 and share % parts == 0 for share in shares_of(rows, near))


def test_a_batch_that_an_error_names_gives_the_source_a_row():
    with pytest.raises(UsageError, match="global_batch_size=42 "):
        checked_shares(6, [("a", 1), ("b", 40.5)])
    assert checked_shares(42, [("a", 1), ("b", 40.5)]) == (1, 41)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ((1e9, 0.5), "source 'b': .* 0.5 of 1e\\+09, .*=6 "),
        ((1e308, 1e308, 1), "source 'c': .* 1 of 1.79769e\\+308, "),
        ((1, 1e-320), "source 'b': "),
    ],
)
def test_weights_of_very_different_sizes_are_one_clear_line(weights, words):
    with pytest.raises(UsageError, match=words):
        checked_shares(6, [*zip("abc", weights, strict=False)])
