"""What bounds the speed of a run: in real processes with a slow input and a slow model."""

import re
import signal

import pytest

from tests.helpers import forked
from tests.helpers.runs import checkpoint_bytes, start, start_workers, succeed, train, wait_for_step

TASKS = """
import time

import keras
import tensorflow as tf

from trainer import Task


class Rows(Task):
    @staticmethod
    def parse(records):
        features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
        found = tf.io.parse_example(records, features)
        pixels = tf.reshape(tf.io.decode_raw(found["image"], tf.uint8), [-1, 784])
        return tf.cast(pixels, tf.float32) / 255.0, found["label"]

    def build_model(self):
        return keras.Sequential([keras.Input((784,)), keras.layers.Dense(10)])


def later(records):
    time.sleep(0.02)
    return records


class SlowInput(Rows):
    @staticmethod
    def parse(records):
        return Rows.parse(tf.ensure_shape(tf.py_function(later, [records], tf.string), records.shape))


class SlowModel(Rows):
    def build_model(self):
        wide = [keras.layers.Dense(2048, "relu") for _ in range(2)]
        return keras.Sequential([keras.Input((784,)), *wide, keras.layers.Dense(10)])
"""
FLAGS = ("--global_batch_size=64", "--headspace=20", "--steps_per_loop=5", "--log_every=10", "--checkpoint_every=0")


@pytest.mark.parametrize(
    ("name", "bound"),
    [("SlowInput", "input-bound"), pytest.param("SlowModel", "compute-bound", marks=pytest.mark.slow)],
)
def test_the_bound_is_found(name, bound, digits, tmp_path):
    (tmp_path / "verdict_tasks.py").write_text(TASKS)
    task, places = f"--task=verdict_tasks:{name}", (f"--data_dir={digits}", f"--model_dir={tmp_path}/run")
    done = forked.run(["-m", "trainer.run", *places, task, "--train_steps=40", *FLAGS], cwd=tmp_path)
    out = done.stdout
    assert done.returncode == 0, done.stderr
    unchecked = ["Task.parse: the function calls Python"] if name == "SlowInput" else []  # said once
    assert [line.partition(":pipeline:")[2].partition(" (")[0] for line in done.stderr.splitlines()] == unchecked
    said = re.match(
        r"(\S+): (\d+)% of [\d.]+ s waiting for input, (\d+)% computing; with one constant batch ([\d.]+) times as "
        r"fast \([\d,]+ against [\d,]+ examples/sec\); may help: .*",
        out.splitlines()[-1],
    )
    assert said[1] == bound, out
    assert (float(said[4]) > 3) == (bound == "input-bound")


SMALL = ("--model=softmax_regression", "--train_steps=20")


@pytest.mark.slow
def test_measuring_changes_nothing_that_is_saved(digits, tmp_path):
    for folder, flags in (("plain", ()), ("measured", ("--headspace=30",))):
        train(digits, tmp_path / folder, *SMALL, *flags)
    assert checkpoint_bytes(tmp_path / "plain", 20) == checkpoint_bytes(tmp_path / "measured", 20)
    assert "-bound" not in train(digits, tmp_path / "measured", *SMALL, "--headspace=30")  # no step, no verdict


@pytest.mark.slow
def test_two_workers_also_tell_what_they_send(digits, tmp_path):
    chief, other = succeed(*start_workers(digits, [tmp_path] * 2, "--train_steps=30", "--headspace=10"))
    assert re.search(r"-bound: \d+% of .* waiting for input, \d+% computing, \d+% communicating; with ", chief)
    assert "-bound" not in other


@pytest.mark.slow
def test_a_signal_asks_without_disturbing_the_run(digits, tmp_path):
    flags = ("--train_steps=1000", "--log_every=20", "--steps_per_loop=5", "--checkpoint_every=0")
    process = start(digits, tmp_path, "--model=softmax_regression", *flags)
    wait_for_step(process, 40)
    process.send_signal(signal.SIGUSR1)
    process.send_signal(signal.SIGUSR2)
    [out] = succeed(process)
    assert len(re.findall(r"^step \d+, \S+-bound: \d+% of [\d.]+ s waiting for input, ", out, re.MULTILINE)) == 1
    ((step, path),) = re.findall(r"^step (\d+) is saved, as SIGUSR2 asked: (.*)$", out, re.MULTILINE)
    assert 40 <= int(step) < 1000
    assert path == f"{tmp_path}/ckpt-{step}"
    assert sorted(one.name for one in tmp_path.glob("*.index")) == sorted([f"ckpt-{step}.index", "ckpt-1000.index"])
