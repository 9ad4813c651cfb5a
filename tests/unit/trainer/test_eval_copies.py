"""`--eval_copies`: evaluations and predictions are means over an image and augmented copies of it."""

import json

import numpy as np
import pytest
import tensorflow as tf  # so that tests/conftest.py makes four devices of the CPU

from pipeline import RandomAccess, images, input_fn
from pipeline.errors import UsageError
from pipeline.order.hashing import Domain, derive_key
from tests.helpers import augmenting_tasks, forked
from tests.helpers.datasets import Kind, write_dataset
from trainer import Predictor, evaluate, export, inference, predict, run
from trainer.checkpoint import reader
from trainer.config.trained import CheckpointFlags

SHAPE, TESTS, SEED, COPIES = (12, 10, 3), 9, 3, 3


def train(data, folder, *flags):
    size = ("--global_batch_size=8", f"--seed={SEED}", "--train_steps=8", "--model=mlp")
    run.main([f"--data_dir={data}", f"--model_dir={folder}", *size, "--log_every=0", *flags])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    write_dataset(folder, (25, 15), SHAPE, (TESTS,))
    return folder


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    train(data, folder, "--augment=shift(pixels=3)", "--eval_split=none")
    return folder


def probabilities_of(folder, features):
    """Returns the probabilities, (rows, copies, classes), of features (rows, copies, ...) by a run's model."""
    found = inference.build(reader.read(folder / "ckpt-8"), CheckpointFlags(str(folder)))
    return np.stack([tf.nn.softmax(found.model(features[:, copy])) for copy in range(features.shape[1])], axis=1)


def mean_over_copies(data, folder, augment):
    """Returns the mean loss and accuracy of a run's model over copies of the test split, computed here."""
    options = {"split": "test", "global_batch_size": TESTS, "training": False, "seed": SEED, "augment": augment}
    [(features, labels, _)] = input_fn(data, **options, eval_copies=COPIES)
    means, rows, labels = probabilities_of(folder, features).mean(axis=1), np.arange(TESTS), labels.numpy()
    return -np.log(means[rows, labels]).mean(), (means.argmax(axis=1) == labels).mean()


def test_evaluations_take_the_mean_over_copies_whatever_the_batch(data, trained, capsys):
    loss, accuracy = mean_over_copies(data, trained, "shift(pixels=3)")
    capsys.readouterr()
    found = []
    for flags in ((), ("--batch_size=4",)):
        evaluate.main([f"--model_dir={trained}", "--split=test", f"--eval_copies={COPIES}", "--json", *flags])
        found.append(json.loads(capsys.readouterr().out))
    for one in found:
        assert one["eval_copies"] == COPIES
        assert one["loss"] == pytest.approx(loss, rel=1e-5)
        assert one["metrics"]["accuracy"] == pytest.approx(accuracy)
        assert (one["report"]["loss"], one["report"]["accuracy"]) == pytest.approx((loss, accuracy), rel=1e-5)
    evaluate.main([f"--model_dir={trained}", "--split=test", "--json"])
    assert json.loads(capsys.readouterr().out)["loss"] != pytest.approx(loss, rel=1e-3)


@pytest.mark.slow
def test_a_run_takes_the_mean_over_copies_and_so_do_its_evaluations(data, tmp_path, capsys):
    replicas = ("--strategy=mirrored", "--num_replicas=2")
    train(data, tmp_path / "run", "--augment=shift(pixels=3)", f"--eval_copies={COPIES}", *replicas)
    loss, accuracy = mean_over_copies(data, tmp_path / "run", "shift(pixels=3)")
    more = "9 examples; averaged weights; mean over 3 copies of each"
    assert f"test accuracy = {accuracy:.4f}, loss = {loss:.4f} ({more})" in capsys.readouterr().out
    evaluate.main([f"--model_dir={tmp_path / 'run'}", "--json"])  # its own number of copies
    assert json.loads(capsys.readouterr().out)["loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.slow
def test_copies_are_augmented_by_the_function_of_a_task(data, tmp_path, capsys):
    train(data, tmp_path, "--task=tests.helpers.augmenting_tasks:Darkens", f"--eval_copies={COPIES}")
    loss, accuracy = mean_over_copies(data, tmp_path, augmenting_tasks.Darkens.augment)
    assert f"test accuracy = {accuracy:.4f}, loss = {loss:.4f} (9 examples" in capsys.readouterr().out


@pytest.mark.slow
def test_virtual_replicas_take_the_mean_over_copies(data, tmp_path):
    flags = (f"--data_dir={data}", f"--model_dir={tmp_path}", "--global_batch_size=8", f"--seed={SEED}", "--model=mlp")
    more = ("--train_steps=8", "--augment=shift(pixels=3)", f"--eval_copies={COPIES}", "--virtual_replicas=2")
    done = forked.run(["-m", "trainer.run", *flags, *more])
    assert done.returncode == 0, done.stderr
    loss, accuracy = mean_over_copies(data, tmp_path, "shift(pixels=3)")
    assert f"test accuracy = {accuracy:.4f}, loss = {loss:.4f} (9 examples" in done.stdout


def test_predictions_are_the_mean_over_copies_of_each_image(data, trained, tmp_path, capsys):
    examples = RandomAccess(data, "test")
    stored = np.stack([examples[number]["image"] for number in range(TESTS)])
    keys = [derive_key(Domain.AUGMENT, SEED, 0, 0, copy) for copy in range(1, COPIES)]
    copies = [stored / np.float32(255), *(_shifted(stored, key) for key in keys)]
    expected = probabilities_of(trained, np.stack(copies, axis=1)).mean(axis=1)
    predictor = Predictor.of_run(trained, eval_copies=COPIES)
    np.testing.assert_allclose(predictor.probabilities(list(stored)), expected, atol=1e-5)
    np.testing.assert_allclose(predictor.probabilities([stored[4]]), expected[4:5], atol=1e-5)
    plain = Predictor.of_run(trained).probabilities(list(stored))
    np.testing.assert_allclose(plain, probabilities_of(trained, copies[0][:, None])[:, 0], atol=1e-5)
    assert np.abs(plain - expected).max() > 1e-3
    file = tmp_path / "a.png"
    file.write_bytes(images.encoded(stored[4], "png"))
    capsys.readouterr()
    predict.main([str(trained), str(file), f"--eval_copies={COPIES}", "--top=1"])
    assert f" {expected[4].max():.3f}" in capsys.readouterr().out


def _shifted(stored, key):
    """Returns images of one key as the run's recipe shifts them."""
    from pipeline.augmentation.base import ImageStatistics
    from pipeline.augmentation.recipes import make_recipe

    recipe, statistics = make_recipe("shift(pixels=3)"), ImageStatistics((0.0,) * 3, (1.0,) * 3)
    keys = tf.fill([len(stored)], tf.constant(key))
    return tf.function(lambda *given: recipe.augment(*given, statistics), autograph=False)(stored, keys).numpy()


@pytest.mark.slow
def test_copies_of_photographs_are_the_parts_that_training_would_decode(tmp_path, capsys):
    write_dataset(tmp_path / "data", (20,), (20, 18, 3), (TESTS,), kind=Kind("png", varied=True))
    text = "random_resized_crop(size=8) | cutout(size=2) | mixup"
    train(tmp_path / "data", tmp_path / "run", f"--augment={text}", f"--eval_copies={COPIES}")
    loss, accuracy = mean_over_copies_of_mixed(tmp_path / "data", tmp_path / "run", text)
    assert f"test accuracy = {accuracy:.4f}, loss = {loss:.4f} (9 examples" in capsys.readouterr().out
    # Record 0 of a split has the draws of a file.
    examples = RandomAccess(tmp_path / "data", "test")
    options = {"split": "test", "global_batch_size": 1, "training": False, "seed": SEED, "augment": text}
    [features, *_] = next(iter(input_fn(tmp_path / "data", **options, eval_copies=COPIES)))
    expected = probabilities_of(tmp_path / "run", features).mean(axis=1)
    found = Predictor.of_run(tmp_path / "run").probabilities([examples[0]["image"]])  # the run's number of copies
    np.testing.assert_allclose(found, expected, atol=1e-5)
    flags = ("--format=keras", "--examples=4")
    export.main([f"--model_dir={tmp_path / 'run'}", f"--output={tmp_path / 'exported'}", *flags])
    assert "note: exported programs do not average over copies of an image (--eval_copies=3" in capsys.readouterr().out


def mean_over_copies_of_mixed(data, folder, text):
    """Returns the same for a recipe that makes labels of all classes; copies are not mixed."""
    return mean_over_copies(data, folder, text.removesuffix(" | mixup"))


def test_a_run_that_augments_nothing_has_no_copies(data, tmp_path):
    with pytest.raises(UsageError, match="--eval_split=test: eval_copies=3 with no augment: all copies would be equal"):
        train(data, tmp_path / "run", "--augment=none", f"--eval_copies={COPIES}")
