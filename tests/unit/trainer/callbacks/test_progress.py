import re
import types

import pytest

from pipeline.read.shard_cache import CacheCounts, _count
from trainer.callbacks import progress
from trainer.callbacks.progress import ProgressBar, RunSummary, epoch_note, trained
from trainer.callbacks.terminal import Output
from trainer.checkpoint.best import BestCheckpoints, Ranking
from trainer.loop import Spent
from trainer.run_folder import RunFolder
from trainer.task import Task


@pytest.mark.parametrize(
    ("step", "steps", "noted"), [(0, 0, False), (30, 15, False), (35, 5, False), (35, 0, True), (35, 3, True)]
)
def test_a_resumed_run_says_from_which_step_its_means_are(step, steps, noted):
    """Epochs of 15 steps; a checkpoint without sums, or with sums of other epochs."""
    note = epoch_note(step, 15, steps)
    assert ("until step 45 are means from step 36 on" in note) == bool(note) == noted


class OnItsFlags(Task):
    pass


class WithItsOwn(Task):
    def build_model(self):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("task", "name", "said"),
    [
        (Task, None, "lenet"),
        (OnItsFlags, "mine:OnItsFlags", "mine:OnItsFlags on --model=lenet"),
        (WithItsOwn, "mine:WithItsOwn", "mine:WithItsOwn"),
    ],
)
def test_the_first_line_names_the_model_that_a_task_leaves_to_the_flags(task, name, said):
    config = types.SimpleNamespace(model=types.SimpleNamespace(task=name, model="lenet"))
    assert trained(config, task(config, None)) == said


@pytest.fixture
def say_end(capsys):
    """Returns a function that ends a run of 30 steps at a step and returns its lines."""

    def say_end(summary, step, best=None):
        checkpoints = types.SimpleNamespace(
            newest="ckpt-5", best=best, ends_early=best is not None and best.ranking.ended
        )
        summary._state = types.SimpleNamespace(step=step)
        summary.end(checkpoints)
        return capsys.readouterr().out.splitlines()

    return say_end


@pytest.fixture
def summary_of(tmp_path):
    """Returns a function that makes the summary of a run of 30 steps."""
    config = types.SimpleNamespace(run=types.SimpleNamespace(folder=RunFolder(tmp_path)))
    return lambda: RunSummary(Output(), config, types.SimpleNamespace(last_step=30), None)


@pytest.mark.parametrize("installed", [True, False])
def test_tensorboard_is_named_with_how_to_get_it(installed, summary_of, say_end, tmp_path, monkeypatch):
    monkeypatch.setattr(progress.importlib.util, "find_spec", lambda name: object() if installed else None)
    how = "" if installed else " (pip install tensorboard)"
    (tmp_path / "logs").mkdir()
    assert say_end(summary_of(), 5) == [f"checkpoint: ckpt-5; logs: tensorboard --logdir={tmp_path}/logs{how}"]


def test_an_early_end_is_said_where_the_run_has_not_come_to_its_last_step(summary_of, say_end, tmp_path):
    best = BestCheckpoints(Ranking(0, 1, "accuracy", "auto"), RunFolder(tmp_path), True, None)
    for step, accuracy in ((10, 0.9), (20, 0.1)):
        best.add(step, 1 - accuracy, {"accuracy": accuracy})
    summary = summary_of()
    early, last = say_end(summary, 20, best)
    assert early.startswith("ended early at step 20: accuracy has not been better than 0.9000 in 1 evaluation")
    assert last == "checkpoint: ckpt-5"
    assert say_end(summary, 30, best) == [last]


def test_the_end_says_what_the_cache_of_this_run_did(summary_of, say_end):
    _count(CacheCounts(hits=7))
    summary = summary_of()
    assert "cache" not in say_end(summary, 30)[0]
    _count(CacheCounts(hits=2, misses=1, fetched_bytes=5))
    assert say_end(summary, 30)[0] == "cache 2 hits, 1 miss (5 bytes fetched)"


@pytest.mark.parametrize("columns", [60, 79, 120, 200])
@pytest.mark.parametrize(("step", "last", "speed"), [(40, 280, 900.0), (123_456, 1_000_000, 123_456.0)])
def test_the_live_line_shows_the_wait_and_the_time_left_in_any_terminal(columns, step, last, speed, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    means = {progress.TOTAL_LOSS: 1.234, "accuracy": 0.5, "top_5_accuracy": 0.75}

    def at(step):
        seconds = 10 * 32 / speed
        return types.SimpleNamespace(step=step, means=means, since=lambda earlier: Spent(10, seconds, 0.25 * seconds))

    shown = []
    live = types.SimpleNamespace(is_due=True, columns=columns, show=shown.append)
    bar = ProgressBar(live, last, 70, 32, "img")
    bar.on_loop(at(step - 10))
    bar.on_loop(at(step))
    line = shown[-1]
    assert len(line) <= columns
    assert f"step {step:,}/{last:,}" in line
    assert "input wait 25%" in line
    assert re.search(r"[\d:]+ left$", line)
    assert (f"{speed:,.0f} img/s" in line) == (columns > 60)
    assert ("top_5_accuracy" in line) == (columns >= 200)
