"""`Task.augment`: a task's own function augments in training, evaluations, replays and predictions."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import tensorflow  # noqa: F401, so that tests/conftest.py makes four devices of the CPU

from pipeline import RandomAccess, input_fn
from pipeline.errors import UsageError
from pipeline.manifest import Feature
from tests.helpers import augmenting_tasks as tasks
from tests.helpers import forked
from tests.helpers.datasets import write_dataset
from tests.helpers.runs import checkpoint_bytes
from trainer import Predictor, TrainConfig, evaluate, plan, replay, run
from trainer.parameter_server import run as parameter_server
from trainer.task import data_spec_of

COUNTS, SHAPE, BATCH = (25, 15), (12, 10, 3), 8
OF_MODULE = "tests.helpers.augmenting_tasks"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("augmented")
    write_dataset(folder, COUNTS, SHAPE, (9,))
    return folder


def train(data, model_dir, task, *flags):
    flags = (f"--data_dir={data}", f"--model_dir={model_dir}", f"--global_batch_size={BATCH}", *flags)
    run.main([f"--task={OF_MODULE}:{task.__name__}", *flags, "--log_every=0"])


def test_a_run_its_replay_and_its_evaluation_get_what_the_function_returns(data, tmp_path, capsys):
    folder = tmp_path / "run"
    train(data, folder, tasks.Darkens, "--train_steps=4", "--checkpoint_every=2")
    assert "; augment by Darkens.augment; " in capsys.readouterr().out
    replay.main([f"--model_dir={folder}", "--verify", "--json"])
    assert json.loads(capsys.readouterr().out)["equal"]
    replay.main([f"--model_dir={folder}", "--step=3", "--json"])
    shown = {row["record"]: row["trained"] for row in json.loads(capsys.readouterr().out)["rows"]}
    options = {"global_batch_size": BATCH, "training": True, "start_step": 3, "record_ids": True}
    images, _, _, ids = next(iter(input_fn(data, **options, augment=tasks.Darkens.augment)))
    stored, _, _, _ = next(iter(input_fn(data, **options)))
    for record, image in zip(ids.numpy().tolist(), images.numpy().astype(np.float64), strict=True):
        assert shown[record].pop("shape") == [*SHAPE]
        statistics = {"mean": image.mean(), "std": image.std(), "least": image.min(), "greatest": image.max()}
        assert shown[record] == pytest.approx(statistics)
    assert not np.allclose(images, stored / 255)
    evaluate.main([f"--model_dir={folder}", "--json"])
    found = json.loads(capsys.readouterr().out)
    train(data, folder, tasks.Darkens, "--train_steps=4")
    said = re.search(r"^test accuracy = (\S+), loss = (\S+) \(9 examples\)$", capsys.readouterr().out, re.M)
    assert (f"{found['metrics']['accuracy']:.4f}", f"{found['loss']:.4f}") == (said[1], said[2])


def test_labels_are_those_of_the_data(data):
    config = TrainConfig.of(data_dir=str(data), model_dir="M", global_batch_size=BATCH)
    training = plan.make(config, task=tasks.Darkens).training.first
    features = {**training.manifest.features, "label": Feature("float32", (2,))}
    found = data_spec_of(replace(training, manifest=replace(training.manifest, features=features)))
    assert (found.labels.dtype, found.labels.shape.as_list()) == ("float32", [None, 2])
    assert not found.are_classes


@pytest.mark.slow
@pytest.mark.parametrize("task", [tasks.Darkens, tasks.Moves])
def test_a_resumed_run_on_other_replicas_ends_with_the_same_bits(task, data, tmp_path):
    flags = ("--virtual_replicas=2", "--train_steps=7", "--eval_split=none")
    for name, *more in (
        ("whole", "--strategy=one_device"),
        ("cut", "--strategy=one_device", "--train_steps=3"),
        ("cut", "--strategy=mirrored", "--num_replicas=2"),
    ):
        own = (f"--task={OF_MODULE}:{task.__name__}", f"--data_dir={data}", f"--model_dir={tmp_path / name}")
        done = forked.run(["-m", "trainer.run", *own, f"--global_batch_size={BATCH}", *flags, *more])
        assert done.returncode == 0, done.stderr
    assert checkpoint_bytes(tmp_path / "cut", 7) == checkpoint_bytes(tmp_path / "whole", 7)


@pytest.mark.slow
def test_a_model_predicts_for_images_as_they_are_if_evaluations_get_them_so(data, tmp_path):
    train(data, tmp_path / "run", tasks.Moves, "--train_steps=2", "--eval_split=none")
    predictor, examples = Predictor.of_run(tmp_path / "run"), RandomAccess(data, "test")
    images = [examples[number]["image"] for number in range(9)]
    found = predictor.probabilities(images)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(found, predictor.probabilities(images))  # nothing is drawn
    train(data, tmp_path / "scaled", tasks.Darkens, "--train_steps=2", "--eval_split=none")
    with pytest.raises(UsageError, match=r"^Task\.augment: changes images in evaluations, too"):
        Predictor.of_run(tmp_path / "scaled")


@pytest.mark.parametrize(
    ("task", "flags", "message"),
    [
        (tasks.Unlike, (), r"Task\.augment: returns images of float32 .* in training, and of uint8 .* in evaluations"),
        (tasks.OfSelf, (), r"Task\.augment: the function takes 'self', but gets none; decorate it with @staticmethod"),
        (tasks.Darkens, ("--augment=flip",), r"--augment=flip with Darkens\.augment: only one of them can augment; "),
        (tasks.Twice, (), r"Twice\.augment with Twice\.parse: parse returns everything that is fed; augment there"),
    ],
)
def test_what_cannot_work_is_said(task, flags, message, data, tmp_path):
    with pytest.raises(UsageError, match=message):
        train(data, tmp_path / "run", task, "--train_steps=2", *flags)
    assert not list((tmp_path / "run").glob("ckpt-*"))


def test_a_function_that_calls_python_is_refused_before_parameter_servers_are_asked(data, tmp_path):
    train(data, tmp_path / "run", tasks.InPython, "--train_steps=2", "--eval_split=none")  # one process may
    config = TrainConfig.of(data_dir=str(data), model_dir=str(tmp_path / "ps"), global_batch_size=BATCH)
    training = plan.make(config, task=tasks.InPython).training.first
    with pytest.raises(UsageError, match=r"Task\.augment: the function calls Python .*, but the workers of --strat"):
        parameter_server._check_functions(training, tasks.InPython)
    parameter_server._check_functions(plan.make(config, task=tasks.Moves).training.first, tasks.Moves)
