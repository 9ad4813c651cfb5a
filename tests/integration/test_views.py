"""A training run under a view: what it feeds, evaluates and skips, and how it resumes."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from pipeline import RandomAccess, manifest
from pipeline.audit.__main__ import main as audit
from pipeline.errors import DataError, UsageError
from pipeline.index.__main__ import main as index
from tests.helpers.runs import start, succeed
from trainer import Predictor, evaluate, run


@pytest.fixture(scope="module")
def data(digits, tmp_path_factory):
    """The digits with columns: 1,429 to train, of 10 classes."""
    folder = tmp_path_factory.mktemp("views") / "digits"
    shutil.copytree(digits, folder)
    index([str(folder), "--add_columns=records"])
    return folder


@pytest.fixture
def train(data, tmp_path, capsys):
    """Returns a function that trains and returns the lines."""

    def train(*flags, name="run"):
        common = [f"--data_dir={data}", f"--model_dir={tmp_path / name}", "--model=softmax_regression"]
        run.main([*common, "--log_every=1000", *flags])
        return capsys.readouterr().out.splitlines()

    return train


def test_a_run_sees_just_what_its_view_says(train, data, tmp_path, capsys):
    logs = f"--log_keys={tmp_path / 'keys'}"
    view = ["--where=label in (3, 5, 8)", "--balance=label"]
    lines = train("--train_steps=9", "--eval_where=label in (3, 5, 8)", "--eval_limit=90", logs, *view)
    assert "5 per epoch" in lines[0]
    assert lines[-2].endswith("(90 examples)")
    audit([str(data), f"--observed={tmp_path / 'keys'}", *view])
    assert capsys.readouterr().out.endswith("; the run saw just that\n")
    with pytest.raises(UsageError, match="the run's order has view=where: label in"):
        audit([str(data), f"--observed={tmp_path / 'keys'}"])
    evaluate.main([f"--model_dir={tmp_path / 'run'}", "--where=label == 3", "--limit=20"])
    assert "20 examples" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_of_some_classes_has_a_head_for_them_and_predicts_their_names(train, data, tmp_path, capsys):
    lines = train("--train_steps=40", "--classes=8,3,1", "--eval_split=test", "--global_batch_size=64")
    count = sum(manifest.load(data).splits["test"].label_histogram[number] for number in (8, 3, 1))
    assert lines[-2].endswith(f"({count} examples)")
    assert float(lines[-2].split("accuracy = ")[1].split(",")[0]) > 0.8
    predictor = Predictor.of_run(tmp_path / "run")
    assert predictor.class_names == ("8", "3", "1")
    examples = [example for example in RandomAccess(data, "test") if example["label"] in (1, 3, 8)][:60]
    probabilities = predictor.probabilities([example["image"] for example in examples])
    predicted = [predictor.class_names[number] for number in probabilities.argmax(axis=1)]
    assert np.mean([name == str(one["label"]) for name, one in zip(predicted, examples, strict=True)]) > 0.8
    evaluate.main([f"--model_dir={tmp_path / 'run'}"])
    assert f"{count} examples" in capsys.readouterr().out
    with pytest.raises(UsageError, match="classes"):
        train("--train_steps=50", "--classes=3,8,1", "--eval_split=test", "--global_batch_size=64")


@pytest.mark.parametrize(
    ("flag", "steps"), [("--limit=250", 3), ("--limit=7 per label", 1), ("--weigh=label", 66), ("--where=label > 7", 3)]
)
def test_an_epoch_has_the_steps_of_its_view(train, flag, steps):
    assert f" {steps} per epoch" in train("--train_steps=1", "--eval_split=none", flag)[0]


def weights(folder):
    """The values of the newest checkpoint, without the step and what describes the run."""
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(folder))
    names = [name for name in reader.get_variable_to_dtype_map() if name.startswith(("model", "optimizer", "averages"))]
    assert names
    return {name: reader.get_tensor(name) for name in names}


def test_a_skipped_step_changes_nothing_but_its_number(train, tmp_path):
    flags = ["--optimizer=momentum", "--ema=0.9", "--eval_split=none", "--log_every=1"]
    train("--train_steps=4", *flags, name="short")
    more = (f"--metrics_jsonl={tmp_path}/metrics.jsonl", "--summary_every=1")
    lines = train("--train_steps=6", *flags, *more, "--skip_steps=4:6", name="skipped")
    said = [line.partition(" (")[0] for line in lines if "examples/sec" in line]
    assert [line.endswith(", skipped") for line in said] == [False] * 4 + [True] * 2
    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in written if "train/loss" in line] == [1, 2, 3, 4]
    assert [line["step"] for line in written if "train/epoch_loss" in line] == [1, 2, 3, 4, 5, 6]
    assert lines[-1].startswith(f"checkpoint: {tmp_path / 'skipped' / 'ckpt-6'}")
    one, other = (weights(tmp_path / name) for name in ("short", "skipped"))
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


def test_as_long_as_an_epoch_has_no_step_that_is_trained_on_it_has_no_loss(train, tmp_path):
    path = tmp_path / "metrics.jsonl"
    flags = ["--train_steps=3", "--eval_split=none", "--log_every=1", "--summary_every=1", f"--metrics_jsonl={path}"]
    lines = train(*flags, "--skip_steps=0:2")
    said = [line.partition(" (")[0] for line in lines if "examples/sec" in line]
    assert said[:2] == ["step 1, skipped", "step 2, skipped"]
    assert said[2].startswith("step 3, loss = ")
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert [sorted(tag for tag in line if "loss" in tag) for line in written[:2]] == [[], []]
    assert written[2]["train/epoch_loss"] == pytest.approx(written[2]["train/loss"])


def test_steps_to_come_may_be_skipped_after_a_resume_and_past_ones_may_not(train, data, tmp_path, capsys):
    logs = f"--log_keys={tmp_path / 'keys'}"
    train("--train_steps=4", "--eval_split=none", logs)
    lines = train("--train_steps=8", "--eval_split=none", "--skip_steps=5:7", logs)
    audit([str(data), f"--observed={tmp_path / 'keys'}"])
    assert capsys.readouterr().out.endswith("; the run saw just that\n")
    with pytest.raises(
        DataError, match=r"--observed: \d+ differences; the first at step 6, row 0 .* weight 0 of a real row"
    ):
        audit([str(data), f"--observed={tmp_path / 'keys'}", "--skip_steps=5:6"])
    assert "changed since ckpt-4: skip_steps was none, is 5:7, which differ only from step 4 on" in lines
    with pytest.raises(
        UsageError, match=r"order of examples has changed: skip_steps was 5:7, is 5:6; use the old values"
    ):
        train("--train_steps=9", "--eval_split=none", "--skip_steps=5:6")
    with pytest.raises(UsageError, match="view was None, is weigh: label"):
        train("--train_steps=9", "--eval_split=none", "--skip_steps=5:7", "--weigh=label")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--where=label >"], "where='label >': is not an expression"),
        (["--limit=none"], "limit='none': must be a number of records"),
        (["--skip_steps=7"], "skip_steps='7': must be pairs"),
        (["--balance=lable"], "unknown 'lable'; did you mean 'label'?"),
        (["--eval_where=label > 99"], "keeps none of the 368 records of 'test'"),
        (["--weigh=label", "--balance=label"], "both say how often"),
    ],
)
def test_a_view_that_cannot_work_is_refused(train, flags, said):
    with pytest.raises(UsageError) as caught:
        train("--train_steps=1", *flags)
    assert said in str(caught.value)


@pytest.mark.slow
def test_two_replicas_end_with_the_same_bits_under_a_view(data, tmp_path):
    flags = ["--model=mlp", "--train_steps=8", "--eval_split=none", "--virtual_replicas=4", "--balance=label"]
    flags += ["--skip_steps=3:5"]
    one = start(data, tmp_path / "one", *flags)
    two = start(data, tmp_path / "two", *flags, "--strategy=mirrored", "--num_replicas=2")
    succeed(one, two)
    one, other = (weights(tmp_path / name) for name in ("one", "two"))
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)
