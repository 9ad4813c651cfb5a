"""Runs that an earlier release stored, whose flags have earlier names, resume here: `tests/data/earlier_runs`.

They were made by the commit c4e0a3d6 from the data sets that `data` writes:

    python -m trainer.run --data_dir=a --model_dir=one --distort='shift(pixels=1)' --distort_on=host $FLAGS
    python -m trainer.run --data_dir=a=0.75,b=0.25 --model_dir=mixture --distort='flip | normalize' \
        --distort_on=device --ema=0.9 $FLAGS

with FLAGS="--model=softmax_regression --train_steps=3 --global_batch_size=8 --summary_every=0 --eval_split=none".
`expected.npz` has what that commit came to: the weights of both at step 6, and the images of two steps of
`input_fn("a", global_batch_size=8, training=True, distort="shift(pixels=1)")`.
"""

import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
import yaml

from pipeline import input_fn
from pipeline.errors import UsageError
from pipeline.inspect import __main__ as inspect
from tests.helpers.datasets import write_dataset
from trainer import evaluate, replay, run

STORED = pathlib.Path(__file__).parents[1] / "data" / "earlier_runs"
EXPECTED = np.load(STORED / "expected.npz")
VARIABLE = "optimizer/_trainable_variables/{}/.ATTRIBUTES/VARIABLE_VALUE"


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """The current folder, with the runs and their data."""
    write_dataset(tmp_path / "a", (12, 12))
    write_dataset(tmp_path / "b", (9, 7))
    shutil.copytree(STORED, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "recipe", "place"), [("one", "shift(pixels=1)", "host"), ("mixture", "flip | normalize", "device")]
)
def test_a_run_goes_on_to_the_same_weights(name, recipe, place, runs, capsys):
    before = yaml.safe_load((runs / name / "config.yaml").read_text())["data"]
    assert (before["distort"], before["distort_on"]) == (recipe, place)
    run.main([f"--model_dir={name}", "--train_steps=6"])
    first, *more = capsys.readouterr().out.splitlines()
    assert f"augment {recipe}; step 3 to 6 of 8 examples" in first
    assert first.endswith(f"resumed from {name}/ckpt-3")
    assert not any("augment" in line or "distort" in line for line in more)  # no change of flags is reported
    weights = tf.train.load_checkpoint(f"{name}/ckpt-6")
    for number in range(2):
        np.testing.assert_allclose(
            weights.get_tensor(VARIABLE.format(number)), EXPECTED[f"{name}/{number}"], rtol=1e-4, atol=1e-6
        )
    after = yaml.safe_load((runs / name / "config.yaml").read_text())["data"]
    assert (after["augment"], after["augment_on"], "distort" in after) == (recipe, place, False)


@pytest.mark.parametrize("flag", ["--augment=flip", "--distort=flip"])
def test_another_recipe_is_a_change_that_is_told(flag, runs, capsys):
    run.main(["--model_dir=one", "--train_steps=4", flag])
    assert "--augment was shift(pixels=1), is flip" in capsys.readouterr().out


def test_a_recipe_of_another_size_is_named_beside_the_stored_one(runs):
    with pytest.raises(UsageError, match=r"\(--augment was shift\(pixels=1\), is cifar10_tutorial\(crop=5\)\)"):
        run.main(["--model_dir=one", "--train_steps=4", "--augment=cifar10_tutorial(crop=5)"])


def test_a_run_is_evaluated_inspected_and_replayed(runs, capsys):
    evaluate.main(["--model_dir=one", "--split=test", "--json"])
    assert json.loads(capsys.readouterr().out)["num_examples"] == 4
    inspect.main(["a", "--model_dir=one", "--step=4", "--json"])
    shown = json.loads(capsys.readouterr().out)["rows"]
    inspect.main(["a", "--model_dir=one", "--step=4", "--png=rows.png"])
    assert capsys.readouterr().out.count("8x6x3, mean 0.") == 8  # as it was trained on: floats of `shift`
    run.main(["--model_dir=one", "--train_steps=6"])
    capsys.readouterr()
    replay.main(["--model_dir=one", "--step=4", "--json"])
    made = json.loads(capsys.readouterr().out)["rows"]
    assert sorted(row["record"] for row in made) == sorted(row["record"] for row in shown)
    assert len(made) == 8


def test_a_script_gets_the_batches_that_it_got(runs):
    for names in (("distort", "distort_on"), ("augment", "augment_on")):
        options = dict(zip(names, ("shift(pixels=1)", "host"), strict=True))
        batches = input_fn("a", global_batch_size=8, training=True, **options).take(2)
        for step, (images, _, _) in enumerate(batches):
            np.testing.assert_array_equal(images, EXPECTED[f"batch/{step}"])
