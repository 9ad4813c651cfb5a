"""A run that begins with Keras' weights, up to its predictions; and weights of PyTorch, read without it."""

import importlib.util
import pathlib
import pickle
import sys
import types
import zipfile

import keras
import numpy as np
import PIL.Image
import pytest

from tests.helpers import forked
from tests.helpers.forked import ROOT
from tests.helpers.runs import checkpoint_bytes, finish, tf_configs, train

MODEL = "keras:MobileNetV3Small"
FLAGS = (f"--model={MODEL}", "--resize=32x32", "--global_batch_size=16", "--train_split=train[:64]")

PLAIN = """
import keras


def plain(image_shape, num_classes):
    images = keras.Input(image_shape, dtype="uint8")
    layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(num_classes)]
    return keras.Model(images, keras.Sequential(layers)(images))
"""


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    keras.utils.set_random_seed(0)
    model = keras.applications.MobileNetV3Small(input_shape=(32, 32, 3), weights=None, classes=7)
    path = tmp_path_factory.mktemp("weights") / "seven.weights.h5"
    model.save_weights(path)
    return path


def run(*arguments):
    [(code, out, error)] = finish(forked.Process(["-m", *map(str, arguments)]))
    return code, out, error


@pytest.mark.slow
@pytest.mark.parametrize("alike", [True, False])
def test_workers_begin_with_the_same_weights_or_not_at_all(alike, digits, tmp_path):
    """Each reads its own file of that name; training would never make the weights of its replicas equal again."""
    workers = []
    for rank, config in enumerate(tf_configs(2)):
        keras.utils.set_random_seed(0 if alike else rank)
        images = keras.Input((28, 28, 1), dtype="uint8")
        layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(10)]
        folder = tmp_path / str(rank)
        folder.mkdir()
        keras.Model(images, keras.Sequential(layers)(images)).save_weights(folder / "first.weights.h5")
        program = [
            "-m",
            "trainer.run",
            f"--data_dir={digits}",
            f"--model_dir={tmp_path / 'run'}",
            "--model=plain:plain",
        ]
        flags = ["--strategy=multiworker", "--global_batch_size=64", "--train_steps=2", "--eval_split=none"]
        (folder / "plain.py").write_text(PLAIN)
        environment = {"PYTHONUNBUFFERED": "1", "TF_CONFIG": config}
        arguments = [*program, *flags, "--initialize_from=first.weights.h5"]
        workers.append(forked.Process(arguments, environment, folder))
    for code, _, error in finish(*workers):
        assert code == (0 if alike else 1), error
        assert ("the digest of the first weights differs between workers" in error) is not alike


@pytest.mark.slow
def test_it_trains_resumes_without_the_file_evaluates_exports_and_predicts(digits, weights, tmp_path):
    folder = tmp_path / "run"
    flags = (*FLAGS, "--eval_split=test[:32]", "--eval_flip", "--precision=bfloat16", "--histogram_every=1")
    out = train(digits, folder, *flags, "--train_steps=2", f"--initialize_from={weights}")
    assert f"--initialize_from={weights}: taken but for the head, which begins anew" in out
    code, _, error = run("trainer.run", f"--data_dir={digits}", f"--model_dir={folder}", *flags, "--train_steps=3")
    assert code == 2
    assert "the run began with seven.weights.h5 (SHA-256 " in error
    kept = weights.rename(weights.with_name("kept.weights.h5"))
    code, out, error = run("trainer.run", f"--model_dir={folder}", "--train_steps=3")
    kept.rename(weights)
    assert code == 0, error
    assert "step 2 to 3" in out
    code, _, error = run("trainer.evaluate", f"--model_dir={folder}")
    assert code == 0, error
    code, out, error = run("trainer.replay", f"--model_dir={folder}", "--step=2")
    assert code == 0, error + out
    exported = tmp_path / "exported"
    code, _, error = run("trainer.export", f"--model_dir={folder}", f"--output={exported}", "--examples=16")
    assert code == 0, error
    PIL.Image.fromarray(np.zeros((40, 30), np.uint8)).save(tmp_path / "one.png")
    code, out, error = run("trainer.predict", f"--model_dir={folder}", tmp_path / "one.png")
    assert code == 0, error
    assert "one.png" in out


@pytest.mark.slow
def test_virtual_replicas_come_to_the_same_weights(digits, weights, tmp_path):
    """EfficientNetV2B0 drops blocks at random: by the step and the virtual replica."""
    flags = ("--model=keras:EfficientNetV2B0", *FLAGS[1:], "--virtual_replicas=4", "--eval_split=none", "--seed=3")
    for name, more in (("one", ()), ("two", ("--strategy=mirrored", "--num_replicas=2"))):
        train(digits, tmp_path / name, *flags, "--train_steps=2", *more)
    assert checkpoint_bytes(tmp_path / "one", 2) == checkpoint_bytes(tmp_path / "two", 2)


@pytest.fixture(scope="module")
def lite0():
    spec = importlib.util.spec_from_file_location("lite0", ROOT / "examples" / "fine_tuning" / "lite0.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_pytorch(layer, value):
    if isinstance(layer, keras.layers.DepthwiseConv2D):
        return value.transpose(2, 3, 0, 1)
    return value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T


@pytest.mark.slow
def test_weights_of_pytorch_are_those_of_the_keras_model(lite0):
    source = lite0.build((224, 224, 3), 3)
    state, names = {}, iter(range(10**4))
    for layer in source.layers:
        for value in layer.get_weights():
            state["_fc.bias" if value.shape == (3,) else f"w{next(names)}"] = as_pytorch(layer, value)
        state[f"{layer.name}.num_batches_tracked"] = np.int64(0)
    for ours, theirs in zip(lite0.convert(state).get_weights(), source.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


class Storage:
    def __init__(self, values):
        self.values = values


def test_a_state_dict_is_read_without_pytorch(lite0, tmp_path, monkeypatch):
    """The file as PyTorch before 1.6 writes it: four pickles, then each storage's length and bytes."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for module, name in ((torch, "FloatStorage"), (utils, "_rebuild_tensor_v2")):
        thing = type(name, (), {"__module__": module.__name__})
        setattr(module, name, thing)
        monkeypatch.setitem(sys.modules, module.__name__, module)

    class Tensor:
        def __reduce__(self):
            return utils._rebuild_tensor_v2, (storage, 2, (2, 3), (3, 1), False)

    class Pickler(pickle.Pickler):
        def persistent_id(self, thing):
            return ("storage", torch.FloatStorage, "7", "cpu", 8, None) if isinstance(thing, Storage) else None

    storage = Storage(np.arange(8, dtype=np.float32))
    path = tmp_path / "package.whl"
    with zipfile.ZipFile(path, "w") as archive, archive.open("models/model.pth", "w") as file:
        for thing in (1, 1001, {"little_endian": True}, {"weight": Tensor()}, ["7"]):
            Pickler(file, 2).dump(thing)
        file.write(np.int64(8).tobytes() + storage.values.tobytes())
    monkeypatch.undo()
    np.testing.assert_array_equal(lite0.read(path)["weight"], [[2, 3, 4], [5, 6, 7]])
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model.pth", pickle.dumps(pathlib.Path("/")))
    with pytest.raises(pickle.UnpicklingError, match="is no part of a state dict"):
        lite0.read(path)
