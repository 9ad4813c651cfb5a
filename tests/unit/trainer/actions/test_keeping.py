"""What a run keeps and restores, and what it says at its end."""

import types

import numpy as np
import pytest
import tensorflow as tf

from pipeline.read.cache_counts import CacheCounts, count
from trainer.actions.evaluation import Evaluation
from trainer.actions.heartbeat import Heartbeat
from trainer.actions.keeping import Keeper
from trainer.actions.output import Output
from trainer.cluster.tf_config import ALONE
from trainer.loop import NotFiniteError

WEIGHT = "optimizer/_trainable_variables/1/.ATTRIBUTES/VARIABLE_VALUE"


@pytest.fixture
def make(make_strategy, make_state, spec, config_of, tmp_path):
    """Returns a function that makes the keeper of a run of 30 steps, and its state."""

    def make(**flags):
        strategy = make_strategy()
        state = make_state(strategy, ema=0.9)
        training = types.SimpleNamespace(spec=spec, steps_per_epoch=10, parts=())
        split = types.SimpleNamespace(spec=spec)
        evaluation = {flags.get("eval_split", "test"): split}
        plan = types.SimpleNamespace(last_step=30, training=training, evaluation=evaluation)
        config = config_of(model_dir=tmp_path, ema=0.9, **flags)
        keeper = Keeper(config, plan, ALONE, state, Output(), Heartbeat(), {})
        restored = keeper.restore()
        keeper.begin(strategy, restored)
        return keeper, state, restored

    return make


def evaluate(keeper, state, step, loss):
    state.global_step.assign(step)
    keeper.best.add(step, Evaluation("test", 8, 0, loss, {"accuracy": 1 - loss}))
    keeper.save()


def test_the_best_are_kept_beside_the_newest_and_a_run_resumes_with_their_ranking(make, tmp_path):
    keeper, state, restored = make(keep_best=2, eval_every=10)
    assert restored is None
    for step, loss in ((10, 0.5), (20, 0.9), (30, 0.3)):
        evaluate(keeper, state, step, loss)
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
    keeper, state, _ = make(keep_best=1, eval_every=10, **flags)
    for step, loss in ((10, 0.5), (20, 0.9), (30, 0.3)):
        evaluate(keeper, state, step, loss)
    assert [path.stem for path in (tmp_path / "best").glob("*.index")] == [f"ckpt-{best}"]


def rank(keeper, state, step, loss, weight=0.0):
    """Evaluates a state whose weights are all the same, without saving it in model_dir."""
    for variable in state.model.trainable_variables:
        variable.assign(np.full(variable.shape, weight, np.float32))
    state.global_step.assign(step)
    keeper.best.add(step, Evaluation("test", 8, 0, loss, {"accuracy": 1 - loss}))


def weights_of(folder):
    """Returns the weight that each best checkpoint holds, by step."""
    paths = [path.with_suffix("") for path in (folder / "best").glob("*.index")]
    readers = {int(path.name.split("-")[1]): tf.train.load_checkpoint(str(path)) for path in paths}
    return {step: float(reader.get_tensor(WEIGHT).flat[0]) for step, reader in readers.items()}


def test_a_best_checkpoint_of_another_attempt_is_replaced_where_its_step_is_ranked_and_else_removed(make, tmp_path):
    keeper, state, _ = make(keep_best=2, eval_every=10)
    rank(keeper, state, 10, 0.9, weight=1)
    keeper.save()
    for step in (20, 30):
        rank(keeper, state, step, 0.1, weight=1)
    again, state, restored = make(keep_best=2, eval_every=10)  # killed before it was saved
    assert (restored.name, sorted(weights_of(tmp_path))) == ("ckpt-10", [10, 20, 30])
    rank(again, state, 20, 0.5, weight=2)
    assert weights_of(tmp_path) == {10: 1, 20: 2, 30: 1}
    again.save()
    assert weights_of(tmp_path) == {10: 1, 20: 2}


def test_a_new_run_replaces_the_best_checkpoints_of_an_earlier_one(make, tmp_path):
    keeper, state, _ = make(keep_best=2, eval_every=10)
    for step in (10, 20):
        rank(keeper, state, step, 0.1, weight=1)
    new, state, restored = make(keep_best=2, eval_every=10)
    assert restored is None
    state.global_step.assign(5)
    new.save()
    assert weights_of(tmp_path) == {10: 1, 20: 1}
    rank(new, state, 10, 0.5, weight=2)
    new.save()
    assert weights_of(tmp_path) == {10: 2}


def test_of_an_evaluation_that_the_checkpoint_does_not_know_of_the_file_is_not_believed(make, tmp_path):
    keeper, state, _ = make(keep_best=1, eval_every=10)
    rank(keeper, state, 25, 0.1, weight=1)
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
    keeper, state, _ = make(keep_best=2, eval_every=10)
    for step in (10, 20):
        rank(keeper, state, step, 1 / step, weight=step)
    keeper.save()
    for path in (tmp_path / "best").glob("ckpt-20.*"):
        path.write_bytes(path.read_bytes()[:50]) if damage == "truncated" else path.unlink()
    again, state, restored = make(keep_best=2, eval_every=10)
    assert (restored.name, again.best.ranking.steps) == ("ckpt-20", [20, 10])
    assert weights_of(tmp_path) == {10: 10, 20: 20}


def test_a_run_that_ranks_nothing_hands_the_ranking_on(make, tmp_path):
    keeper, state, _ = make(keep_best=2, eval_every=10)
    for step in (10, 20):
        evaluate(keeper, state, step, 1 / step)
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
    keeper, state, _ = make(keep_best=2, eval_every=10)
    for step in (10, 20):
        evaluate(keeper, state, step, 1 / step)
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
    keeper, state, _ = make(keep_best=2, eval_every=10)
    for step, loss in ((10, 0.1), (20, 0.5)):
        evaluate(keeper, state, step, loss)
    make(keep_best=2, eval_every=10, best_metric=metric)
    assert tf.train.latest_checkpoint(str(tmp_path / "best")) == str(tmp_path / "best/ckpt-10")
    assert sorted(weights_of(tmp_path)) == [10, 20]


def test_an_early_end_is_said_where_the_run_has_not_come_to_its_last_step(make, tmp_path, capsys):
    keeper, state, _ = make(early_stopping=1, best_metric="accuracy", eval_every=10)
    for step, loss in ((10, 0.1), (20, 0.9)):
        evaluate(keeper, state, step, loss)
    assert keeper.ends_early
    keeper.say_end(tmp_path / "logs")
    early, last = capsys.readouterr().out.splitlines()
    assert early.startswith("ended early at step 20: accuracy has not been better than 0.9000 in 1 evaluation")
    assert last.startswith(f"checkpoint: {tmp_path}/ckpt-20")
    state.global_step.assign(30)
    keeper.say_end(tmp_path / "logs")
    assert "ended early" not in capsys.readouterr().out


def test_the_end_says_what_the_cache_of_this_run_did(make, tmp_path, capsys):
    count(CacheCounts(hits=7))
    keeper, _, _ = make()
    keeper.say_end(tmp_path / "logs")
    assert "cache" not in capsys.readouterr().out
    count(CacheCounts(hits=2, misses=1, fetched_bytes=5))
    keeper.say_end(tmp_path / "logs")
    assert "cache 2 hits, 1 miss (5 bytes fetched)" in capsys.readouterr().out


def test_a_state_that_is_not_finite_names_the_way_back(make, tmp_path):
    keeper, state, _ = make()
    state.global_step.assign(10)
    keeper.save()
    words = f"^the loss is nan; rerun with a lower --learning_rate to resume from {tmp_path}/ckpt-10$"
    with pytest.raises(NotFiniteError, match=words), keeper.naming_the_way_back():
        raise NotFiniteError("the loss is nan")
