"""Whole runs in this process, on images that are not all of one size."""

import numpy as np
import pytest
import tensorflow as tf  # so that tests/conftest.py makes four devices of the CPU

from pipeline.errors import UsageError
from pipeline.read.shard_cache import CacheCounts, _count
from tests.helpers.datasets import Kind, write_dataset
from trainer import Task, TrainConfig, evaluate, plan, run

RESIZED = ("--resize=32x32", "--model=lenet")


@pytest.fixture
def train(tmp_path, capsys):
    """Returns a function that trains on 40 images of six sizes and returns the run's lines."""

    def train(encoding, *flags):
        data = tmp_path / encoding
        if not data.exists():
            write_dataset(data, (25, 15), (20, 18, 3), kind=Kind(encoding, varied=True))
        run.main([f"--data_dir={data}", f"--model_dir={tmp_path / 'model'}", "--global_batch_size=8", *flags])
        return capsys.readouterr().out.splitlines()

    return train


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoding", "flags"),
    [
        ("jpeg", (*RESIZED, "--augment=pad_crop_flip")),
        (
            "png",
            (
                *("--model=mlp", "--augment=random_crop(size=16)", "--shuffle_bytes=20000"),
                *("--strategy=mirrored", "--num_replicas=2"),
            ),
        ),
    ],
    ids=["stretched and augmented", "cropped, by windows, on two replicas"],
)
def test_images_of_several_sizes(encoding, flags, train):
    lines = train(encoding, "--train_steps=7", "--log_every=7", *flags)
    assert lines[2].startswith("step 7, loss = ")
    assert "(4 examples" in lines[-2]
    assert "step 7 to 9" in train(encoding, "--train_steps=9", *flags)[0]


def test_the_note_on_shared_streams_follows_the_first_line(train, monkeypatch):
    monkeypatch.setattr(plan, "sharing_note", lambda *_: "four workers")
    lines = train("png", *RESIZED, "--train_steps=1", "--eval_split=none")
    assert lines[1] == "note: four workers"


def test_what_an_earlier_cache_did_is_not_said(train):
    _count(CacheCounts(hits=3, misses=2, fetched_bytes=100))
    assert "cache 3 hits" not in "\n".join(train("png", *RESIZED, "--train_steps=1", "--eval_split=none"))


def test_another_size_is_another_model(train):
    train("png", *RESIZED, "--train_steps=1", "--eval_split=none")
    words = r"has image_shape \[32, 32, 3\], this run has \[24, 32, 3\] \(--resize was 32x32, is 24x32\); use the old"
    with pytest.raises(UsageError, match=words):
        train("png", "--resize=24x32", "--model=lenet", "--train_steps=2")


def test_for_data_of_another_size_the_flag_is_named_that_makes_them_fit(tmp_path):
    sizes = {"own": (20, 18, 3), "other": (16, 16, 3)}
    for name, shape in sizes.items():
        write_dataset(tmp_path / name, (40,), shape)
    model_dir = f"--model_dir={tmp_path / 'model'}"
    flags = (model_dir, "--model=mlp", "--augment=none", "--eval_split=none", "--global_batch_size=8")
    run.main([f"--data_dir={tmp_path / 'own'}", *flags, "--train_steps=1"])
    with pytest.raises(UsageError, match=r"\[16, 16, 3\].* --resize=20x18, .*--model_dir"):
        run.main([f"--data_dir={tmp_path / 'other'}", *flags, "--train_steps=2"])
    with pytest.raises(UsageError, match=r"\[20, 18, 3\].*beam_jobs.convert --resize=20x18 "):
        evaluate.main([model_dir, f"--data_dir={tmp_path / 'other'}", "--split=train"])


@pytest.mark.slow
def test_another_size_that_only_the_order_sees_is_named_by_its_flag(train):
    cropped = ("png", "--augment=cifar10_tutorial", "--model=lenet", "--eval_split=none")
    train(*cropped, "--resize=32x32", "--train_steps=1")
    with pytest.raises(UsageError, match=r"record_bytes .*3072, .*4800 .*--resize .*32x32, .*40x40"):
        train(*cropped, "--resize=40x40", "--train_steps=2")


class Kept(Task):
    """Keeps the weights that it is given after the training."""

    weights = None

    def after_train(self, model, evaluation):
        Kept.weights = [variable.numpy() for variable in model.trainable_variables]


class Misnamed(Task):
    """Means to compute the sums of a step."""

    def train_sums(self, model, features, labels, weights):
        raise SystemExit


def test_a_method_that_the_trainer_never_calls_is_told(tmp_path, capsys):
    write_dataset(tmp_path / "data", (25, 15), (8, 6, 3))
    flags = {"data_dir": str(tmp_path / "data"), "model_dir": str(tmp_path / "model"), "model": "mlp"}
    run.train(TrainConfig.of(**flags, train_steps=1, global_batch_size=8, eval_split="none"), task=Misnamed)
    assert capsys.readouterr().out.startswith("Misnamed: the trainer does not call train_sums (")


@pytest.mark.slow
@pytest.mark.parametrize("ema", [None, 0.9])
def test_after_the_training_a_task_gets_the_averaged_weights_where_there_are(ema, tmp_path):
    write_dataset(tmp_path / "data", (25, 15), (8, 6, 3))
    flags = {"data_dir": str(tmp_path / "data"), "model_dir": str(tmp_path / "model"), "model": "mlp", "ema": ema}
    steps = {"train_steps": 5, "global_batch_size": 8}
    run.train(TrainConfig.of(**flags, **steps, strategy="mirrored", num_replicas=2), task=Kept)
    reader = tf.train.load_checkpoint(str(tmp_path / "model" / "ckpt-5"))
    names = [name for name in sorted(reader.get_variable_to_shape_map()) if name.endswith("VALUE")]
    averages = [name for name in names if name.startswith("averages/values/")]
    of_last_step = [reader.get_tensor(name) for name in names if name not in averages]
    assert len(averages) == (4 if ema else 0)
    same = [any(np.array_equal(weight, other) for other in of_last_step) for weight in Kept.weights]
    assert same == [not ema] * 4
    for name, weight in zip(averages, Kept.weights, strict=False):
        np.testing.assert_array_equal(reader.get_tensor(name), weight)


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        (("--model=mlp",), "resize"),
        (("--resize=32x32", "--augment=random_crop(size=16)"), "resize=(32, 32)"),
        (("--resize=8x8", "--model=lenet"), "8x8x3"),
    ],
)
def test_sizes_that_cannot_be(flags, facts, train):
    with pytest.raises(UsageError) as caught:
        train("png", "--train_steps=1", *flags)
    assert facts in str(caught.value)
