"""The best checkpoints and early stopping survive kills, on one device and with two workers: in real processes."""

import json
import random
import re
import shutil
import subprocess

import pytest
import tensorflow as tf

from tests.helpers import forked
from tests.helpers.runs import (
    RECORD_KEY,
    checkpoint_bytes,
    finish,
    forget,
    saved_steps,
    start,
    start_workers,
    succeed,
    train,
)

# Losses go up and down at this rate. Training ends early; checkpoints, lines and evaluations are at unrelated steps.
FLAGS = (
    *("--model=mlp", "--global_batch_size=64", "--learning_rate=0.4", "--train_steps=400", "--steps_per_loop=4"),
    *("--checkpoint_every=23", "--log_every=10", "--summary_every=15", "--eval_every=17"),
    *("--keep_best=2", "--best_metric=loss", "--early_stopping=4"),
)


def best_of(folder):
    """Returns the contents of the best checkpoints, by step, and the list of them."""
    best = folder / "best"
    return {step: checkpoint_bytes(best, step) for step in saved_steps(best)}, (best / "checkpoint").read_text()


def last_of(folder):
    return int(tf.train.latest_checkpoint(str(folder)).rpartition("-")[2])


def lines_of(path):
    """Returns the metrics by step and name, without times."""
    measured = ("time", "train/examples_per_second", "train/input_wait")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in measured} for line in lines]


@pytest.fixture(scope="module")
def undisturbed(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    out = train(digits, folder, *FLAGS, f"--metrics_jsonl={folder}/m.jsonl")
    assert f"ended early at step {last_of(folder)}: loss has not been better than " in out
    return folder


@pytest.mark.slow
def test_a_run_that_ends_early_keeps_its_best(undisturbed, digits):
    best, listed = best_of(undisturbed)
    ranking = json.loads(best[min(best)][RECORD_KEY])["remembered"]["ranking"]["best"]
    losses = {
        line["step"]: line["eval/test/loss"] for line in lines_of(undisturbed / "m.jsonl") if "eval/test/loss" in line
    }
    by_loss = sorted(losses, key=losses.get)
    assert sorted(best) == sorted(by_loss[:2])
    assert last_of(undisturbed) < 400
    assert tf.train.latest_checkpoint(str(undisturbed / "best")).endswith(f"ckpt-{by_loss[0]}")
    assert f'all_model_checkpoint_paths: "ckpt-{by_loss[1]}"' in listed
    assert set(dict(ranking)) <= set(losses)


def test_beside_a_run_that_ends_early_an_evaluation_ends(undisturbed, tmp_path):
    copy = shutil.copytree(undisturbed, tmp_path / "run")
    watch = forked.Process(["-m", "trainer.evaluate", f"--model_dir={copy}", "--continuous"])
    try:
        out, _ = watch.communicate(timeout=60)
    finally:
        watch.kill()
    assert watch.returncode == 0
    *_, last, total = out.splitlines()
    assert f"step {last_of(undisturbed)}, test accuracy = " in last
    assert re.fullmatch(r"evaluated \d+ of \d+ checkpoints; missed \d+", total)  # checkpoints that were rotated out


def test_run_again_it_stays_as_it_is(undisturbed, digits):
    before = best_of(undisturbed), last_of(undisturbed), lines_of(undisturbed / "m.jsonl")
    ((code, out, _),) = finish(start(digits, undisturbed, *FLAGS, f"--metrics_jsonl={undisturbed}/m.jsonl"))
    assert (code, out.count("\nstep ")) == (0, 0)
    assert (best_of(undisturbed), last_of(undisturbed), lines_of(undisturbed / "m.jsonl")) == before


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_any_moment_it_ends_with_the_same(seed, undisturbed, digits, tmp_path):
    draw, flags = random.Random(seed), (*FLAGS, f"--metrics_jsonl={tmp_path}/m.jsonl")
    for _ in range(4):
        process = start(digits, tmp_path, *flags)
        process.stdout.readline()
        try:
            process.wait(timeout=draw.uniform(0, 2.5))
        except subprocess.TimeoutExpired:
            process.kill() if draw.random() < 0.6 else process.terminate()
        finish(process)
    train(digits, tmp_path, *flags)
    last = last_of(undisturbed)
    assert last_of(tmp_path) == last
    assert checkpoint_bytes(tmp_path, last) == checkpoint_bytes(undisturbed, last)
    assert best_of(tmp_path) == best_of(undisturbed)
    assert lines_of(tmp_path / "m.jsonl") == lines_of(undisturbed / "m.jsonl")


@pytest.mark.slow
def test_two_workers_keep_the_best_with_averaged_weights(digits, tmp_path):
    flags = (*FLAGS, "--ema=0.9", "--train_steps=60", "--best_metric=accuracy")
    first, _ = succeed(*start_workers(digits, [tmp_path] * 2, *flags))
    assert "; best: " in first
    assert "; averaged weights)" in first
    best, _ = best_of(tmp_path)
    assert len(best) == 2
    again, _ = succeed(*start_workers(digits, [tmp_path] * 2, *flags, "--train_steps=80"))
    assert "resumed from" in again


@pytest.mark.slow
def test_resumed_with_other_flags_the_best_hold_the_weights_that_were_ranked(digits, tmp_path):
    """What the run abandoned has evaluated at the same steps, and better."""
    flags = (*FLAGS[:4], "--train_steps=50", "--checkpoint_every=20", "--eval_every=10", "--keep_best=5")
    flags = (*flags, "--best_metric=loss", "--steps_per_loop=10")
    for rate in (0.4, 0.01):
        forget(tmp_path, 40, 50)
        out = train(digits, tmp_path, *flags, f"--learning_rate={rate}")
    assert "--learning_rate was 0.4, is 0.01" in out
    best, _ = best_of(tmp_path)
    newest = checkpoint_bytes(tmp_path, 40)
    assert sorted(best) == [10, 20, 30, 40, 50]
    del best[40][RECORD_KEY], newest[RECORD_KEY]
    assert best[40] == newest


def test_a_mistyped_metric_is_named_before_the_first_step_and_removes_nothing(undisturbed, digits, tmp_path):
    folder = shutil.copytree(undisturbed, tmp_path / "run")
    ((code, out, err),) = finish(start(digits, folder, *FLAGS, "--best_metric=acuracy", "--eval_every=50"))
    assert (code, out.count("\nstep ")) == (2, 0)
    assert err == "trainer.run: --best_metric=acuracy: evaluations have accuracy, loss\n"
    assert (best_of(folder), last_of(folder)) == (best_of(undisturbed), last_of(undisturbed))


def test_evaluated_on_another_split_the_ranking_begins_anew_and_says_so(undisturbed, digits, tmp_path):
    folder = shutil.copytree(undisturbed, tmp_path / "run")
    last = last_of(folder)
    flags = ("--eval_split=train", f"--train_steps={last + 17}", "--early_stopping=0")
    out = train(digits, folder, *FLAGS, *flags)
    assert "evaluations were of test, are of train, so the ranking of evaluations starts over\n" in out
    assert sorted(best_of(folder)[0]) == [last, last + 17]
