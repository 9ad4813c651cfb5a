"""--jit_compile in whole runs: its forms, a resume's messages, the same bits after a stop, what XLA cannot compile."""

import pytest
import yaml

from tests.helpers.runs import checkpoint_bytes
from trainer import run

IN_PYTHON = """
import keras
import tensorflow as tf

class InPython(keras.layers.Layer):
    def call(self, x):
        return tf.ensure_shape(tf.numpy_function(lambda values: values, [x], tf.float32), x.shape)

def net(shape, classes):
    layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), InPython(), keras.layers.Dense(classes)]
    return keras.Sequential([keras.Input(shape), *layers])
"""


@pytest.fixture
def train(digits, tmp_path, capfd, monkeypatch):
    """Returns a function that trains to a step in a folder, and returns the lines that it prints."""
    (tmp_path / "in_python.py").write_text(IN_PYTHON)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def train(folder, last, *flags):
        capfd.readouterr()
        given = [f"--data_dir={digits}", f"--model_dir={folder}", "--eval_split=none", "--global_batch_size=24"]
        run.main([*given, f"--train_steps={last}", *flags])
        return "".join(capfd.readouterr()).splitlines()

    return train


def mode_in(folder):
    with open(f"{folder}/config.yaml") as file:
        return yaml.safe_load(file)["model"]["jit_compile"]


@pytest.mark.slow
def test_a_compiled_run_goes_on_to_the_same_bits_and_a_change_of_the_mode_is_said(train):
    flags = ("--model=mlp", "--augment=shift")
    lines = train("once", 4, "--jit_compile", *flags)
    assert "; compiled by XLA; step 0 to 4" in lines[0]
    assert mode_in("once") == "on"
    train("twice", 2, "--jit_compile=true", *flags)
    lines = train("twice", 4, "--jit_compile=on", *flags)
    assert not [line for line in lines if "changed since" in line]
    assert checkpoint_bytes("once", 4) == checkpoint_bytes("twice", 4)
    lines = train("twice", 5, "--nojit_compile", *flags)
    assert "changed since ckpt-4: --jit_compile was on, is off" in lines
    assert mode_in("twice") == "off"
    assert "compiled by XLA" not in train("twice", 6, *flags)[0]  # auto, on CPUs


def test_a_model_that_xla_cannot_compile_is_trained_without_it_and_a_line_says_so(train):
    lines = train("plain", 3, "--model=in_python:net")
    assert not [line for line in lines if "XLA" in line]
    lines = train("tried", 2, "--model=in_python:net", "--jit_compile", "--log_keys=keys")
    (said,) = [line for line in lines if line.startswith("XLA cannot compile")]
    assert "--jit_compile=off" in said
    assert "PyFunc" in said
    assert mode_in("tried") == "off"
    lines = train("tried", 3, "--model=in_python:net")
    assert not [line for line in lines if "changed since" in line]
    # From its first step on, and with no batch left out.
    assert checkpoint_bytes("tried", 3) == checkpoint_bytes("plain", 3)
