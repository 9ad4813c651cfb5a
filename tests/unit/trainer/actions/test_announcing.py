import types

import pytest

from pipeline.read.shard_cache import CacheCounts, count
from trainer.actions import announcing
from trainer.actions.announcing import RunSummary, epoch_note
from trainer.actions.output import Output
from trainer.checkpoint.best import BestCheckpoints, Ranking
from trainer.run_folder import RunFolder


@pytest.mark.parametrize(
    ("step", "steps", "noted"), [(0, 0, False), (30, 15, False), (35, 5, False), (35, 0, True), (35, 3, True)]
)
def test_a_resumed_run_says_from_which_step_its_means_are(step, steps, noted):
    """Epochs of 15 steps; a checkpoint without sums, or with those of other epochs."""
    note = epoch_note(step, 15, steps)
    assert ("until step 45 are means from step 36 on" in note) == bool(note) == noted


@pytest.fixture
def say_end(capsys):
    """Returns a function that ends a run of 30 steps at a step and returns its lines."""

    def say_end(summary, step, logs, best=None):
        checkpoints = types.SimpleNamespace(
            newest="ckpt-5", best=best, ends_early=best is not None and best.ranking.ended
        )
        summary._state = types.SimpleNamespace(step=step)
        summary.end(checkpoints, logs)
        return capsys.readouterr().out.splitlines()

    return say_end


@pytest.fixture
def summary():
    return RunSummary(Output(), None, types.SimpleNamespace(last_step=30), None)


@pytest.mark.parametrize("installed", [True, False])
def test_tensorboard_is_named_with_how_to_get_it(installed, summary, say_end, tmp_path, monkeypatch):
    monkeypatch.setattr(announcing.importlib.util, "find_spec", lambda name: object() if installed else None)
    how = "" if installed else " (pip install tensorboard)"
    assert say_end(summary, 5, tmp_path) == [f"checkpoint: ckpt-5; logs: tensorboard --logdir={tmp_path}{how}"]


def test_an_early_end_is_said_where_the_run_has_not_come_to_its_last_step(summary, say_end, tmp_path):
    best = BestCheckpoints(Ranking(0, 1, "accuracy", "auto"), RunFolder(tmp_path), True, None)
    for step, accuracy in ((10, 0.9), (20, 0.1)):
        best.add(step, 1 - accuracy, {"accuracy": accuracy})
    early, last = say_end(summary, 20, tmp_path / "logs", best)
    assert early.startswith("ended early at step 20: accuracy has not been better than 0.9000 in 1 evaluation")
    assert last == "checkpoint: ckpt-5"
    assert say_end(summary, 30, tmp_path / "logs", best) == [last]


def test_the_end_says_what_the_cache_of_this_run_did(say_end, tmp_path):
    count(CacheCounts(hits=7))
    summary = RunSummary(Output(), None, types.SimpleNamespace(last_step=30), None)
    assert "cache" not in say_end(summary, 30, tmp_path / "logs")[0]
    count(CacheCounts(hits=2, misses=1, fetched_bytes=5))
    assert say_end(summary, 30, tmp_path / "logs")[0] == "cache 2 hits, 1 miss (5 bytes fetched)"
