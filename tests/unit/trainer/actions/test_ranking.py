import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UsageError
from trainer.actions.ranking import Ranking


def ranked(values, keep=2, patience=0, metric="accuracy", mode="auto"):
    """Returns the ranking after evaluations at steps 10, 20, ..."""
    ranking = Ranking(keep, patience, metric, mode)
    for number, value in enumerate(values, start=1):
        ranking.add(10 * number, 1 - value, {"accuracy": value})
    return ranking


def test_the_best_come_first_and_of_equal_ones_the_earlier():
    ranking = ranked([0.5, 0.7, 0.6, 0.7])
    assert ranking.best == [(20, 0.7), (40, 0.7)]
    assert (ranking.top, ranking.stale, ranking.evaluated) == (0.7, 2, 40)


@pytest.mark.parametrize(
    ("metric", "mode", "best"),
    [
        (None, "auto", [30, 20]),
        ("accuracy", "min", [10, 20]),
        ("loss", "auto", [30, 20]),
        ("loss", "max", [10, 20]),
    ],
)
def test_what_is_better(metric, mode, best):
    assert ranked([0.1, 0.2, 0.3], metric=metric, mode=mode).steps == best


def test_without_an_accuracy_the_loss_decides():
    ranking = Ranking(1, 0, None, "auto")
    ranking.add(1, 0.5, {"mae": 0.1})
    ranking.add(2, 0.4, {"mae": 0.2})
    assert (ranking.metric, ranking.best) == ("loss", [(2, 0.4)])


def test_training_ends_after_so_many_evaluations_without_a_better_one():
    assert not ranked([0.5, 0.4, 0.5], patience=3).ended
    assert ranked([0.5, 0.4, 0.5, 0.3], patience=3).ended
    assert not ranked([0.5, 0.4, 0.5, 0.6], patience=3).ended
    assert not ranked([0.5, 0.4, 0.5, 0.3], patience=0).ended


def test_nan_is_never_better():
    ranking = ranked([math.nan, 0.5, math.nan], patience=2)
    assert (ranking.best, ranking.stale) == ([(20, 0.5)], 1)


def test_an_evaluation_that_is_made_again_counts_once():
    ranking = ranked([0.5, 0.4])
    assert ranking.add(20, 0.6, {"accuracy": 0.4}) is True
    assert (ranking.steps, ranking.stale) == ([10, 20], 1)


def test_an_unknown_metric_is_named_with_those_there_are():
    with pytest.raises(UsageError, match=r"^--best_metric=f1: evaluations have accuracy, loss$"):
        Ranking(1, 0, "f1", "auto").add(1, 0.5, {"accuracy": 0.5})


values = st.lists(st.sampled_from([0.1, 0.2, 0.3, math.nan]), max_size=12)


@given(values=values, cut=st.integers(0, 12), keep=st.integers(0, 3), patience=st.integers(0, 3))
def test_resumed_anywhere_it_decides_as_if_undisturbed(values, cut, keep, patience):
    whole = ranked(values, keep, patience)
    stored = json.loads(json.dumps(ranked(values[:cut], keep, patience).stored()))
    resumed = Ranking(keep, patience, "accuracy", "auto")
    resumed.restore(stored)
    for number, value in list(enumerate(values, start=1))[cut:]:
        resumed.add(10 * number, 1 - value, {"accuracy": value})
    assert (resumed, resumed.ended) == (whole, whole.ended)


@pytest.mark.parametrize(("metric", "mode"), [("loss", "auto"), ("accuracy", "min")])
def test_by_something_else_the_ranking_begins_anew(metric, mode):
    ranking = Ranking(2, 0, metric, mode)
    ranking.restore(ranked([0.5]).stored())
    assert ranking == Ranking(2, 0, metric, mode)


@pytest.mark.parametrize(
    ("metric", "mode", "data", "text"),
    [
        ("loss", "auto", {"test": "d"}, "--best_metric was accuracy, is loss"),
        ("accuracy", "min", {"test": "d"}, "--best_mode was auto, is min"),
        ("accuracy", "auto", {"train": "d"}, "evaluations were of test, are of train"),
        ("accuracy", "auto", {"test": "e"}, "evaluations are of other data called test"),
        ("accuracy", "max", {"test": "d"}, ""),
        (None, "auto", {"test": "d"}, ""),
        ("accuracy", "auto", None, ""),
    ],
)
def test_by_what_else_it_ranks_is_said(metric, mode, data, text):
    before = ranked([0.5, 0.7])
    before.data = {"test": "d"}
    ranking = Ranking(2, 0, metric, mode, data)
    ranking.restore(before.stored())
    assert (ranking.anew, ranking.steps) == (text, [] if text else [20, 10])


def test_what_is_not_taken_over_is_handed_on_until_there_is_an_evaluation():
    before = ranked([0.5, 0.7]).stored()
    ranking = Ranking(2, 0, "loss", "auto")
    ranking.restore(before)
    assert ranking.stored() == before
    ranking.add(30, 0.4, {})
    assert (ranking.stored()["metric"], ranking.stored()["best"]) == ("loss", [(30, 0.4)])


def test_a_ranking_of_an_earlier_version_is_taken_over():
    before = ranked([0.5, 0.7]).stored()
    del before["data"]
    ranking = Ranking(2, 0, None, "auto", {"test": "d"})
    ranking.restore(before)
    assert (ranking.anew, ranking.steps, ranking.stored()["data"]) == ("", [20, 10], {"test": "d"})


def test_early_stopping_alone_leaves_the_best_as_they_are():
    ranking = Ranking(0, 3, "accuracy", "auto")
    ranking.restore(ranked([0.5, 0.7]).stored())
    assert ranking.add(30, 0.1, {"accuracy": 0.9}) is False
    assert (ranking.steps, ranking.top) == ([20, 10], 0.9)


def test_the_metric_is_checked_before_the_first_evaluation_and_once():
    with pytest.raises(UsageError, match=r"^--best_metric=acuracy: evaluations have accuracy, loss$"):
        Ranking(1, 0, "acuracy", "auto").check(lambda: ["loss", "accuracy"])
    Ranking(1, 0, "accuracy", "auto").check(lambda: ["loss", "accuracy"])
    for known in (Ranking(1, 0, None, "auto"), Ranking(1, 0, "loss", "auto"), ranked([0.5])):
        known.check(lambda: pytest.fail("asked for the names"))


def test_of_a_checkpoint_that_remembers_none_it_begins_anew():
    ranking = Ranking(2, 0, None, "auto")
    ranking.restore(None)
    assert ranking == Ranking(2, 0, None, "auto")
