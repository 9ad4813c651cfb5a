"""What is ranked, and when a ranking is taken over. `test_undisturbed` has what becomes of the files."""

import json
import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UsageError
from trainer.checkpoint.best import Ranking

WEIGHT = "optimizer/_trainable_variables/1/.ATTRIBUTES/VARIABLE_VALUE"


@pytest.fixture
def make(make_strategy, make_state, make_checkpoints):
    """Returns a function that makes the checkpoint manager of a run of 30 steps, its state, and the restored values."""

    def make(**flags):
        strategy = make_strategy()
        state = make_state(strategy, ema=0.9)
        manager = make_checkpoints(state, ema=0.9, **flags)
        restored = manager.restore()
        if restored:
            manager.complete_best()
        else:
            state.initialize(strategy)
        return manager, state, restored

    return make


def evaluate(manager, state, step, loss, weight=0.0):
    """Evaluates a state whose weights are all the same; saves it only if it is among the best."""
    for variable in state.model.trainable_variables:
        variable.assign(np.full(variable.shape, weight, np.float32))
    state.global_step.assign(step)
    manager.best.add(step, loss, {"accuracy": 1 - loss})


def weights_of(folder):
    """Returns the weight that each best checkpoint holds, by step."""
    paths = [path.with_suffix("") for path in (folder / "best").glob("*.index")]
    readers = {int(path.name.split("-")[1]): tf.train.load_checkpoint(str(path)) for path in paths}
    return {step: float(reader.get_tensor(WEIGHT).flat[0]) for step, reader in readers.items()}


@pytest.mark.parametrize(
    ("flags", "best"),
    [
        ({}, 30),
        ({"best_metric": "loss"}, 30),
        ({"best_metric": "loss", "best_mode": "max"}, 20),
        ({"best_mode": "min"}, 20),
    ],
)
@pytest.mark.quick(2)
def test_the_best_is_that_of_the_metric_and_the_mode(make, tmp_path, flags, best):
    manager, state, _ = make(keep_best=1, eval_every=10, **flags)
    for step, loss in ((10, 0.5), (20, 0.9), (30, 0.3)):
        evaluate(manager, state, step, loss)
    manager.save()
    assert [*weights_of(tmp_path)] == [best]


def test_of_an_evaluation_that_the_checkpoint_does_not_know_of_the_file_is_not_believed(make, tmp_path):
    manager, state, _ = make(keep_best=1, eval_every=10)
    evaluate(manager, state, 25, 0.1, weight=1)
    other, state, _ = make(keep_best=1, eval_every=10)
    state.global_step.assign(25)
    other.save()
    again, state, restored = make(keep_best=1, eval_every=10)
    assert (restored.name, again.best.ranking.best) == ("ckpt-25", [])
    assert again.best.is_missing(25, is_due=False)
    evaluate(again, state, 25, 0.5, weight=2)
    assert weights_of(tmp_path) == {25: 2}
    assert not again.best.is_missing(25, is_due=False)


@pytest.mark.parametrize("flags", [{}, {"keep_best": 2, "eval_every": 10, "best_metric": "loss"}])
def test_a_run_that_ranks_nothing_or_by_something_else_hands_the_ranking_on(flags, make, tmp_path):
    manager, state, _ = make(keep_best=2, eval_every=10)
    for step in (10, 20):
        evaluate(manager, state, step, 1 / step)
        manager.save()
    other, state, restored = make(**flags)
    assert len(restored.changes) == len(flags) / 3  # that the ranking begins again
    assert tf.train.latest_checkpoint(str(tmp_path / "best")) == str(tmp_path / "best/ckpt-20")
    state.global_step.assign(25)
    other.save()
    assert sorted(weights_of(tmp_path)) == [10, 20]
    again, state, restored = make(keep_best=2, eval_every=10)
    assert (restored.name, restored.changes, again.best.ranking.steps) == ("ckpt-25", (), [20, 10])
    last = again if not flags else make(**flags)[0]
    evaluate(last, last._state, 30, 1 / 30)
    last.save()
    assert sorted(weights_of(tmp_path)) == ([30] if flags else [20, 30])


VALUES = st.lists(st.sampled_from([0.1, 0.2, 0.3, math.nan]), max_size=12)
HIGHER = {(None, "auto"): True, ("accuracy", "min"): False, ("loss", "auto"): False, ("loss", "max"): True}


def ranked(values, keep=2, patience=0, metric="accuracy", mode="auto", data=None):
    """Returns the ranking after evaluations at steps 10, 20, ..."""
    ranking = Ranking(keep, patience, metric, mode, data or {})
    for number, value in enumerate(values, start=1):
        ranking.add(10 * number, value, {} if metric == "loss" else {"accuracy": value})
    return ranking


@given(values=VALUES, keep=st.integers(0, 3), patience=st.integers(0, 3), by=st.sampled_from(list(HIGHER)))
def test_the_best_come_first_and_training_ends_after_so_many_that_are_not_better(values, keep, patience, by):
    sign = 1 if HIGHER[by] else -1
    ranking = ranked(values, keep, patience, *by)
    costs = [(-sign * value, 10 * number) for number, value in enumerate(values, start=1) if not math.isnan(value)]
    best = sorted(costs)
    assert ranking.best == [(step, -sign * cost) for cost, step in best[:keep]]
    assert ranking.top == (-sign * best[0][0] if best else None)
    assert ranking.stale == len(values) - (best[0][1] // 10 if best else 0)
    assert ranking.ended == (0 < patience <= ranking.stale)
    again = ranking.add(10 * len(values), math.inf, {"accuracy": math.inf}) if values else None
    assert again in (None, 10 * len(values) in ranking.steps)
    assert ranking.top != math.inf  # an evaluation that is made again counts once


@given(values=VALUES, cut=st.integers(0, 12), keep=st.integers(0, 3), patience=st.integers(0, 3))
def test_resumed_anywhere_it_decides_as_if_undisturbed(values, cut, keep, patience):
    resumed = Ranking(keep, patience, "accuracy", "auto")
    resumed.load_state_dict(json.loads(json.dumps(ranked(values[:cut], keep, patience).state_dict())))
    for number, value in list(enumerate(values, start=1))[cut:]:
        resumed.add(10 * number, value, {"accuracy": value})
    assert resumed == ranked(values, keep, patience)


def test_without_an_accuracy_the_loss_decides():
    ranking = Ranking(1, 0, None, "auto")
    ranking.add(1, 0.5, {"mae": 0.1})
    ranking.add(2, 0.4, {"mae": 0.2})
    assert (ranking.metric, ranking.best) == ("loss", [(2, 0.4)])


@pytest.mark.parametrize(
    ("metric", "mode", "data", "facts"),
    [
        ("loss", "auto", {"test": "d"}, ("accuracy", "loss")),
        ("accuracy", "min", {"test": "d"}, ("auto", "min")),
        ("accuracy", "auto", {"train": "d"}, ("test", "train")),
        ("accuracy", "auto", {"test": "e"}, ("test",)),
        ("accuracy", "max", {"test": "d"}, ()),
        (None, "auto", {"test": "d"}, ()),
    ],
)
def test_by_what_else_it_ranks_is_said(metric, mode, data, facts):
    ranking = Ranking(2, 0, metric, mode, data)
    ranking.load_state_dict(ranked([0.5, 0.7], data={"test": "d"}).state_dict())
    assert bool(ranking.why_reset) == bool(facts)
    assert all(fact in ranking.why_reset for fact in facts)
    assert ranking.steps == ([] if facts else [20, 10])


def test_what_is_not_taken_over_is_handed_on_until_there_is_an_evaluation():
    before = ranked([0.5, 0.7]).state_dict()
    ranking = Ranking(2, 0, "loss", "auto")
    ranking.load_state_dict(before)
    assert ranking.state_dict() == before
    ranking.add(30, 0.4, {})
    assert (ranking.state_dict()["metric"], ranking.state_dict()["best"]) == ("loss", [(30, 0.4)])


def test_early_stopping_alone_leaves_the_best_as_they_are():
    ranking = Ranking(0, 3, "accuracy", "auto")
    ranking.load_state_dict(ranked([0.5, 0.7]).state_dict())
    assert ranking.add(30, 0.1, {"accuracy": 0.9}) is False
    assert (ranking.steps, ranking.top) == ([20, 10], 0.9)


def test_an_unknown_metric_is_named_with_those_there_are_before_the_first_evaluation_and_at_one():
    unknown = Ranking(1, 0, "acuracy", "auto")
    for fails in (lambda: unknown.check(lambda: ["loss", "accuracy"]), lambda: unknown.add(1, 0.5, {"accuracy": 0.5})):
        with pytest.raises(UsageError, match=r"--best_metric=acuracy.* accuracy, loss$"):
            fails()
    Ranking(1, 0, "accuracy", "auto").check(lambda: ["loss", "accuracy"])
    for known in (Ranking(1, 0, None, "auto"), Ranking(1, 0, "loss", "auto"), ranked([0.5])):
        known.check(lambda: pytest.fail("asked for the names"))
