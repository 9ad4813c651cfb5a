"""What is ranked, and which of the best checkpoints are kept."""

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
    """Returns a function that makes the checkpoint manager of a run of 30 steps, its state, and what was restored."""

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


def evaluate(manager, state, step, loss):
    state.global_step.assign(step)
    manager.best.add(step, loss, {"accuracy": 1 - loss})
    manager.save()


def test_the_best_are_kept_beside_the_newest_and_a_run_resumes_with_their_ranking(make, tmp_path):
    manager, state, restored = make(keep_best=2, eval_every=10)
    assert restored is None
    for step, loss in ((10, 0.5), (20, 0.9), (30, 0.3)):
        evaluate(manager, state, step, loss)
    assert sorted(path.stem for path in (tmp_path / "best").glob("*.index")) == ["ckpt-10", "ckpt-30"]
    again, state, restored = make(keep_best=2, eval_every=10)
    assert (state.step, restored.name) == (30, "ckpt-30")
    assert again.best.ranking.steps == [30, 10]
    assert not again.ends_early


@pytest.mark.parametrize(
    ("flags", "best"),
    [
        ({}, 30),
        ({"best_metric": "loss"}, 30),
        ({"best_metric": "loss", "best_mode": "max"}, 20),
        ({"best_mode": "min"}, 20),
    ],
)
def test_the_best_is_that_of_the_metric_and_the_mode(make, tmp_path, flags, best):
    manager, state, _ = make(keep_best=1, eval_every=10, **flags)
    for step, loss in ((10, 0.5), (20, 0.9), (30, 0.3)):
        evaluate(manager, state, step, loss)
    assert [path.stem for path in (tmp_path / "best").glob("*.index")] == [f"ckpt-{best}"]


def rank(manager, state, step, loss, weight=0.0):
    """Evaluates a state whose weights are all the same, without saving it in model_dir."""
    for variable in state.model.trainable_variables:
        variable.assign(np.full(variable.shape, weight, np.float32))
    state.global_step.assign(step)
    manager.best.add(step, loss, {"accuracy": 1 - loss})


def weights_of(folder):
    """Returns the weight that each best checkpoint holds, by step."""
    paths = [path.with_suffix("") for path in (folder / "best").glob("*.index")]
    readers = {int(path.name.split("-")[1]): tf.train.load_checkpoint(str(path)) for path in paths}
    return {step: float(reader.get_tensor(WEIGHT).flat[0]) for step, reader in readers.items()}


def test_a_best_checkpoint_of_another_attempt_is_replaced_where_its_step_is_ranked_and_else_removed(make, tmp_path):
    manager, state, _ = make(keep_best=2, eval_every=10)
    rank(manager, state, 10, 0.9, weight=1)
    manager.save()
    for step in (20, 30):
        rank(manager, state, step, 0.1, weight=1)
    again, state, restored = make(keep_best=2, eval_every=10)  # killed before it was saved
    assert (restored.name, sorted(weights_of(tmp_path))) == ("ckpt-10", [10, 20, 30])
    rank(again, state, 20, 0.5, weight=2)
    assert weights_of(tmp_path) == {10: 1, 20: 2, 30: 1}
    again.save()
    assert weights_of(tmp_path) == {10: 1, 20: 2}


def test_a_new_run_replaces_the_best_checkpoints_of_an_earlier_one(make, tmp_path):
    manager, state, _ = make(keep_best=2, eval_every=10)
    for step in (10, 20):
        rank(manager, state, step, 0.1, weight=1)
    new, state, restored = make(keep_best=2, eval_every=10)
    assert restored is None
    state.global_step.assign(5)
    new.save()
    assert weights_of(tmp_path) == {10: 1, 20: 1}
    rank(new, state, 10, 0.5, weight=2)
    new.save()
    assert weights_of(tmp_path) == {10: 2}


def test_of_an_evaluation_that_the_checkpoint_does_not_know_of_the_file_is_not_believed(make, tmp_path):
    manager, state, _ = make(keep_best=1, eval_every=10)
    rank(manager, state, 25, 0.1, weight=1)
    other, state, _ = make(keep_best=1, eval_every=10)
    state.global_step.assign(25)
    other.save()
    again, state, restored = make(keep_best=1, eval_every=10)
    assert (restored.name, again.best.ranking.best) == ("ckpt-25", [])
    assert again.best.is_missing(25, 10)
    rank(again, state, 25, 0.5, weight=2)
    assert weights_of(tmp_path) == {25: 2}
    assert not again.best.is_missing(25, 10)


@pytest.mark.parametrize("damage", ["truncated", "lost"])
def test_a_damaged_best_checkpoint_of_the_step_resumed_from_is_written_anew(damage, make, tmp_path):
    manager, state, _ = make(keep_best=2, eval_every=10)
    for step in (10, 20):
        rank(manager, state, step, 1 / step, weight=step)
    manager.save()
    for path in (tmp_path / "best").glob("ckpt-20.*"):
        path.write_bytes(path.read_bytes()[:50]) if damage == "truncated" else path.unlink()
    again, state, restored = make(keep_best=2, eval_every=10)
    assert (restored.name, again.best.ranking.steps) == ("ckpt-20", [20, 10])
    assert weights_of(tmp_path) == {10: 10, 20: 20}


def test_a_run_that_ranks_nothing_hands_the_ranking_on(make, tmp_path):
    manager, state, _ = make(keep_best=2, eval_every=10)
    for step in (10, 20):
        evaluate(manager, state, step, 1 / step)
    other, state, _ = make()
    state.global_step.assign(25)
    other.save()
    again, state, restored = make(keep_best=2, eval_every=10)
    assert (restored.name, restored.changes, again.best.ranking.steps) == ("ckpt-25", (), [20, 10])
    again.tidy()
    assert sorted(weights_of(tmp_path)) == [10, 20]
    evaluate(again, state, 30, 1 / 30)
    assert sorted(weights_of(tmp_path)) == [20, 30]


@pytest.mark.parametrize(
    ("flags", "change"),
    [
        ({"best_metric": "loss"}, "--best_metric was accuracy, is loss"),
        ({"best_mode": "min"}, "--best_mode was auto, is min"),
        ({"eval_split": "train"}, "evaluations were of test, are of train"),
    ],
)
def test_ranked_by_something_else_the_best_stay_until_an_evaluation_is_ranked(flags, change, make, tmp_path):
    manager, state, _ = make(keep_best=2, eval_every=10)
    for step in (10, 20):
        evaluate(manager, state, step, 1 / step)
    other, state, restored = make(keep_best=2, eval_every=10, **flags)
    assert restored.changes == (f"{change}, so the ranking of evaluations begins anew",)
    state.global_step.assign(25)
    other.save()
    assert sorted(weights_of(tmp_path)) == [10, 20]
    again, _, restored = make(keep_best=2, eval_every=10)
    assert (restored.name, restored.changes, again.best.ranking.steps) == ("ckpt-25", (), [20, 10])
    other, state, _ = make(keep_best=2, eval_every=10, **flags)
    evaluate(other, state, 30, 0.9)
    assert sorted(weights_of(tmp_path)) == [30]


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_resumed_the_best_is_still_the_one_that_tensorflow_finds(metric, make, tmp_path):
    manager, state, _ = make(keep_best=2, eval_every=10)
    for step, loss in ((10, 0.1), (20, 0.5)):
        evaluate(manager, state, step, loss)
    make(keep_best=2, eval_every=10, best_metric=metric)
    assert tf.train.latest_checkpoint(str(tmp_path / "best")) == str(tmp_path / "best/ckpt-10")
    assert sorted(weights_of(tmp_path)) == [10, 20]


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
    stored = json.loads(json.dumps(ranked(values[:cut], keep, patience).state_dict()))
    resumed = Ranking(keep, patience, "accuracy", "auto")
    resumed.load_state_dict(stored)
    for number, value in list(enumerate(values, start=1))[cut:]:
        resumed.add(10 * number, 1 - value, {"accuracy": value})
    assert (resumed, resumed.ended) == (whole, whole.ended)


@pytest.mark.parametrize(("metric", "mode"), [("loss", "auto"), ("accuracy", "min")])
def test_by_something_else_the_ranking_begins_anew(metric, mode):
    ranking = Ranking(2, 0, metric, mode)
    ranking.load_state_dict(ranked([0.5]).state_dict())
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
    ],
)
def test_by_what_else_it_ranks_is_said(metric, mode, data, text):
    before = ranked([0.5, 0.7])
    before.data = {"test": "d"}
    ranking = Ranking(2, 0, metric, mode, data)
    ranking.load_state_dict(before.state_dict())
    assert (ranking.why_reset, ranking.steps) == (text, [] if text else [20, 10])


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


def test_the_metric_is_checked_before_the_first_evaluation_and_once():
    with pytest.raises(UsageError, match=r"^--best_metric=acuracy: evaluations have accuracy, loss$"):
        Ranking(1, 0, "acuracy", "auto").check(lambda: ["loss", "accuracy"])
    Ranking(1, 0, "accuracy", "auto").check(lambda: ["loss", "accuracy"])
    for known in (Ranking(1, 0, None, "auto"), Ranking(1, 0, "loss", "auto"), ranked([0.5])):
        known.check(lambda: pytest.fail("asked for the names"))


def test_of_a_checkpoint_that_remembers_none_it_begins_anew():
    ranking = Ranking(2, 0, None, "auto")
    ranking.load_state_dict(None)
    assert ranking == Ranking(2, 0, None, "auto")
