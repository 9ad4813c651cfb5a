"""The trainer and its peers: what is compared with what, and that all of them train the same model."""

import importlib.util
import json
import math
import re

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import commands, contestant, loops, side_by_side, sources
from benchmarks.rounds import Round
from pipeline.errors import DataError
from trainer.models.layers import LocalResponseNorm

NEEDS_TORCH = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs PyTorch, which no test installs")
# Trainable weights for 10 classes (docs/training.md has those of Keras' models), the side of an image, and the
# multiplications of its forward pass: of each layer, its kernel's weights times the pixels that it returns.
SIZES = {
    "cifar10_cnn": (1_068_298, 24, 4_800 * 576 + 102_400 * 144 + 2_304 * 384 + 384 * 192 + 1_920),
    "fast_cifar": (1_971_328, 32, 118_008_976),
    "resnet20": (269_722, 32, 40_551_040),
    "resnet18": (11_173_962, 32, 555_422_720),
    "resnet50": (23_528_522, 96, 750_718_976),
}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peers")
    commands.convert("cifar10", sources.cifar(folder / "source", 20), folder / "data")
    return folder / "data"


def test_each_is_compared_with_the_best_peer_by_processor_time_and_by_the_clock():
    found = {
        "ours": [Round(100.0, 9_000.0, 500 << 20), Round(110.0, 11_000.0, 600 << 20)],
        "Keras fit": [Round(200.0, 20_000.0), Round(200.0, 20_000.0)],
        "PyTorch eager": [Round(50.0, 4_500.0), Round(100.0, 5_500.0)],
        "tf.function fused": [Round(900.0, 1.0), Round(900.0, 1.0)],
        "limit TensorFlow": [Round(999.0, 1.0), Round(999.0, 1.0)],
    }
    first, *others = side_by_side.lines(found, rows=128)
    # 128 rows of 10,000 us; the best are PyTorch by processor time, and fit by the clock.
    assert re.split(r" {2,}|; ", first) == [
        "ours",
        "1.280 s of processor per step",
        "105 img/s",
        "629 MB",
        "of PyTorch eager by processor time, ratio 0.50 (0.50 to 0.50)",
        "of Keras fit by the clock, ratio 0.53 (0.50 to 0.55)",
    ]
    assert [text.split("  ")[0] for text in others] == list(found)[1:]
    (alone,) = side_by_side.lines({"ours": found["ours"]}, rows=128)
    assert alone.endswith("629 MB")


def test_models_of_different_size_are_not_compared():
    ours, other = {"weights": 1_000}, {"weights": 1_000, "multiplications": 2_500_000, "version": "PyTorch 2"}
    said = "1,000 weights, 2.5 million multiplications per image, PyTorch 2"
    assert side_by_side.agreed({"ours": ours, "PyTorch eager": other}) == said
    with pytest.raises(DataError, match="different models: weights of .*'ours': 1000, 'PyTorch eager': 1001"):
        side_by_side.agreed({"ours": ours, "PyTorch eager": {"weights": 1_001}})


@pytest.mark.skipif(bool(importlib.util.find_spec("torch")), reason="PyTorch is installed here")
def test_a_contestant_that_is_not_installed_is_skipped_with_the_reason(capfd):
    assert contestant.in_turns({"PyTorch eager": contestant.command("torch eager", ["{}"])}, 1, 0.01) == {}
    assert capfd.readouterr() == ("PyTorch eager: skipped, ModuleNotFoundError: No module named 'torch'\n", "")


def test_pytorch_is_told_what_the_trainer_is_told():
    subject = side_by_side.SUBJECTS["fast_cifar"]
    flags = side_by_side.flags_of("fast_cifar", "bfloat16", 64, "DIR")
    assert side_by_side.torch_setting(flags, subject, "ARRAYS") == {
        "model": "fast_cifar",
        "rows": 64,
        "side": 32,
        "classes": 10,
        "precision": "bfloat16",
        "steps": 4,
        "rate": 0.001,
        "momentum": 0.9,
        "nesterov": True,
        "recipe": "pad_crop_flip",
        "arrays": "ARRAYS",
    }
    plain = side_by_side.flags_of("cifar10_cnn", "float32", 64, "DIR")
    made = side_by_side.torch_setting(plain, side_by_side.SUBJECTS["cifar10_cnn"], "")
    assert (made["side"], made["momentum"], made["nesterov"]) == (24, 0.0, False)


@pytest.mark.slow
def test_peers_have_tensorflow_s_local_response_normalisation(data_dir):
    made = loops.make(side_by_side.flags_of("cifar10_cnn", "float32", 4, data_dir))
    theirs, ours = loops.model_of(made)[0], loops.model_of(made, fused=True)[0]
    values = np.random.default_rng(0).random((2, 24, 24, 64), np.float32) * 100
    for model, operations in ((theirs, {"LRN"}), (ours, set())):
        (one, _) = (layer for layer in model.layers if isinstance(layer, LocalResponseNorm))
        graph = tf.function(one.call).get_concrete_function(tf.TensorSpec(values.shape)).graph
        assert {op.type for op in graph.get_operations()} & {"LRN"} == operations
        assert np.allclose(one(values), tf.nn.local_response_normalization(values, 4, 1.0, 0.001 / 9, 0.75), rtol=1e-5)


@pytest.mark.parametrize("name", ["plain", "limit"])
def test_loops_of_tensorflow_train_the_model_of_the_run(name, data_dir):
    flags = [*side_by_side.flags_of("cifar10_cnn", "float32", 4, data_dir), "--steps_per_loop=1"]
    made = loops.contest(name, flags)
    weights, _, multiplications = SIZES["cifar10_cnn"]
    assert made.facts == {"weights": weights, **({"multiplications": multiplications} if name == "limit" else {})}
    assert made.take() == (8, 0.0)


def test_peers_have_keras_own_layers_and_begin_with_the_same_fixed_weights(data_dir):
    import keras

    made = loops.make(side_by_side.flags_of("fast_cifar", "float32", 4, data_dir))
    theirs, ours = loops.model_of(made)[0], loops.model_of(made, fused=True)[0]
    for kind in (keras.layers.BatchNormalization, keras.layers.MaxPooling2D):
        found = [[type(one) for one in model.layers if isinstance(one, kind)] for model in (theirs, ours)]
        assert set(found[0]) == {kind}
        assert kind not in found[1]
        assert len(found[0]) == len(found[1]) > 1
    (fixed, own) = (next(one for one in m.layers if isinstance(one, keras.layers.Conv2D)) for m in (theirs, ours))
    assert not fixed.trainable
    assert np.array_equal(fixed.kernel, own.kernel)


@NEEDS_TORCH
@pytest.mark.parametrize("name", SIZES)
def test_models_of_pytorch_have_the_same_size(name):
    import torch

    from benchmarks import torch_models

    weights, side, multiplications = SIZES[name]
    model, images = torch_models.build(name, side, 10), torch.zeros(2, 3, side, side)
    groups = torch_models.decayed(name, model)
    assert sum(weight.numel() for _, group in groups for weight in group) == weights
    layers = torch_models.layers(model, images)
    assert sum(one.weight.numel() * math.prod(one(given).shape[2:]) for one, given in layers) == multiplications
    assert model(images).shape == (2, 10)
    assert {decay for decay, group in groups for weight in group if weight.dim() == 1} == {0.0}


@NEEDS_TORCH
@pytest.mark.parametrize("name", ["torch eager", "torch compile", "torch eager input", "torch limit"])
def test_loops_of_pytorch_train_the_model_of_the_run(name, tmp_path):
    from benchmarks import torch_loops

    np.save(tmp_path / "images.npy", np.zeros((16, 32, 32, 3), np.uint8))
    np.save(tmp_path / "labels.npy", np.zeros(16, np.int64))
    flags = [*side_by_side.flags_of("cifar10_cnn", "bfloat16", 4, "DIR"), "--steps_per_loop=1"]
    setting = side_by_side.torch_setting(flags, side_by_side.SUBJECTS["cifar10_cnn"], str(tmp_path))
    made = torch_loops.contest(name, [json.dumps(setting)])
    assert made.facts["weights"] == SIZES["cifar10_cnn"][0]
    assert made.take() == (8, 0.0)
